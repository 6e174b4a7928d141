"""Life: the versions of a key, and the commits that made the parts of its value."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Any, Final

from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import find_part
from vstate.repo.repository import Repository
from vstate.values.inert import InertError
from vstate.viewer.parts import text_of
from vstate.viewer.values import Values

__all__ = ["blame_document", "versions"]

_LARGEST_NUMBERED: Final = 2**20  # bytes of a value in which a number is looked for
_MOST_BLAMED: Final = 1000
_LONGEST_LINE: Final = 300


def versions(
    repo: Repository, values: Values, start: Commit, key: str, path: str, *, before: Commit | None, limit: int
) -> dict[str, Any]:
    """The commits that changed the key, newest first, as `GET /history` gives them.

    Each has the number at `path`, if one is there. The page begins behind the commit `before`.
    """
    log = repo.log(start, key=key)
    if before is not None:  # from the start again: an older commit need not be an ancestor of this one
        for _ in takewhile(lambda commit: commit.oid != before.oid, log):
            pass
    found = [*islice(log, limit + 1)]
    documents = [_version(repo, values, commit, key, path) for commit in found[:limit]]
    return {"commits": documents, "next": found[limit - 1].id if len(found) > limit else None}


def _version(repo: Repository, values: Values, commit: Commit, key: str, path: str) -> dict[str, Any]:
    data = tree.lookup(repo.objects.node, commit.root, key)
    parents = repo.history.before(commit)
    had = any(tree.lookup(repo.objects.node, parent.root, key) is not None for parent in parents)
    entry = None if data is None else repo.parse_entry(key, data)
    return {
        "id": commit.id,
        "short": commit.short,
        "time": commit.time.isoformat(),
        "message": commit.message.strip().split("\n", 1)[0][:_LONGEST_LINE],
        "kind": "removed" if data is None else "modified" if had else "added",
        "type": None if entry is None else entry.type,
        "size": None if entry is None else entry.size,
        "number": None if data is None or entry is None else _number(values, key, data, entry.size, path),
    }


def _number(values: Values, key: str, data: bytes, size: int, path: str) -> float | None:
    if size > _LARGEST_NUMBERED:
        return None
    try:
        value = values.read(key, data)
        trail = find_part(value, path, Fingerprints())
    except (InertError, InvalidInput, NotFound, CorruptObject):
        return None
    found = trail[-1].value if trail else value
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and abs(found) < 1e300 else None  # type: ignore[arg-type]


def blame_document(repo: Repository, start: Commit, key: str) -> dict[str, Any]:
    """The parts of a key's value, each with the commit that last changed it, as `GET /blame` gives them."""
    try:
        found = repo.blame_items(start, key)
    except (InertError, InvalidInput) as error:
        return {"parts": [], "more": 0, "error": str(error)}
    parts = [
        {
            "path": each.path,
            "line": each.line,
            "text": text_of(each.value),
            "commit": {
                "id": each.commit.id,
                "short": each.commit.short,
                "time": each.commit.time.isoformat(),
                "message": each.commit.message.strip().split("\n", 1)[0][:_LONGEST_LINE],
            },
        }
        for each in found[:_MOST_BLAMED]
    ]
    return {"parts": parts, "more": max(len(found) - _MOST_BLAMED, 0)}
