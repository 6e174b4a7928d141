"""`vstate ls`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import click
from rich.cells import cell_len

from vstate.display.documents import entry_document
from vstate.errors import CorruptObject, NotFound
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.values.entry import Entry
from vstate.values.inspection import size_text
from vstate_cli.output import Document, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_key, complete_revision_or_key

_ALIGNED = 1000  # keys whose columns -l aligns together
_WIDEST_TYPE = 30

KeyEntry = tuple[str, Entry | None]
"""A key and its entry, None if that cannot be read."""


@command(
    "ls",
    paged=True,
    reads=True,
    examples=["vstate ls", "vstate ls -l", "vstate ls notes/", "vstate ls HEAD~10 notes/ -l"],
    json="a list of {key, type, size}, sorted by key. size is in bytes; type and size are null if the "
    "entry cannot be read. If the key expires, expires is the time.",
)
@click.argument("rev", required=False, shell_complete=complete_revision_or_key)
@click.argument("prefix", required=False, shell_complete=complete_key)
@click.option(
    "-l", "long", is_flag=True, help="Show the size and type of each value, and when its key expires."
)
@click.option("-a", "--all", "everything", is_flag=True, help="List keys that have expired, too.")
def ls(session: Session, rev: str | None, prefix: str | None, long: bool, everything: bool) -> None:
    """List keys.

    List the keys at REV (default: HEAD) that begin with PREFIX, sorted. A single argument that is no
    revision is a PREFIX. With REV, expired keys are listed too, because the commit holds them.
    """
    commit, prefix, as_committed = _find(session, rev, prefix)
    entries = _entries(session, commit, prefix, None if as_committed or everything else expiry.now())
    if session.json:
        session.out.json_array(_document(key, entry) for key, entry in entries)
    elif long:
        _print_long(session, entries)
    else:
        for key, _ in entries:
            session.out.line(safe(key))


def _find(session: Session, rev: str | None, prefix: str | None) -> tuple[Commit, str, bool]:
    """The commit, the prefix, and whether the arguments name the commit."""
    if rev is None:
        return session.repo.resolve("HEAD"), "", False
    if prefix is not None:
        return session.repo.resolve(rev), prefix, True
    commit, error = session.resolve_or_head(rev)
    if error is None:
        return commit, "", True
    if next(tree.scan(session.repo.objects.nodes, commit.root, rev), None) is not None:
        return commit, rev, False
    hint = ": PREFIX has no wildcards" if "*" in rev else ""
    raise NotFound(f"{error}; and no key of HEAD begins with it{hint}", name=rev)


def _entries(session: Session, commit: Commit, prefix: str, at: int | None) -> Iterator[KeyEntry]:
    for key, data in tree.scan(session.repo.objects.nodes, commit.root, prefix, at=at):
        try:
            yield key, session.repo.parse_entry(key, data)
        except CorruptObject:
            yield key, None


def _document(key: str, entry: Entry | None) -> Document:
    return {"key": key, **({"type": None, "size": None} if entry is None else entry_document(entry))}


def _print_long(session: Session, entries: Iterable[KeyEntry]) -> None:
    entries = iter(entries)
    while batch := list(islice(entries, _ALIGNED)):
        types = ["?" if entry is None else safe(entry.type) for _, entry in batch]
        width = min(max(map(cell_len, types)), _WIDEST_TYPE)
        for (key, entry), kind in zip(batch, types, strict=True):
            size = "?" if entry is None else size_text(entry.size)
            session.out.line(
                (f"{size:>9}  {padded(kind, width)}  ", "dim"), safe(key), (_expiry(entry), "dim")
            )


def _expiry(entry: Entry | None) -> str:
    if entry is None or entry.expiry is None:
        return ""
    return f"  {'expired' if entry.expiry.is_over else 'expires'} {entry.expiry}"
