"""Parameters: what a request asks for, checked at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import Commit
from vstate.repo.repository import Repository

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

_LONGEST: Final = 10_000  # characters of a parameter
_MOST: Final = 1000  # items of a page


class Parameters:
    """The query of one request. Each method raises InvalidInput for a malformed value."""

    def __init__(self, given: QueryParams, repo: Repository) -> None:
        self._given = given
        self._repo = repo

    def has(self, name: str) -> bool:
        """Whether the parameter is given; it may be empty."""
        return name in self._given

    def text(self, name: str) -> str:
        """A text; "" if it is not given."""
        found = self._given.get(name, "")
        if len(found) > _LONGEST:
            raise InvalidInput(f"{name} has {len(found)} characters; at most {_LONGEST} are possible")
        return found

    def texts(self, name: str) -> list[str]:
        """All texts that are given under one name."""
        found = self._given.getlist(name)
        if len(found) > _MOST or any(len(text) > _LONGEST for text in found):
            raise InvalidInput(f"{name} is given too often, or is too long")
        return found

    def flag(self, name: str) -> bool:
        """Whether the parameter is 1 or true."""
        return self.text(name).lower() in ("1", "true")

    def number(self, name: str, otherwise: int, *, most: int = 2**53) -> int:
        """A whole number from 0 to `most`; a greater one counts as `most`."""
        given = self.text(name)
        if not given:
            return otherwise
        if not given.isascii() or not given.isdigit() or len(given) > 18:
            raise InvalidInput(f"{name} is a number from 0 on, not {given[:50]!r}")
        return min(int(given), most)

    def page(self, otherwise: int = 100) -> tuple[int, int]:
        """The first item, and the number of items."""
        return self.number("first", 0), max(self.number("limit", otherwise, most=_MOST), 1)

    def commit(self, name: str = "rev", otherwise: str = "HEAD") -> Commit:
        """The commit that a revision names. NotFound if it names none."""
        return self._repo.resolve(self.text(name) or otherwise)

    def since(self, commit: Commit) -> Commit | None:
        """The commit to compare with: `since`, or else the first parent; None for nothing."""
        if given := self.text("since"):
            return self._repo.resolve(given)
        return next(iter(self._repo.history.before(commit)), None)

    def required(self, name: str) -> str:
        """A text that must be given; it may be empty."""
        if not self.has(name):
            raise InvalidInput(f"the parameter {name} is missing")
        return self.text(name)

    def known(self, name: str) -> Commit | None:
        """The commit of a revision, if the parameter is given."""
        try:
            return self._repo.resolve(given) if (given := self.text(name)) else None
        except NotFound as error:
            raise NotFound(f"{name}: {error}", name=given) from error
