"""Sessions: the state of agents saved and loaded by session and user, each save a commit."""
