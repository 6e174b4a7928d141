"""Upkeep of a store: gc, fsck and repair."""
