"""What `--json` prints: documents of plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vstate.errors import InvalidInput, StorageError
from vstate.objects.commit import Commit
from vstate.repo.compare.details import Detail
from vstate.repo.compare.diff import Change, Diff
from vstate.values.entry import Entry
from vstate.values.inert import InertError, plain
from vstate_cli.output import Output

_DETAIL_NODES = 10_000  # parts of a value in a detail; a value by itself has the default of `plain`
_ALL_NODES = 100_000  # parts of all the values in the details of a key
_FEWEST_NODES = 50
_MOST_DETAILS = 1000  # inside one key

Document = dict[str, Any]


def write(out: Output, document: Any, *, indent: int | None = 2) -> None:
    """Write a document. It is ASCII: whatever a text holds, it cannot drive a terminal."""
    # Piece by piece: the whole text beside the value could be more memory than there is.
    for piece in json.JSONEncoder(indent=indent).iterencode(document):
        out.raw(piece)
    out.raw("\n")


def write_array(
    out: Output, items: Iterable[Document], *, before: Document | None = None, name: str = ""
) -> None:
    """Write an array as its items come, or a document whose last member, `name`, is that array."""
    if before is None:
        out.raw("[")
    else:
        start = json.dumps(before)[:-1]
        out.raw(f"{start}{', ' if before else ''}{json.dumps(name)}: [")
    separator = "\n"
    for item in items:
        out.raw(f"{separator}{json.dumps(item)}")
        separator = ",\n"
    out.raw("\n]" + ("" if before is None else "}") + "\n")


def commit(commit: Commit, refs: Sequence[str] = (), *, shallow: bool = False) -> Document:
    """A commit without its events and changes; with `shallow` true only where parents of it were cut off."""
    document = {
        "id": commit.id,
        "parents": [str(parent) for parent in commit.parents],
        "tree": None if commit.tree is None else str(commit.tree),
        "time": commit.time.isoformat(),
        "message": commit.message,
        "info": plain(commit.info),
        "refs": sorted(refs),
    }
    return document | {"shallow": True} if shallow else document


def events(commit: Commit) -> list[Document]:
    """The events of a commit."""
    return [
        {
            "kind": event.kind,
            "time": event.time.isoformat(),
            "namespace": event.namespace,
            "data": plain(event.data),
        }
        for event in commit.events
    ]


def keys(diff: Diff) -> Document:
    """The changed keys by kind."""
    return {"added": diff.added, "modified": diff.modified, "removed": diff.removed}


def change(change: Change) -> Document:
    """A changed key with types and sizes in bytes, null where there is none."""
    try:
        old, new = change.old_entry, change.new_entry
    except ValueError as error:
        return {"key": change.key, "kind": change.kind, "old": None, "new": None, "error": str(error)}
    return {"key": change.key, "kind": change.kind, "old": _side(old), "new": _side(new)}


def details(diff: Diff, key: str, out: Output) -> Document:
    """What changed inside a key, or the error that reading its values gave."""
    try:
        found = diff.details(key, limit=_MOST_DETAILS)
    except UNREADABLE as error:
        return {"error": str(error)}
    except StorageError as error:
        out.damage = out.damage or error
        return {"error": str(error)}
    nodes = max(min(_ALL_NODES // (2 * len(found) or 1), _DETAIL_NODES), _FEWEST_NODES)
    return {"details": [_detail(detail, nodes) for detail in found]}


def _detail(detail: Detail, nodes: int) -> Document:
    document: Document = {"path": detail.path, "kind": detail.kind}
    if detail.kind != "added":
        document["old"] = plain(detail.old, max_nodes=nodes)
    if detail.kind != "removed":
        document["new"] = plain(detail.new, max_nodes=nodes)
    if detail.note:
        document["note"] = detail.note
    return document


def entry(key: str, entry: Entry) -> Document:
    """A key with its value's type and size in bytes, and when it expires, if it does."""
    return {"key": key, **_described(entry)}


def _side(entry: Entry | None) -> Mapping[str, Any] | None:
    return None if entry is None else _described(entry)


def _described(entry: Entry) -> Document:
    document: Document = {"type": entry.type, "size": entry.size}
    if entry.expiry is not None:
        document["expires"] = entry.expiry.moment.isoformat()
        if entry.expiry.ttl:
            document["ttl"] = entry.expiry.ttl / 1_000_000
    return document


UNREADABLE = (InertError, InvalidInput)
"""What `Repository.inspect` raises for a value that is whole, but makes no sense or is too large to show."""
