"""`vstate diff`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from vstate.errors import InvalidInput
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Diff
from vstate_cli import documents, render
from vstate_cli.session import Session, command, complete_key, complete_revision

_MOST_DETAILS = 200
_MOST_DETAILS_OF_ONE_KEY = 1000


@command(
    "diff",
    examples=["vstate diff", "vstate diff HEAD~5 --stat", "vstate diff main what-if --key plan"],
    json="{old, new: commit ids, old null before the first commit; changes: [{key, kind, old, new, details}]} "
    "where old and new are {type, size in bytes} or null, and details a list of {path, kind, old, new, note}; "
    "--stat leaves details out; error stands instead of them where a value cannot be read.",
)
@click.argument("a", required=False, shell_complete=complete_revision)
@click.argument("b", required=False, shell_complete=complete_revision)
@click.option("--key", metavar="KEY", shell_complete=complete_key, help="Only what changed in this key.")
@click.option("--stat", is_flag=True, help="Only the keys, with types and sizes, and the counts.")
def diff(session: Session, a: str | None, b: str | None, key: str | None, stat: bool) -> None:
    """Show what changed from revision A to revision B.

    Keys are + added, ~ modified or - removed, and below each what changed inside, by path. With A alone, from
    A to HEAD; without arguments, what the last commit changed (HEAD~1 to HEAD), since what a program has not
    committed is in that program only. A..B means the same as A B.
    """
    old, new, changes = _wanted(session, a, b)
    if key is not None and key not in changes:
        _check_key(session, key, old, new)
    selected = [*changes] if key is None else [key] * (key in changes)
    if session.json:
        before = {"old": None if old is None else old.id, "new": new.id}
        documents.write_array(
            session.out, _documents(session, changes, selected, stat), before=before, name="changes"
        )
        return
    _print(session, changes, selected, stat, _MOST_DETAILS if key is None else _MOST_DETAILS_OF_ONE_KEY)


def _wanted(session: Session, a: str | None, b: str | None) -> tuple[Commit | None, Commit, Diff]:
    repo = session.repo
    if a is not None and b is None and ".." in a:
        a, _, b = a.partition("..")
        a, b = a or "HEAD", b or "HEAD"
    if a is None:
        new = repo.resolve("HEAD")
        old = next(iter(repo.history.before(new)), None)
        return old, new, repo.changes(new)
    old, new = repo.resolve(a), repo.resolve("HEAD" if b is None else b)
    return old, new, repo.diff(old.tree, new.tree)


def _check_key(session: Session, key: str, old: Commit | None, new: Commit) -> None:
    """InvalidInput for a key that is on neither side: no change of it is most likely a misspelling."""
    if session.repo.entry(new.tree, key) is None:
        where = f"{old.short} or {new.short}" if old is not None else new.short
        raise InvalidInput(f"no key {key!r} in {where}", candidates=session.similar_keys(new, key))


def _documents(
    session: Session, changes: Diff, selected: list[str], stat: bool
) -> Iterator[documents.Document]:
    for key in selected:
        document = documents.change(changes[key])
        if not stat and "error" not in document:
            document |= documents.details(changes, key, session.out)
        yield document


def _print(session: Session, changes: Diff, selected: list[str], stat: bool, limit: int) -> None:
    out = session.out
    width = render.name_width(selected) if stat else 0
    for key in selected:
        out.line(*render.change_line(changes[key], width))
        if stat:
            continue
        out.lines(render.change_details(changes, changes[key], out, limit), indent="    ")
    if stat and len(selected) == len(changes):
        out.line((changes.stat(), "dim"))
