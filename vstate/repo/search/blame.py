"""Blame: which commit last changed a key, a part of its value, or each of its elements."""

from __future__ import annotations

import math
import operator
import pickletools
import shlex
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any, Final, TypeGuard

from vstate.arguments import check_text
from vstate.errors import InvalidInput, KeyNotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.recent import Recent
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import (
    SEQUENCES,
    Part,
    find_part,
    kind_of,
    part_like,
    parts_of,
    sequence_of,
)
from vstate.repo.core import Core
from vstate.repo.walk import NewestFirst
from vstate.values.alignment import Aligner
from vstate.values.budget import InertError
from vstate.values.entry import PICKLE, Reader, read_parts
from vstate.values.inspection import INSPECT_BYTES

_MOST_STEPS: Final = 500_000  # to align two versions of a list: some tenths of a second
_SEARCHED: Final = 10_000  # commits that are searched for the one that removed a key
_MOST_ELEMENTS: Final = 300_000  # of one value: some 100 MB with their fingerprints
_MOST_PARTS: Final = 10_000_000  # inside the elements of one value; 2 kB of an array count as one
_BATCH: Final = 10_000  # elements that are read between two looks at the clock
_VERSIONS: Final = 3  # values of one key that are in memory at once

OnCommit = Callable[[int], None]
"""Called after each visited commit with the number of visited commits."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """One element of a value and the commit that last changed it.

    `path` leads to the element, as `details` prints paths; it is "" for the whole value. For a line of a
    text, it leads to the text, and `line` is the number of the line, from 1. `value` is the element as
    `inert.read` returns it, a line without its end.
    """

    path: str
    commit: Commit
    value: object
    line: int | None = None


def blame(
    repo: Core, start: Commit, key: str, path: str | None = None, *, progress: OnCommit | None = None
) -> Commit:
    """As `Repository.blame` promises."""
    walk = _Walk(repo, start, key, progress)
    at, data = start, walk.data
    trail = None if path is None else walk.version(data).find(check_text("path", path))
    while True:
        walk.count()
        for parent in repo.history.before(at):
            before = walk.entry(parent)
            if before == data:
                at = parent
                break
            if trail is None or before is None:
                continue
            same = _unchanged(trail, walk.version(data), walk.try_version(before))
            if same is not None:
                at, data, trail = parent, before, same
                break
        else:
            return at


def blame_items(
    repo: Core,
    start: Commit,
    key: str,
    path: str = "",
    *,
    progress: OnCommit | None = None,
    seconds: float | None = None,
) -> list[Blamed]:
    """As `Repository.blame_items` promises."""
    walk = _Walk(repo, start, key, progress, seconds)
    first = walk.version(walk.data)
    trail = first.find(check_text("path", path))
    elements = first.elements(trail)
    if not elements:
        commit = blame(repo, start, key, path or None, progress=progress)
        return [Blamed(path, commit, first.at(trail))]
    found: dict[int, Commit] = {}
    # The entry of each commit, and the elements that it, or a commit before it, last changed, by the way to
    # them in its value. A commit leaves the queue after all its children.
    everything = {number: [number] for number in range(len(elements))}
    pending: dict[ObjectId, tuple[bytes, dict[_Way, tuple[_Trail, _Open]]]] = {
        start.oid: (walk.data, {_way(trail): (trail, everything)})
    }
    queue = NewestFirst()
    queue.push(start)
    for commit in queue:
        walk.count()
        data, ways = pending.pop(commit.oid)
        parents = [(parent, walk.entry(parent)) for parent in repo.history.before(commit)]
        # First the parents with an equal entry: for them no value is read.
        parents.sort(key=lambda pair: pair[1] != data)
        for trail, left in ways.values():
            for parent, before in parents:
                if not left or before is None:
                    continue
                if before == data:
                    earlier, passed, left = trail, left, {}
                else:
                    earlier, passed, left = _pass_on(
                        trail, left, walk.version(data), walk.try_version(before)
                    )
                if not passed:
                    continue
                if parent.oid not in pending:
                    pending[parent.oid] = before, {}
                    queue.push(parent)
                _, waiting = pending[parent.oid]
                if _way(earlier) not in waiting:
                    waiting[_way(earlier)] = earlier, passed
                    continue
                _, opened = waiting[_way(earlier)]
                for number, originals in passed.items():
                    opened.setdefault(number, []).extend(originals)
            for originals in left.values():
                found |= dict.fromkeys(originals, commit)
    return [element.blamed(path, found[number]) for number, element in enumerate(elements)]


_Trail = Sequence[Part]
"""The parts that lead to the blamed one, in one version."""

_Way = tuple[tuple[str, Hashable], ...]
"""The groups and places of a trail: equal for equal ways."""

_Open = dict[int, list[int]]
"""Elements without a commit so far: by their number in a value, their numbers in the first value."""


def _way(trail: _Trail) -> _Way:
    return tuple((part.group, part.place) for part in trail)


class _Walk:
    """The versions of one key, read when needed; the last few stay in memory."""

    def __init__(
        self,
        repo: Core,
        start: Commit,
        key: str,
        progress: OnCommit | None,
        seconds: float | None = None,
    ) -> None:
        self._repo = repo
        self._key = key
        self._seconds = math.inf if seconds is None else seconds
        self._end = monotonic() + self._seconds
        self._progress = progress
        self._count = 0
        self._versions = Recent[bytes, Version](_VERSIONS)
        self._unreadable: set[bytes] = set()
        self._objects: Mapping[ObjectId, Any] = {}
        data = self.entry(start)
        if data is None:
            raise self._absent(start)
        self.data = data

    def check_time(self) -> None:
        """Raise InvalidInput if the time is over."""
        if monotonic() > self._end:
            raise InvalidInput(
                f"blame of {self._key!r} takes more than {self._seconds:g} s: name one part by its path, or "
                "give more time"
            )

    def count(self) -> None:
        self._count += 1
        self.check_time()
        if self._progress is not None:
            self._progress(self._count)

    def entry(self, commit: Commit) -> bytes | None:
        return tree.lookup(self._repo.objects.node, commit.root, self._key)

    def version(self, data: bytes) -> Version:
        """The value of an entry; InertError or InvalidInput if it is unreadable."""
        version = self._versions.get(data)
        if version is None:
            version = self._read(data)
            self._versions[data] = version
        return version

    def _read(self, data: bytes) -> Version:
        entry, pickled = self._repo.parse_entry(self._key, data), None
        if entry.codec == PICKLE and entry.size <= INSPECT_BYTES:
            reader = _Rereading(self._repo.objects, self._objects)
            parts, _ = read_parts(entry, reader)
            self._objects = reader.read
            if len(parts) == 1:
                pickled = bytes(parts[0])
                for _, known in self._versions.items():
                    shorter = known.without_last(pickled)
                    if shorter is not None:
                        return shorter
        value = self._repo.inspect(self._key, data)
        for _, known in self._versions.items():
            if known.begins_with(value):
                return known.first(len(value), pickled)
        return Version(value, pickled, self.check_time)

    def try_version(self, data: bytes) -> Version | None:
        """As `version`, but None for an unreadable value, in which no element counts as the same."""
        if data in self._unreadable:
            return None
        try:
            return self.version(data)
        except (InertError, InvalidInput):
            self._unreadable.add(data)
            return None

    def _absent(self, start: Commit) -> KeyNotFound:
        """The error for an absent key; it names the commit that removed the key, if a recent one did."""
        error = KeyNotFound(self._key)
        error.message += f" at {start.short}"
        for commit in islice(self._repo.history.ancestors(start.oid), _SEARCHED):
            if self.entry(commit) is not None:
                continue
            before = [self.entry(parent) for parent in self._repo.history.before(commit)]
            if before and None not in before:
                error.message += (
                    f": {commit.short} removed it; blame an earlier commit: "
                    f"vstate blame {commit.short}~1 {shlex.quote(self._key)}"
                )
                break
        return error


class _Rereading:
    """Reads one version of a value. Its objects are mostly those of `before`, the version read before."""

    def __init__(self, reader: Reader, before: Mapping[ObjectId, Any]) -> None:
        self._reader = reader
        self._before = before
        self.blob = reader.blob
        self.read: dict[ObjectId, Any] = {}

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        return self._read(sizes, lambda ids: self._reader.blobs({oid: sizes[oid] for oid in ids}))

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        return self._read(ids, self._reader.indexes)

    def _read(
        self, ids: Iterable[ObjectId], read: Callable[[list[ObjectId]], Mapping[ObjectId, Any]]
    ) -> dict[ObjectId, Any]:
        found = {oid: self._before[oid] for oid in ids if oid in self._before}
        if missing := [oid for oid in ids if oid not in found]:
            found |= read(missing)
        self.read |= found
        return found


class Version:
    """One value of the key, with the fingerprints of its parts; `pickled` if the entry is one pickle."""

    def __init__(
        self, value: object, pickled: bytes | None = None, check_time: Callable[[], None] = lambda: None
    ) -> None:
        self.value = value
        self.pickled = pickled
        self._check_time = check_time
        self.prints = Fingerprints()
        self.prints.left = _MOST_PARTS
        self._elements: dict[_Way, list[_Element]] = {}

    def find(self, path: str) -> _Trail:
        return find_part(self.value, path, self.prints)

    def without_last(self, pickled: bytes) -> Version | None:
        """The version of another pickle, if it is this list without its last items; else None.

        Most lists grow at their end. The pickle of the shorter list is then the beginning of the longer one
        and need not be read. For a conversation of 1,000 turns, that saves reading half a million messages.
        """
        value = self.value
        if self.pickled is None or not isinstance(value, list) or not pickled.endswith(_END):
            return None
        same = len(pickled) - len(_END)
        if same >= len(self.pickled) or not self.pickled.startswith(memoryview(pickled)[:same]):
            return None
        count = _items_in(self.pickled[same:])
        if count is None or count > len(value):
            return None
        return self.first(len(value) - count, pickled)

    def begins_with(self, value: object) -> TypeGuard[list[object]]:
        """Whether these are the first items of this list, the same objects: readers share messages."""
        mine = self.value
        if not isinstance(value, list) or not isinstance(mine, list) or not 0 < len(value) <= len(mine):
            return False
        return all(map(operator.is_, value, mine))

    def first(self, count: int, pickled: bytes | None) -> Version:
        """The version with the first items of this list, which have their fingerprints."""
        assert isinstance(self.value, list)
        shorter = Version(self.value[:count], pickled, self._check_time)
        shorter.prints = self.prints
        if () in self._elements:
            shorter._elements[()] = self._elements[()][:count]
        return shorter

    def at(self, trail: _Trail) -> object:
        """The part to which a trail of this version leads."""
        return trail[-1].value if trail else self.value

    def elements(self, trail: _Trail) -> list[_Element]:
        """The lines of the text, or the parts of any other value, at the end of a trail.

        InvalidInput if they are too many.
        """
        way = _way(trail)
        if way not in self._elements:
            found: list[_Element] = []
            parts = islice(self._parts(self.at(trail)), _MOST_ELEMENTS + 1)
            while some := list(islice(parts, _BATCH)):
                found += some
                self._check_time()
            if len(found) > _MOST_ELEMENTS:
                raise InvalidInput(
                    f"more than {_MOST_ELEMENTS:,} elements are too many to blame: name one of them by its "
                    "path"
                )
            self._elements[way] = found
        return self._elements[way]

    def _parts(self, value: object) -> Iterator[_Element]:
        if isinstance(value, str):
            # str.splitlines would also split at form feeds and other characters that editors show inside a
            # line. StringIO would copy the text, with four bytes for each character.
            start = number = 0
            while start < len(value):
                stop = value.find("\n", start) + 1 or len(value)
                line = value[start:stop]
                yield _Element(Part("lines", number, "", line.removesuffix("\n")), line)
                start, number = stop, number + 1
        else:
            for part in parts_of(value, self.prints):
                yield _Element(part, self.prints.of(part.value))


_END: Final = b"e."  # APPENDS, STOP


def _items_in(tail: bytes) -> int | None:
    """The number of items in the rest of a list's pickle, cut between two items; None if that is unclear."""
    count = height = 0
    marks = [0]
    try:
        for opcode, _, _ in pickletools.genops(tail):
            before, after = opcode.stack_before, opcode.stack_after
            if opcode.name == "MARK":
                marks.append(height)
                continue
            items = height
            if pickletools.markobject in before:
                height = marks.pop() - before.index(pickletools.markobject) + len(after)
            elif opcode.name != "STOP":
                height += len(after) - len(before)
            if opcode.name in ("APPEND", "APPENDS") and not marks and height == 0:
                count += items - height
    except (ValueError, IndexError):
        return None
    return count if not marks and height == 0 else None


