"""Notebook: a history in the output of a cell."""

from __future__ import annotations

from html import escape
from typing import Final

from vstate.forks import cached_property
from vstate.repo.repository import Repository
from vstate.viewer.exporting import export_html

__all__ = ["Window"]

_MOST_COMMITS: Final = 200


class Window:
    """A part of a history, which a notebook shows as a page in a frame.

    The frame is sandboxed: the page reaches neither the notebook nor the network. `html` is the page as text.
    """

    def __init__(self, repo: Repository, rev: str, *, height: int) -> None:
        self._repo = repo
        self._rev = rev
        self._height = height

    @cached_property
    def html(self) -> str:
        """The page, with the history as it was when this was read first."""
        return export_html(self._repo, self._rev, limit=_MOST_COMMITS)

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" title="vstate {escape(self._rev)}" width="100%" '
            f'height="{self._height}" style="border: 1px solid #8884" srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<the history up to {self._rev}: shown by a notebook; elsewhere, run vstate view>"
