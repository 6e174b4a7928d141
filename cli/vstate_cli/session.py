"""What every command has: options, a repository that is opened when asked for, and an output."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

import click
from click.shell_completion import CompletionItem

from vstate.errors import DetachedHead, InvalidInput, NotFound, VStateError
from vstate.objects.commit import Commit
from vstate.repo.names.refs import HEAD, HEADS, REMOTES, TAGS
from vstate.repo.repository import Repository
from vstate_cli.output import Output
from vstate_cli.store import open_repository

_MOST_SUGGESTED = 100  # keys or refs that completion offers
_MOST_COMPARED = 1000  # keys that are looked at for one of a similar name

STORE_HELP = "The store, as a path or URL; else the directory .vstate here or in a parent."


class Session:
    """One run of one command."""

    def __init__(self, store: str | None, *, json: bool) -> None:
        self._store = store
        self._create = False
        self.json = json
        self.out = Output()

    @functools.cached_property
    def repo(self) -> Repository:
        """The repository of the store, opened now."""
        return open_repository(self._store, create=self._create)

    def create_store(self) -> None:
        """Make the store if it turns out, when it is opened, that there is none."""
        self._create = True

    def close(self) -> None:
        """Close the store if it was opened."""
        if "repo" in self.__dict__:
            self.repo.store.close()

    def try_resolve(self, rev: str) -> Commit | VStateError:
        """The commit that `rev` names, or the error that says why it names none."""
        try:
            return self.repo.resolve(rev)
        except (NotFound, InvalidInput) as error:
            return error

    def branch(self) -> str:
        """HEAD's branch; DetachedHead if HEAD is on none."""
        head = self.repo.refs.head()
        if head.branch is None:
            raise DetachedHead(str(head.commit) if head.commit else None)
        return head.branch

    def refs(self) -> dict[str, list[str]]:
        """The refs on each commit, by its id: `heads/main`, `tags/v1`, `remotes/origin/main`."""
        found: dict[str, list[str]] = {}
        for prefix in (HEADS, TAGS, REMOTES):
            for name, oid in self.repo.refs.list(prefix).items():
                found.setdefault(str(oid), []).append(prefix + name)
        return found

    def similar_keys(self, commit: Commit, name: str) -> list[str]:
        """Some keys of the commit that begin with `name` or look like it."""
        begin = [key for key, _ in islice(self.repo.entries(commit.tree, name), 3)]
        if begin:
            return begin
        keys = [key for key, _ in islice(self.repo.entries(commit.tree), _MOST_COMPARED)]
        return get_close_matches(name, keys, n=3, cutoff=0.5)


class Command(click.Command):
    """A command with `--json` and `--store` behind its own options."""

    def __init__(
        self, name: str | None, *, params: list[click.Parameter] | None = None, **options: Any
    ) -> None:
        shared: list[click.Parameter] = [
            click.Option(["as_json", "--json"], is_flag=True, help="Print JSON, for programs."),
            click.Option(["-s", "--store"], metavar="PATH|URL", help=STORE_HELP),
        ]
        super().__init__(name, params=[*(params or []), *shared], **options)


def command(
    name: str, *, examples: Sequence[str], json: str
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function of a Session into a command; `json` says what `--json` prints."""
    shown = "\n".join(f"  $ {line}" for line in examples)
    epilog = f"\b\nExamples:\n{shown}\n\nWith --json: {json}"

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, store: str | None, **params: Any) -> None:
            context = click.get_current_context()
            session = Session(store or context.obj, json=as_json)
            try:
                function(session, **params)
                if session.out.damage is not None:
                    raise session.out.damage
            finally:
                session.close()

        return click.command(name, cls=Command, epilog=epilog)(run)

    return decorate


def complete_revision(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Branches, tags, branches of remotes and HEAD, for the shell."""
    prefixes = (HEADS, TAGS, REMOTES)
    return _complete(context, typed, lambda repo: [*(n for p in prefixes for n in repo.refs.list(p)), HEAD])


def complete_branch(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Branches, for the shell."""
    return _complete(context, typed, lambda repo: [*repo.refs.list(HEADS)])


def complete_tag(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Tags, for the shell."""
    return _complete(context, typed, lambda repo: [*repo.refs.list(TAGS)])


def complete_remote(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Remotes, for the shell."""
    return _complete(context, typed, lambda repo: [*repo.remotes.list()])


def complete_key(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Keys of HEAD, for the shell."""
    return _complete(context, typed, lambda repo: _keys(repo, typed))


def complete_revision_or_key(
    context: click.Context, param: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Revisions, then keys of HEAD, for the shell."""
    return complete_revision(context, param, typed) + complete_key(context, param, typed)


def _keys(repo: Repository, typed: str) -> list[str]:
    found = islice(repo.entries(repo.resolve(HEAD).tree, typed), _MOST_SUGGESTED)
    # The shell reads the suggestions as lines.
    return [key for key, _ in found if key.isprintable()]


def _complete(
    context: click.Context, typed: str, names: Callable[[Repository], list[str]]
) -> list[CompletionItem]:
    given = context.params.get("store")
    while given is None and context.parent is not None:
        context = context.parent
        given = context.params.get("store")
    try:
        repo = open_repository(given)
        with repo.store:
            found = [name for name in names(repo) if name.startswith(typed)]
    except VStateError:
        return []  # a command line that is half typed is no place for an error
    return [CompletionItem(name) for name in found[:_MOST_SUGGESTED]]