@dataclass(frozen=True, slots=True)
class _Element:
    part: Part
    content: str | bytes
    """The line, or the fingerprint of the part: equal for equal elements only."""

    def blamed(self, path: str, commit: Commit) -> Blamed:
        if self.part.group == "lines":
            assert isinstance(self.part.place, int)
            return Blamed(path, commit, self.part.value, line=self.part.place + 1)
        step = self.part.step if path else self.part.step.removeprefix(".")
        return Blamed(path + step, commit, self.part.value)


def _pass_on(trail: _Trail, left: _Open, new: Version, old: Version | None) -> tuple[_Trail, _Open, _Open]:
    """The trail in the older value; the open elements that are there too, by their numbers; the others."""
    way = None if old is None else counterparts(trail, new, old)
    if old is None or way is None or kind_of(old.at(way)) != kind_of(new.at(trail)):
        return (), {}, left
    try:
        older = old.elements(way)
    except InvalidInput:
        return (), {}, left
    newer = new.elements(trail)
    if len(older) <= len(newer) and all(map(operator.is_, older, newer)):
        # The older value is the beginning of the newer one: most lists grow at their end.
        return (
            way,
            left,
            {number: left.pop(number) for number in range(len(older), len(newer)) if number in left},
        )
    before = _by_group(older)
    passed: _Open = {}
    for group, numbers in _by_group(newer).items():
        earlier = before.get(group, [])
        if group in SEQUENCES or group == "lines":
            places = align([older[n].content for n in earlier], [newer[n].content for n in numbers])
            pairs = [
                (number, earlier[place])
                for number, place in zip(numbers, places, strict=True)
                if place is not None
            ]
        else:
            known = {older[number].part.place: number for number in earlier}
            pairs = [
                (number, known[place]) for number in numbers if (place := newer[number].part.place) in known
            ]
        for number, earlier_number in pairs:
            if number in left and newer[number].content == older[earlier_number].content:
                passed.setdefault(earlier_number, []).extend(left.pop(number))
    return way, passed, left


