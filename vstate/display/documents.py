"""Documents: commits, entries and changes as JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Change, Diff
from vstate.values.entry import Entry
from vstate.values.plain import plain

Document = dict[str, Any]


def entry_document(entry: Entry) -> Document:
    """The type of a value and its size in bytes; the time at which it expires, if it does."""
    document: Document = {"type": entry.type, "size": entry.size}
    if entry.expiry is not None:
        document["expires"] = entry.expiry.moment.isoformat()
    return document


def keys_document(diff: Diff) -> Document:
    """The changed keys by kind."""
    return {"added": diff.added, "modified": diff.modified, "removed": diff.removed}


def change_document(change: Change) -> Document:
    """A changed key with types and sizes in bytes. A side that does not exist is null."""
    try:
        old, new = change.old_entry, change.new_entry
    except ValueError as error:
        return {"key": change.key, "kind": change.kind, "old": None, "new": None, "error": str(error)}
    return {"key": change.key, "kind": change.kind, "old": _side(old), "new": _side(new)}


def _side(entry: Entry | None) -> Document | None:
    return None if entry is None else entry_document(entry)


def commit_document(commit: Commit, refs: Sequence[str] = (), *, shallow: bool = False) -> Document:
    """A commit without its events and changes. `shallow` is a member only if it is true."""
    members: Document = {
        "id": commit.id,
        "parents": [*commit.parents],
        "tree": commit.tree,
        "time": commit.time.isoformat(),
        "message": commit.message,
        "info": plain(commit.info),
        "refs": sorted(refs),
    }
    return members | {"shallow": True} if shallow else members


def brief_document(commit: Commit) -> Document:
    """A commit in a line of a list: its id, its time, and the first line of its message."""
    return {
        "id": commit.id,
        "short": commit.short,
        "time": commit.time.isoformat(),
        "message": commit.subject,
    }


def event_documents(commit: Commit) -> list[Document]:
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
