"""The kinds of words on a command line, with the names in the store that shell completion suggests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

import click
from click.shell_completion import CompletionItem

from vstate.errors import InvalidInput, NotFound, VStateError
from vstate.readers.shown import Shown
from vstate.repo.names.refs import HEAD, REMOTES, TAGS, typed_ref
from vstate.repo.repository import Repository
from vstate.repo.runs import list_runs
from vstate_cli.store import open_repository

KEYS_FOLLOW = "vstate.keys_follow"
"""In the `meta` of a context: the word that is typed is behind `--`, and so a key."""

_MOST = 100

Names = Callable[[Repository, str, Sequence[str]], Iterable[str]]
"""The names that may complete a text, behind these words of the line."""


class Word(click.ParamType[str]):
    """A word of this kind. The shell suggests the names that begin with the typed text."""

    def __init__(self, name: str, *names: Names) -> None:
        self.name = name
        self._names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """The kind, for the value of an option; an argument shows its own name."""
        return self.name if isinstance(param, click.Option) else None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The suggestions; none from a store that cannot be read."""
        words = _words(ctx)
        found: list[str] = []
        for names in (_keys,) if KEYS_FOLLOW in ctx.meta else self._names:
            try:
                with (repo := open_repository(_place(ctx))).store:
                    fitting = (name for name in names(repo, incomplete, words) if name.startswith(incomplete))
                    found += islice(fitting, _MOST)
            except VStateError:
                pass  # an error message would break the line that is being typed
        return [CompletionItem(name) for name in found]


class _Branch(Word):
    """The name of a branch, quoted where the person did not: `users/user 0` is `users/user%200`."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if value == "-" else typed_ref(value)


class Count(click.IntRange):
    """A whole number, `N` in the help."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N"


def _place(context: click.Context | None) -> str | None:
    """The store that the line names."""
    while context is not None:
        if place := context.params.get("store"):
            return str(place)
        context = context.parent
    return None


def _words(context: click.Context) -> list[str]:
    """The words of the line so far, each range by its end."""
    words: list[str] = []
    for name, value in context.params.items():
        if name != "store":
            words += [value] if isinstance(value, str) else value if isinstance(value, tuple) else ()
    return [word.rpartition("..")[2] for word in words if word]


def _revisions(repo: Repository, typed: str, words: Sequence[str]) -> Iterable[str]:
    start, dots, _ = typed.rpartition("..")
    names = [*repo.branch_names(), *repo.refs.names(TAGS), *repo.refs.names(REMOTES), HEAD]
    return [f"{start}{dots}{name}" for name in names]


def _keys(repo: Repository, typed: str, words: Sequence[str]) -> Iterable[str]:
    shown = Shown(repo)
    for word in (*reversed(words), HEAD):
        with suppress(NotFound, InvalidInput):
            found = islice(shown.entries(shown.resolve(word).root, typed), _MOST)
            return [key for key, _ in found if key.isprintable()]  # the shell reads one suggestion a line
    return ()


ANY_BRANCH = Word("BRANCH", lambda repo, *_: repo.branch_names())
"""A branch by its exact name, which need not exist."""

BRANCH = _Branch("BRANCH", lambda repo, *_: repo.branch_names())
TAG = Word("TAG", lambda repo, *_: repo.refs.names(TAGS))
RUN = Word("ID", lambda repo, *_: [run.id for run in list_runs(repo)])
REMOTE = Word("REMOTE", lambda repo, *_: repo.remotes.list())
REV = Word("REV", _revisions)
KEY = Word("KEY", _keys)
REV_OR_KEY = Word("REV", _revisions, _keys)
PLACE = Word("REV", lambda repo, typed, words: () if words else _revisions(repo, typed, words), _keys)
"""The words [REV] [KEY] ...: revisions and keys as the first, then keys."""
