"""Tools: the commands that an agent calls, each with a text as its result."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click

from vstate.errors import VStateError
from vstate.readers.shown import Shown
from vstate.repo.names.refs import HEAD
from vstate.repo.repository import Repository
from vstate_cli.output import Output, safe
from vstate_cli.session import Session

LONGEST: Final = 50_000
"""The most characters of a result: a model reads all of them."""

MOST_COMMITS: Final = 1000
MOST_SECONDS: Final = 5.0
MOST_PLACES: Final = 200


class ToolFailure(Exception):
    """A call that failed, in one line without control characters."""


class Tools:
    """The commands over one repository. Threads may share it.

    Nothing is unpickled, and a result has at most `LONGEST` characters. Each method raises ToolFailure.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._shown = Shown(repo)

    @property
    def reading(self) -> list[Callable[..., str]]:
        """The tools that change nothing."""
        return [self.log, self.diff, self.show, self.blame, self.search]

    @property
    def writing(self) -> list[Callable[..., str]]:
        """The tools that make or move branches."""
        return [self.fork, self.undo]

    def log(
        self, rev: str = "HEAD", key: str = "", grep: str = "", limit: int = 20, patch: bool = False
    ) -> str:
        """List the commits up to a revision, newest first: id, message, time, info and changed keys.

        rev is a branch, a tag, the digits of a commit id, HEAD~3, main@{yesterday}, or a range such as
        main..other. With key, only commits that changed that key. grep is a text in the message or the info,
        as trace:4bf92f35. patch shows the changes inside the values.
        """
        return self._run(
            "log",
            revs=() if rev == HEAD else (rev,),
            keys=(key,) if key else (),
            grep=(re.escape(grep),) if grep else (),  # an expression may search for hours
            ignore_case=True,
            limit=min(max(limit, 0), MOST_COMMITS),
            patch=patch,
        )

    def diff(self, old: str = "HEAD~1", new: str = "HEAD", key: str = "") -> str:
        """Show the changes between two revisions: added, changed and removed keys, and the parts of values.

        With key, only the change of that key.
        """
        return self._run("diff", args=(old, new), named=(key,) if key else ())

    def show(self, rev: str = "HEAD", key: str = "", path: str = "") -> str:
        """Show a commit with its events and changes; with key, the value of that key at the revision.

        path names a part of the value, such as messages[3].content.
        """
        if path and not key:
            raise ToolFailure("path names a part of a value: give the key too")
        return self._run("show", words=tuple(filter(None, (rev, key, path))))

    def blame(self, key: str, path: str = "", rev: str = "HEAD") -> str:
        """Show for each part of a key's value the commit that last changed it; path leads to one part."""
        return self._run("blame", words=tuple(filter(None, (rev, key, path))), rev=rev, seconds=MOST_SECONDS)

    def search(self, text: str, rev: str = "HEAD", prefix: str = "", limit: int = 50) -> str:
        """Find a text in the keys and values at a revision, in upper or lower case; for commits use log.

        With prefix, only keys that begin with it are searched. Each line has a key, a path and the text.
        """
        return self._run("grep", text=text, rev=rev, prefix=prefix, limit=min(max(limit, 1), MOST_PLACES))

    def fork(self, name: str, at: str = "HEAD") -> str:
        """Make a new branch at a revision. Nothing else changes."""
        return self._run("branch", writes=True, name=name, at=at)

    def undo(self, branch: str = "", steps: int = 1) -> str:
        """Move a branch, by default HEAD's, back to its position before its last moves; nothing is lost."""

        def undo(session: Session) -> None:
            found = session.repo.find_undo(branch or session.branch(), steps=steps)
            commit = session.repo.carry_out(found)
            session.out.line(safe(found.branch), " is at ", *session.summary(commit))
            session.out.line(safe(found.action))

        return self._call(undo, writes=True)

    def _run(self, name: str, /, *, writes: bool = False, **given: Any) -> str:
        """The output of a command with these parameters, the others at their defaults."""
        command: click.Command = getattr(import_module(f"vstate_cli.commands.{name}"), name)
        # Not as words of a command line: there a word that begins with - would be an option.
        params = command.make_context(name, [], resilient_parsing=True).params
        params = {
            each: value for each, value in params.items() if each not in ("as_json", "date", "raw", "store")
        }
        function: Callable[..., None] = command.callback.__wrapped__  # type: ignore[union-attr]  # by `command`
        return self._call(lambda session: function(session, **params | given), writes=writes)

    def _call(self, function: Callable[[Session], None], *, writes: bool = False) -> str:
        stream = _Bounded()
        session = Session(None, json=False)
        session.repo, session.out = self._repo if writes else self._shown, Output(stream=stream)
        try:
            function(session)
            if session.out.damage is not None:
                raise session.out.damage
        except _Full:
            return f"{stream.getvalue()}\n… the result ends here, at {LONGEST:,} characters: ask for less"
        except (VStateError, click.ClickException, OSError) as error:
            text = error.message if isinstance(error, click.ClickException) else str(error)
            raise ToolFailure(safe(text, 2000)) from error
        return stream.getvalue() or "nothing"


class _Full(Exception):
    pass


class _Bounded(io.StringIO):
    """A text that ends at its limit."""

    def write(self, text: str) -> int:
        room = LONGEST - self.tell()
        super().write(text[:room])
        if len(text) > room:
            raise _Full
        return len(text)
