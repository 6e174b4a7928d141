"""Staged: how the values in hand differ from what is committed."""

from __future__ import annotations

from typing import Any

from vstate.objects.ids import NewObjects
from vstate.repo.objects import Overlay
from vstate.repo.repository import Repository
from vstate.state.timed import Asked
from vstate.values.entry import Encoded, Reader


class Staged:
    """What `collect` found: entries by key (None: deleted), their objects, and what nobody else holds.

    `asked` is what was asked for about expiry; `only_expiry` are keys whose values were not looked at for it, and
    `set_alike` those that expire and were set to what they are: no change, but they are there until the next commit.
    """

    def __init__(self, repo: Repository, held: dict[str, Any], asked: Asked) -> None:
        self._repo = repo
        self.held = held
        self.asked = asked
        self.changes: dict[str, bytes | None] = {}
        self.encoded: dict[str, Encoded | None] = {}
        self.objects: NewObjects = {}
        self.unshared: list[str] = []
        self.unpicklable: dict[str, Exception] = {}
        self.only_expiry: set[str] = set()
        self.set_alike: dict[str, Encoded | None] = {}

    def reader(self) -> Reader:
        """A reader that finds these objects besides the stored ones."""
        return Overlay(self._repo.objects, dict(self.objects))
