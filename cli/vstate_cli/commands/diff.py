"""`vstate diff`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from vstate.errors import InvalidInput
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Diff
from vstate_cli import changes
from vstate_cli.output import Document
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_key, complete_revision

_MOST_DETAILS = 200
_MOST_DETAILS_OF_ONE_KEY = 1000


@command(
    "diff",
    paged=True,
    examples=["vstate diff", "vstate diff HEAD~5 --stat", "vstate diff main what-if --key plan"],
    json="{old, new, changes: [{key, kind, old, new, details: [{path, kind, old, new, note}]}]}. The "
    "outer old and new are ids of commits, old null before the first commit; those of a change are {type, "
    "size} with the size in bytes, or null. With --stat, details is absent; if a value cannot be read, "
    "error stands in its place.",
)
@click.argument("a", required=False, shell_complete=complete_revision)
@click.argument("b", required=False, shell_complete=complete_revision)
@click.option("--key", metavar="KEY", shell_complete=complete_key, help="Show only the change of this key.")
@click.option("--stat", is_flag=True, help="Show only the keys with types and sizes, and the counts.")
def diff(session: Session, a: str | None, b: str | None, key: str | None, stat: bool) -> None:
    """Show the changes from revision A to revision B.

    Each key has a sign: + added, ~ modified, - removed. The changes inside its value follow, by path. B
    defaults to HEAD. Without arguments, show the changes of the last commit (HEAD~1 to HEAD); changes that
    a program has not yet committed exist only in that program. A..B means the same as A B.
    """
    old, new, found = _compare(session, a, b)
    if key is not None and key not in found:
        _check_key(session, key, old, new)
    keys = [*found] if key is None else [key] * (key in found)
    out = session.out
    if session.json:
        before = {"old": None if old is None else old.id, "new": new.id}
        out.json_array(_documents(session, found, keys, stat), before=before, name="changes")
        return
    limit = _MOST_DETAILS if key is None else _MOST_DETAILS_OF_ONE_KEY
    if not stat:
        out.lines(changes.diff_lines(found, out, keys=keys, limit=limit))
        return
    width = changes.name_width(keys)
    for each in keys:
        out.line(*changes.line(found[each], width))
    if len(keys) == len(found):
        out.line((found.stat(), "dim"))


def _compare(session: Session, a: str | None, b: str | None) -> tuple[Commit | None, Commit, Diff]:
    repo = session.repo
    if a is not None and b is None and ".." in a:
        a, _, b = a.partition("..")
        a, b = a or "HEAD", b or "HEAD"
    if a is None:
        new = repo.resolve("HEAD")
        old = next(iter(repo.history.before(new)), None)
        return old, new, repo.changes(new)
    old, new = repo.resolve(a), repo.resolve("HEAD" if b is None else b)
    return old, new, repo.diff(old.root, new.root)


def _check_key(session: Session, key: str, old: Commit | None, new: Commit) -> None:
    """Raise InvalidInput for a key that neither side has: it is most likely misspelled."""
    if session.repo.entry(new.root, key) is None:
        where = f"{old.short} or {new.short}" if old is not None else new.short
        raise InvalidInput(f"no key {key!r} in {where}", candidates=session.similar_keys(new, key))


def _documents(session: Session, found: Diff, keys: list[str], stat: bool) -> Iterator[Document]:
    for key in keys:
        document = changes.document(found[key])
        if not stat and "error" not in document:
            document |= changes.detail_documents(found, key, session.out)
        yield document
