"""The names that shell completion suggests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import click
from click.shell_completion import CompletionItem

from vstate.errors import InvalidInput, NotFound, VStateError
from vstate.objects.commit import Commit
from vstate.readers.shown import Shown
from vstate.repo.names.refs import HEAD, REMOTES, TAGS, typed_ref
from vstate.repo.repository import Repository
from vstate_cli.store import open_repository

KEYS_FOLLOW = "vstate.keys_follow"
"""In the `meta` of a context: the word that is typed is behind `--`, and so a key."""

_MOST = 100

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
"""The `shell_complete` of a click parameter: it gets the text typed so far."""


def _completing(names: Callable[[Repository, str], list[str]]) -> Complete:
    """Suggest those of the names that begin with the typed text. A store that cannot be read has none."""

    def complete(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        is_key = KEYS_FOLLOW in context.meta or names is _keys
        wanted = partial(_keys, words=_words(context)) if is_key else names
        place = context.params.get("store")
        while place is None and context.parent is not None:
            context = context.parent
            place = context.params.get("store")
        try:
            repo = open_repository(place)
            with repo.store:
                found = [name for name in wanted(repo, typed) if name.startswith(typed)]
        except VStateError:
            return []  # an error message would break the line that is being typed
        return [CompletionItem(name) for name in found[:_MOST]]

    return complete


def _branches(repo: Repository, typed: str) -> list[str]:
    return repo.branch_names()


def _tags(repo: Repository, typed: str) -> list[str]:
    return [*repo.refs.names(TAGS)]


def _remotes(repo: Repository, typed: str) -> list[str]:
    return [*repo.remotes.list()]


def _revisions(repo: Repository, typed: str) -> list[str]:
    start, dots, _ = typed.rpartition("..")
    names = [*_branches(repo, typed), *_tags(repo, typed), *repo.refs.names(REMOTES), HEAD]
    return [f"{start}{dots}{name}" for name in names]


def _keys(repo: Repository, typed: str, words: Sequence[str] = ()) -> list[str]:
    shown = Shown(repo)
    commit = next(filter(None, (_find(shown, word) for word in (*reversed(words), HEAD))), None)
    found = islice(shown.entries(commit.root, typed), _MOST) if commit is not None else ()
    return [key for key, _ in found if key.isprintable()]  # the shell reads one suggestion a line


complete_tag = _completing(_tags)
complete_remote = _completing(_remotes)
complete_revision = _completing(_revisions)
complete_key = _completing(_keys)


def _words(context: click.Context) -> list[str]:
    """The words of the line so far, each range by its end."""
    values = [value for name, value in context.params.items() if name != "store" and value]
    words = [word for value in values for word in ([value] if isinstance(value, str) else value)]
    return [word.rpartition("..")[2] for word in words]


def _find(repo: Repository, word: str) -> Commit | None:
    try:
        return repo.resolve(word)
    except (NotFound, InvalidInput):
        return None


complete_branch = _completing(_branches)


class _Branch(click.ParamType[str]):
    """The name of a branch, quoted where the person did not: `users/user 0` is `users/user%200`."""

    name = "branch"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if value == "-" else typed_ref(value)

    shell_complete = staticmethod(complete_branch)  # type: ignore[assignment]  # click passes no self


BRANCH = _Branch()


def complete_revision_or_key(
    context: click.Context, param: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Revisions, then keys of HEAD."""
    if KEYS_FOLLOW in context.meta:
        return complete_key(context, param, typed)
    return complete_revision(context, param, typed) + complete_key(context, param, typed)


def complete_place(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Revisions and keys as the first word, then keys."""
    complete = complete_key if _words(context) else complete_revision_or_key
    return complete(context, param, typed)
