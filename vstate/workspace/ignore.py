"""Ignore: the rules of `.gitignore` and `.vstateignore`, as git reads them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vstate.forks import cached_property

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".vstateignore")
"""In one directory the rules of the second go before those of the first."""


class Rules:
    """The ignore files of one directory, on top of those of the directories above it."""

    def __init__(self, above: Rules | None = None, prefix: str = "", text: str = "") -> None:
        self._above = above
        self._prefix = prefix
        self._text = text

    @cached_property
    def _spec(self) -> GitIgnoreSpec:
        from pathspec import GitIgnoreSpec  # late: many directories have no ignore file

        rules: list[Any] = []
        for line in self._text.removeprefix("\ufeff").split("\n"):
            with suppress(ValueError):  # git passes over a rule that is none, too
                rules += GitIgnoreSpec.from_lines([line.removesuffix("\r")]).patterns
        return GitIgnoreSpec(rules)

    def ignores(self, path: str) -> bool:
        """Whether a file, or a directory whose path ends in a slash, is left out."""
        if self._text:
            decided = self._spec.check_file(path[len(self._prefix) :]).include
            if decided is not None:
                return decided
        return self._above is not None and self._above.ignores(path)
