"""Names of commits: refs, revisions, dates, undo, and the names of other stores."""
