"""Exchange commits between stores: push, fetch, bundles."""
