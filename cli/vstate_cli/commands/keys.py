"""Keys: `vstate ls` lists them, and `vstate grep` searches them and their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice

import click
from rich.cells import cell_len

from vstate.display.documents import entry_document
from vstate.errors import CorruptObject, NotFound
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.plural import counted
from vstate.repo.search.texts import find_text
from vstate.values.entry import Entry
from vstate.values.inspection import size_text, type_text
from vstate_cli.output import Document, Line, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import KEY, REV, REV_OR_KEY, Count

_ALIGNED = 1000  # keys whose columns -l aligns together
_WIDEST_TYPE = 30
_WIDEST_NAME = 200


@command(
    "ls",
    paged=True,
    reads=True,
    examples=["vstate ls", "vstate ls -l", "vstate ls notes/", "vstate ls HEAD~10 notes/ -l"],
    json="a list of {key, type, size}, sorted by key. size is in bytes; type and size are null if the "
    "entry cannot be read. If the key expires, expires is the time.",
)
@click.argument("rev", required=False, type=REV_OR_KEY)
@click.argument("prefix", required=False, type=KEY)
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
    session.answer((_document(*each) for each in entries), (_long_lines if long else _lines)(entries))


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


def _entries(
    session: Session, commit: Commit, prefix: str, at: int | None
) -> Iterator[tuple[str, Entry | None]]:
    """Each key with its entry, None if the entry cannot be read."""
    for key, data in tree.scan(session.repo.objects.nodes, commit.root, prefix, at=at):
        try:
            yield key, session.repo.parse_entry(key, data)
        except CorruptObject:
            yield key, None


def _document(key: str, entry: Entry | None) -> Document:
    return {"key": key, **({"type": None, "size": None} if entry is None else entry_document(entry))}


def _lines(entries: Iterator[tuple[str, Entry | None]]) -> Iterator[Line]:
    for key, _ in entries:
        yield [safe(key)]


def _long_lines(entries: Iterator[tuple[str, Entry | None]]) -> Iterator[Line]:
    while batch := list(islice(entries, _ALIGNED)):
        types = ["?" if entry is None else safe(type_text(entry)) for _, entry in batch]
        width = min(max(map(cell_len, types)), _WIDEST_TYPE)
        for (key, entry), kind in zip(batch, types, strict=True):
            size = "?" if entry is None else size_text(entry.size)
            yield [(f"{size:>9}  {padded(kind, width)}  ", "dim"), safe(key), (_expiry(entry), "dim")]


def _expiry(entry: Entry | None) -> str:
    if entry is None or entry.expiry is None:
        return ""
    return f"  {'expired' if entry.expiry.is_over else 'expires'} {entry.expiry}"


@command(
    "grep",
    paged=True,
    reads=True,
    examples=["vstate grep 'lake hotel'", "vstate grep timeout main~20 notes/"],
    json="{places: [{key, path, excerpt}], keys, unread, is_complete}. path is null if the key itself has "
    "the text; keys are the searched ones, unread those among them that cannot be read to the end.",
)
@click.argument("text")
@click.argument("rev", default="HEAD", type=REV)
@click.argument("prefix", default="", type=KEY)
@click.option("-n", "limit", type=Count(min=1), default=200, show_default=True, help="Show at most N places.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
    help="Stop the search after this time.",
)  # fmt: skip
def grep(session: Session, text: str, rev: str, prefix: str, limit: int, timeout: float) -> None:
    """Find TEXT in the keys and values at REV, in upper or lower case.

    Only keys that begin with PREFIX are searched. Each line has a key, a path and the text. To find
    the commits that brought a text or took it out, use `vstate log -S TEXT`.
    """
    repo = session.repo
    found = find_text(repo, repo.resolve(rev), text, prefix, most=limit, seconds=timeout)
    places: list[Document] = []
    lines: list[Line] = []
    for place in found.places:
        path = " (key)" if place.path is None else f" {safe(place.path, _WIDEST_NAME)}"
        lines.append([(safe(place.key, _WIDEST_NAME), "green"), (path, "cyan"), f": {safe(place.excerpt)}"])
        places.append(asdict(place))
    numbers = {"keys": found.keys, "unread": found.unread, "is_complete": found.is_complete}
    session.answer({"places": places, **numbers}, lines)
    searched = f"{counted(len(found.places), 'place')} in {counted(found.keys, 'key')}"
    if found.unread:
        searched += f"; {counted(found.unread, 'value')} could not be read to the end"
    if not found.is_complete:
        searched += "; there may be more: give a prefix, or a longer text"
    if not session.json:
        session.out.aside([[(searched, "dim")]])
