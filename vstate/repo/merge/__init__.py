"""Merge: three-way merges, cherry-picks, reverts, and the removal of expired keys."""
