"""Life: the versions of a key, and the commits that made the parts of its value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from time import monotonic
from typing import Any, Final

from vstate.display.documents import subject
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import find_part
from vstate.repo.repository import Repository
from vstate.values.inert import InertError
from vstate.viewer.parts import kind_of, text_of, type_of
from vstate.viewer.values import Values

__all__ = ["blame_document", "versions"]

_LARGEST_SHOWN: Final = 2**20  # bytes of a value that is shown beside its commit
_SECONDS: Final = 3.0  # for one page of versions
_MOST_PARTS: Final = 1_000_000  # of a part that is compared
_MOST_BLAMED: Final = 1000


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part as one commit has it. `content` is equal for equal parts, and None if there is none."""

    content: bytes | None
    value: object = None
    is_read: bool = False


def versions(
    repo: Repository, values: Values, start: Commit, key: str, path: str, *, before: Commit | None, limit: int
) -> dict[str, Any]:
    """The commits that changed the part of a value at `path`, newest first, as `GET /history` gives them.

    A page looks at `limit` versions of the key behind the commit `before`, or at those of three seconds.
    """
    log = repo.log(start, key=key)
    if before is not None:  # from the start again: an older commit need not be an ancestor of this one
        for _ in takewhile(lambda commit: commit.oid != before.oid, log):
            pass
    found: list[dict[str, Any]] = []
    looked, last, end = 0, None, monotonic() + _SECONDS
    for commit in log:
        if last is not None and (looked == limit or monotonic() > end):
            return {"commits": found, "looked": looked, "next": last.id}
        looked, last = looked + 1, commit
        data = tree.lookup(repo.objects.node, commit.root, key)
        part = _seen(repo, values, key, data, path)
        parents = [tree.lookup(repo.objects.node, parent.root, key) for parent in repo.history.before(commit)]
        earlier = [_seen(repo, values, key, each, path).content if path else each for each in parents]
        if part.content not in (earlier or [None]):
            had = any(each is not None for each in earlier)
            kind = "removed" if part.content is None else "modified" if had else "added"
            found.append(_version(repo, commit, key, data, part) | {"kind": kind})
    return {"commits": found, "looked": looked, "next": None}


def _seen(repo: Repository, values: Values, key: str, data: bytes | None, path: str) -> _Seen:
    if data is None or (not path and repo.parse_entry(key, data).size > _LARGEST_SHOWN):
        return _Seen(data)
    prints = Fingerprints()
    prints.left = _MOST_PARTS
    try:
        value = values.read(key, data)
        trail = find_part(value, path, prints)
        found = trail[-1].value if trail else value
        return _Seen(prints.of(found) if path else data, found, is_read=True)
    except NotFound:
        return _Seen(None)
    except (InertError, InvalidInput, CorruptObject):
        return _Seen(data)


def _version(repo: Repository, commit: Commit, key: str, data: bytes | None, part: _Seen) -> dict[str, Any]:
    entry = None if data is None or part.content is None else repo.parse_entry(key, data)
    is_number = part.is_read and kind_of(part.value) == "number" and not isinstance(part.value, complex)
    return {
        "id": commit.id,
        "short": commit.short,
        "time": commit.time.isoformat(),
        "message": subject(commit),
        "type": None if entry is None else type_of(part.value) if part.is_read else entry.type,
        "size": None if entry is None else entry.size,
        "text": text_of(part.value) if part.is_read else None,
        "number": float(part.value) if is_number and abs(part.value) < 1e300 else None,  # type: ignore[arg-type] # a number
    }


def blame_document(repo: Repository, start: Commit, key: str, path: str) -> dict[str, Any]:
    """The parts inside the one at `path`, each with the commit that last changed it, as `GET /blame` does."""
    try:
        found = repo.blame_items(start, key, path)
    except (InertError, InvalidInput) as error:
        return {"parts": [], "more": 0, "error": str(error)}
    parts = [
        {
            "path": each.path,
            "line": each.line,
            "kind": kind_of(each.value),
            "text": text_of(each.value),
            "commit": {
                "id": each.commit.id,
                "short": each.commit.short,
                "time": each.commit.time.isoformat(),
                "message": subject(each.commit),
            },
        }
        for each in found[:_MOST_BLAMED]
    ]
    return {"parts": parts, "more": max(len(found) - _MOST_BLAMED, 0)}
