"""Comparing: the changes between two commits, by key, and inside a key by path."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, Literal

from vstate.display.chats import ChatView, message_text
from vstate.display.documents import change_document
from vstate.display.texts import bytes_changes, text_hunks
from vstate.display.views import media_of, view_of
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.details import Detail, details, kind_change
from vstate.repo.compare.diff import counts_by_kind
from vstate.repo.repository import Repository
from vstate.values.budget import InertError
from vstate.viewer.parts import part_document
from vstate.viewer.values import Values, is_picture

_MOST_CHANGES: Final = 100_000  # keys
_MOST_DETAILS: Final = 500  # inside one key
_LONGEST_MESSAGE: Final = 2000  # characters
_ITEM: Final = re.compile(r"\[\d+\]")
_MOST_COMPARED: Final = 4_000_000  # characters of all texts of one key that are compared by line


def change_page(
    repo: Repository, old: Commit | None, new: Commit, prefix: str, *, first: int, limit: int
) -> dict[str, Any]:
    """The changed keys [first, first + limit), as `GET /diff` gives them."""
    before = None if old is None else old.root
    found = [*islice(tree.diff(repo.objects.nodes_once, before, new.root), _MOST_CHANGES)]
    diff = repo.make_diff(change for change in found if change.key.startswith(prefix))
    page = [change_document(diff[key]) for key in islice(diff, first, first + limit)]
    return {
        "changes": page,
        "first": first,
        "next": first + limit if first + limit < len(diff) else None,
        "counts": counts_by_kind(diff),
    }


def key_changes(
    repo: Repository, values: Values, old: Commit | None, new: Commit, key: str, *, limit: int = _MOST_DETAILS
) -> dict[str, Any]:
    """The first changes inside the value of a key by path. NotFound if neither commit has the key."""
    sides = [
        None if commit is None else tree.lookup(repo.objects.node, commit.root, key) for commit in (old, new)
    ]
    if sides == [None, None]:
        raise NotFound(f"neither commit has the key {key!r}", name=key)
    kind: Literal["added", "removed", "modified"] = (
        "added" if sides[0] is None else "removed" if sides[1] is None else "modified"
    )
    answer: dict[str, Any] = {"key": key, "kind": kind, "details": [], "more": False}
    if sides[0] == sides[1]:
        return answer | {"kind": None}
    try:
        before, after = (None if data is None else values.read(key, data) for data in sides)
    except (InertError, InvalidInput, CorruptObject) as error:
        return answer | {"error": str(error)}
    whole = before if kind == "removed" else after
    is_chat = isinstance(view_of(whole), ChatView)
    if kind == "modified":
        entries = [repo.parse_entry(key, data) for data in sides if data is not None]
        found = [*kind_change(*entries), *details(before, after, limit=limit + 1)]
    elif is_chat and isinstance(whole, list | tuple):  # message by message
        empty: list[object] = []
        sides_of = (empty, [*whole]) if kind == "added" else ([*whole], empty)
        found = details(*sides_of, limit=limit + 1)
    elif isinstance(whole, str) and "\n" in whole:  # line by line
        found = [Detail("", "modified", before or "", after or "")]
    else:
        found = [Detail("", kind, before, after)]
    left = _MOST_COMPARED
    documents = []
    for detail in found[:limit]:
        size = _size(detail)
        document = _document(detail, is_compared=0 < size <= left, is_chat=is_chat)
        documents.append(document if kind == "modified" else document | {"kind": kind})
        left -= size if size <= left else 0
    return answer | {"details": documents, "more": len(found) > limit}


def _document(detail: Detail, *, is_compared: bool, is_chat: bool) -> dict[str, Any]:
    old, new = detail.old, detail.new
    side = _message if is_chat and _ITEM.fullmatch(detail.path) else part_document
    document: dict[str, Any] = {
        "path": detail.path,
        "kind": detail.kind,
        "note": detail.note,
        "old": None if detail.kind == "added" else side(old, detail.path),
        "new": None if detail.kind == "removed" else side(new, detail.path),
    }
    if is_compared and isinstance(old, str) and isinstance(new, str):
        document["hunks"] = [asdict(hunk) for hunk in text_hunks(old, new)]
    elif is_compared and isinstance(old, bytes | bytearray) and isinstance(new, bytes | bytearray):
        document["bytes"] = [asdict(change) for change in bytes_changes(bytes(old), bytes(new))]
    sides = [side for side in (old, new) if isinstance(side, bytes)]
    if any(is_picture(media_of(side[:12]), len(side)) for side in sides):
        document["pictures"] = True
    return document


def _message(value: object, path: str) -> dict[str, Any]:
    """A message of a conversation as a part: the role and what was said, and the calls of tools."""
    part = part_document(value, path)
    text = message_text(value, _LONGEST_MESSAGE)
    return part if text is None else part | {"kind": "message", "text": text}


def _size(detail: Detail) -> int:
    """The length of two texts, or of two strings of bytes, that are compared; else 0."""
    old, new = detail.old, detail.new
    for kind in (str, bytes | bytearray):
        if detail.kind == "modified" and isinstance(old, kind) and isinstance(new, kind):
            return len(old) + len(new)
    return 0
