"""`vstate ls`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import click
from rich.cells import cell_len

from vstate.errors import CorruptObject, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.values.entry import Entry
from vstate.values.inspection import size_text
from vstate_cli import documents
from vstate_cli.output import safe
from vstate_cli.session import Session, command, complete_key, complete_revision_or_key

_ALIGNED = 1000  # keys, of which -l aligns the columns together
_WIDEST_TYPE = 30

Row = tuple[str, Entry | None]


@command(
    "ls",
    examples=["vstate ls", "vstate ls -l", "vstate ls notes/", "vstate ls HEAD~10 notes/ -l"],
    json="a list of {key, type, size in bytes}, sorted by key; type and size are null where they cannot be read. "
    "A key that expires has expires, and ttl in seconds if a change begins the time anew.",
)
@click.argument("rev", required=False, shell_complete=complete_revision_or_key)
@click.argument("prefix", required=False, shell_complete=complete_key)
@click.option(
    "-l", "long", is_flag=True, help="With the size and the type of each value, and when its key expires."
)
def ls(session: Session, rev: str | None, prefix: str | None, long: bool) -> None:
    """List the keys, all or those with a prefix.

    The keys at REV (HEAD) that begin with PREFIX, sorted. A single argument that is no revision is a prefix. Keys
    that have expired are shown only where REV is given: it holds them.
    """
    commit, prefix, as_committed = _wanted(session, rev, prefix)
    rows = _rows(session, commit, prefix)
    if not as_committed:
        rows = ((key, entry) for key, entry in rows if entry is None or not _is_over(entry))
    if session.json:
        documents.write_array(session.out, (_document(row) for row in rows))
    elif long:
        _print_long(session, rows)
    else:
        for key, _ in rows:
            session.out.line(safe(key))


def _wanted(session: Session, rev: str | None, prefix: str | None) -> tuple[Commit, str, bool]:
    """The commit, the prefix, and whether that commit itself is asked for."""
    if rev is None:
        return session.repo.resolve("HEAD"), "", False
    if prefix is not None:
        return session.repo.resolve(rev), prefix, True
    found = session.try_resolve(rev)
    if isinstance(found, Commit):
        return found, "", True
    head = session.try_resolve("HEAD")
    if not isinstance(head, Commit):
        raise found
    if next(tree.scan(session.repo.objects.node, head.tree, rev), None) is not None:
        return head, rev, False
    raise NotFound(f"{found}; and no key of HEAD begins so", name=rev)


def _rows(session: Session, commit: Commit, prefix: str) -> Iterator[Row]:
    for key, data in tree.scan(session.repo.objects.node, commit.tree, prefix):
        try:
            yield key, session.repo.parse_entry(key, data)
        except CorruptObject:
            yield key, None


def _document(row: Row) -> documents.Document:
    key, entry = row
    return {"key": key, "type": None, "size": None} if entry is None else documents.entry(key, entry)


def _print_long(session: Session, rows: Iterable[Row]) -> None:
    rows = iter(rows)
    while batch := list(islice(rows, _ALIGNED)):
        types = ["?" if entry is None else safe(entry.type) for _, entry in batch]
        width = min(max(map(cell_len, types)), _WIDEST_TYPE)
        for (key, entry), kind in zip(batch, types, strict=True):
            size = "?" if entry is None else size_text(entry.size)
            gap = " " * max(width - cell_len(kind), 0)
            session.out.line((f"{size:>9}  {kind}{gap}  ", "dim"), safe(key), (_expiry(entry), "dim"))


def _is_over(entry: Entry) -> bool:
    return entry.expiry is not None and entry.expiry.is_over


def _expiry(entry: Entry | None) -> str:
    if entry is None or entry.expiry is None:
        return ""
    return f"  {'expired' if entry.expiry.is_over else 'expires'} {entry.expiry}"