def _by_group(elements: Sequence[_Element]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for number, element in enumerate(elements):
        groups[element.part.group].append(number)
    return groups


def _unchanged(trail: _Trail, new: Version, old: Version | None) -> _Trail | None:
    """The parts that lead to the same part in the older value; None if it is absent or different there."""
    earlier = None if old is None else counterparts(trail, new, old)
    if old is None or earlier is None:
        return None
    wanted = new.prints.of(new.at(trail))
    try:
        return earlier if old.prints.of(old.at(earlier)) == wanted else None
    except InvalidInput:
        return None  # too large there


def counterparts(trail: _Trail, new: Version, old: Version) -> _Trail | None:
    """The parts of the older value in the places of a trail; None if one is absent, or of another kind."""
    earlier: list[Part] = []
    for number, part in enumerate(trail):
        inside, before = new.at(trail[:number]), old.at(earlier)
        if kind_of(inside) != kind_of(before):
            return None
        items = sequence_of(inside, part.group) if part.group in SEQUENCES else ()
        wanted = [new.prints.of(item) for item in items]
        try:
            found = _counterpart(part, wanted, before, old)
        except InvalidInput:
            return None  # too large there
        if found is None:
            return None
        earlier.append(found)
    return earlier


def _counterpart(part: Part, wanted: Sequence[bytes], before: object, old: Version) -> Part | None:
    """The part of `before` in the place of this part, which is among items with these fingerprints."""
    if part.group not in SEQUENCES:
        return part_like(part, before, old.prints)
    items = sequence_of(before, part.group)
    places = align([old.prints.of(item) for item in items], wanted)
    assert isinstance(part.place, int)
    place = places[part.place]
    # The only argument of a wrapper, such as Decimal('1'), has no step.
    step = part.step and f"{part.step[: part.step.rindex('[')]}[{place}]"
    return None if place is None else part._replace(place=place, step=step, value=items[place])


def align(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int | None]:
    """For each item of `new`, the index in `old` of the equal item, or of the item whose place it took.

    Items are aligned in order: one that moved to another place counts as removed and added. None for an added
    item.
    """
    places: list[int | None] = [None] * len(new)
    for earlier, later in Aligner(_MOST_STEPS).pairs(old, new):
        if earlier is not None and later is not None:
            places[later] = earlier
    return places
