"""Life: the versions of a key, and the commits that made the parts of its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from time import monotonic
from typing import Any, Final

from vstate.display.cells import cut_text
from vstate.display.documents import brief_document
from vstate.display.views import part_text
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.recent import Recent
from vstate.repo.compare.details import Detail, details
from vstate.repo.compare.paths import Part
from vstate.repo.repository import Repository
from vstate.repo.search.blame import Version, counterparts
from vstate.values.budget import InertError
from vstate.values.entry import Entry
from vstate.viewer.parts import count_of, kind_of, text_of, type_of
from vstate.viewer.values import Values

_LARGEST_SHOWN: Final = 2**20  # bytes of a value that is shown beside its commit
_SECONDS: Final = 3.0  # for one page of versions
_BLAMING: Final = 5.0  # seconds for blame
_MOST_PARTS: Final = 1_000_000  # of a part that is compared
_MOST_CHANGES: Final = 3  # inside a part, beside their commit
_LONGEST_CHANGE: Final = 80  # characters
_CONTAINERS: Final = frozenset({"list", "dict", "set", "object", "table"})
_MOST_BLAMED: Final = 1000


def versions(
    repo: Repository, values: Values, start: Commit, key: str, path: str, *, before: Commit | None, limit: int
) -> dict[str, Any]:
    """The commits that changed the part of a value at `path`, newest first, as `GET /history` gives them.

    The part is followed as in blame: an item keeps its life when others are inserted before it. A page looks
    at `limit` versions of the key behind the commit `before`, or at those of three seconds; `next` has that
    commit for the next page, and the path of the part in the value before it. A part that cannot be read, or
    is too large to compare, changes with its key, and is counted as `unread`.
    """
    log = repo.log(start, key=key)
    if before is not None:  # from the start again: an older commit need not be an ancestor of this one
        for _ in takewhile(lambda commit: commit.oid != before.oid, log):
            pass
    parts = _Parts(repo, values, key, path)
    found: list[dict[str, Any]] = []
    looked, last, end = 0, before, monotonic() + _SECONDS
    for commit in log:
        if looked and (looked == limit or monotonic() > end):
            break
        looked += 1
        document = _version(parts, commit, end)
        last = commit
        if document is not None:
            found.append(document)
    else:
        last = None
    following = None if last is None else {"before": last.id, "path": parts.path_before(last)}
    return {"commits": found, "looked": looked, "unread": parts.unread, "next": following}


@dataclass(frozen=True, slots=True)
class _Part:
    """The part as one version has it. `content` is equal for equal parts, and None if there is none."""

    entry: Entry | None
    content: bytes | None
    value: object = None
    is_read: bool = False
    version: Version | None = None
    trail: Sequence[Part] | None = None


class _Parts:
    """A part in the versions of a key. Two are kept: a parent is often the next version."""

    def __init__(self, repo: Repository, values: Values, key: str, path: str) -> None:
        self.repo = repo
        self.unread = 0
        self._values = values
        self._key = key
        self._path = path
        self._paths: dict[bytes | None, str | None] = {}
        """The path of the part in the value of an entry; None if it is not there."""
        self._kept = Recent[bytes | None, _Part](2)

    def path_before(self, commit: Commit) -> str:
        """The path of the part in the value of the commit's parent; that of the first version if unknown."""
        parent = next(iter(self.repo.history.before(commit)), None)
        return (None if parent is None else self._paths.get(self._data(parent))) or self._path

    def of(self, commit: Commit, after: _Part | None = None) -> _Part:
        """The part as the commit has it; `after` is the part as the commit behind it has it."""
        data = self._data(commit)
        return self._kept.get(data) or self._kept.setdefault(data, self._read(data, after))

    def _data(self, commit: Commit) -> bytes | None:
        return tree.lookup(self.repo.objects.node, commit.root, self._key)

    def _read(self, data: bytes | None, after: _Part | None) -> _Part:
        if data is None:
            return _Part(None, None)
        entry = self.repo.parse_entry(self._key, data)
        if not self._path and entry.size > _LARGEST_SHOWN:
            return _Part(entry, data)
        try:
            version = Version(self._values.read(self._key, data))
            version.prints.left = _MOST_PARTS
            if data not in self._paths and after is not None and after.version and after.trail is not None:
                trail = counterparts(after.trail, after.version, version)
                self._paths[data] = (
                    None if trail is None else "".join(part.step for part in trail).removeprefix(".")
                )
            path = self._paths.setdefault(data, self._path)
            if path is None:
                return _Part(entry, None)
            trail = version.find(path)
            value = version.at(trail)
            content = version.prints.of(value) if self._path else data
            return _Part(entry, content, value, is_read=True, version=version, trail=trail)
        except NotFound:
            return _Part(entry, None)
        except (InertError, InvalidInput, CorruptObject):
            self.unread += 1
            return _Part(entry, data)


def _version(parts: _Parts, commit: Commit, end: float) -> dict[str, Any] | None:
    """The commit as a version of the part; None if a parent has the same part, of those read until `end`."""
    part, before = parts.of(commit), _Part(None, None)
    for number, parent in enumerate(parts.repo.history.before(commit)):
        if number and monotonic() > end:
            break
        earlier = parts.of(parent, part)
        if earlier.content == part.content:
            return None
        if before.content is None:
            before = earlier
    if part.content is before.content is None:
        return None
    entry = None if part.content is None else part.entry
    return {
        **brief_document(commit),
        "kind": "removed" if entry is None else "added" if before.content is None else "modified",
        "type": None if entry is None else type_of(part.value) if part.is_read else entry.type,
        "size": None if entry is None else entry.size,
        "text": _text(before, part),
        "number": _number(part),
    }


def _text(before: _Part, part: _Part) -> str | None:
    """The part in one line, or a line for each change inside it; None if it is absent or was not read."""
    if before.is_read and part.is_read and kind_of(part.value) in _CONTAINERS:
        try:
            found = details(before.value, part.value, limit=_MOST_CHANGES + 1)
        except (InertError, InvalidInput):
            found = []
        if found and all(detail.path for detail in found):
            lines = [cut_text(_told(detail), _LONGEST_CHANGE) for detail in found[:_MOST_CHANGES]]
            return "\n".join([*lines, "…"] if len(found) > _MOST_CHANGES else lines)
    return text_of(part.value) if part.is_read else None


def _told(detail: Detail) -> str:
    """A change in one line: a message that came or went in words."""
    words = part_text(detail.new if detail.kind == "added" else detail.old)
    if detail.kind == "modified" or words is None:
        return str(detail)
    return f"{'+' if detail.kind == 'added' else '-'} {detail.path}: {words}".replace("\n", "↵")


def _number(part: _Part) -> float | None:
    value = part.value
    if not part.is_read or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


def blame_document(repo: Repository, start: Commit, key: str, path: str) -> dict[str, Any]:
    """The parts inside the one at `path`, each with the commit that last changed it, as `GET /blame` does."""
    try:
        found = repo.blame_items(start, key, path, seconds=_BLAMING)
    except (InertError, InvalidInput) as error:
        return {"parts": [], "more": 0, "error": str(error)}
    parts = [
        {
            "path": each.path,
            "line": each.line,
            "kind": kind_of(each.value),
            "count": count_of(each.value),
            "text": text_of(each.value),
            "commit": brief_document(each.commit),
        }
        for each in found[:_MOST_BLAMED]
    ]
    return {"parts": parts, "more": max(len(found) - _MOST_BLAMED, 0)}
