"""Blame: which commit last changed a key, a part of its value, or each of its elements."""

from __future__ import annotations

import pickletools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from vstate.arguments import check_text
from vstate.errors import InvalidInput, KeyNotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
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
from vstate.values.alignment import Aligner, common_ends
from vstate.values.entry import PICKLE, read_parts
from vstate.values.inert import InertError
from vstate.values.inspection import INSPECT_BYTES

__all__ = ["Blamed", "align", "blame", "blame_items"]

_MOST_STEPS: Final = 500_000  # to align two versions of a list: some tenths of a second
_LONG: Final = 800_000  # the product of the lengths of two lists that are aligned by occurrence
_SEARCHED: Final = 10_000  # commits that are searched for the one that removed a key
_MOST_ELEMENTS: Final = 300_000  # of one value: some 100 MB with their fingerprints
_MOST_PARTS: Final = 10_000_000  # inside the elements of one value; 2 kB of an array count as one
_VERSIONS: Final = 3  # values of one key that are in memory at once

OnCommit = Callable[[int], None]
"""Called after each visited commit with the number of visited commits."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """One element of a value and the commit that last changed it.

    `path` leads to the element, as `details` prints paths; it is "" for the whole value and for a line.
    `line` is the number of a line of a text, from 1. `value` is the element as `inert.read` returns it, a
    line without its end.
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


def blame_items(repo: Core, start: Commit, key: str, *, progress: OnCommit | None = None) -> list[Blamed]:
    """As `Repository.blame_items` promises."""
    walk = _Walk(repo, start, key, progress, by_element=True)
    first = walk.version(walk.data)
    elements = first.elements
    if not elements:
        return [Blamed("", blame(repo, start, key, progress=progress), first.value)]
    found: dict[int, Commit] = {}
    # The entry of each commit, and the elements that it, or a commit before it, last changed. A commit leaves
    # the queue after all its children.
    pending: dict[ObjectId, tuple[bytes, _Open]] = {
        start.oid: (walk.data, {number: [number] for number in range(len(elements))})
    }
    queue = NewestFirst()
    queue.push(start)
    for commit in queue:
        walk.count()
        data, left = pending.pop(commit.oid)
        parents = [(parent, walk.entry(parent)) for parent in repo.history.before(commit)]
        # First the parents with an equal entry: for them no value is read.
        for parent, before in sorted(parents, key=lambda pair: pair[1] != data):
            if not left or before is None:
                continue
            if before == data:
                passed, left = left, {}
            else:
                passed, left = _pass_on(left, walk.version(data), walk.try_version(before))
            if not passed:
                continue
            if parent.oid not in pending:
                pending[parent.oid] = before, {}
                queue.push(parent)
            _, waiting = pending[parent.oid]
            for number, originals in passed.items():
                waiting.setdefault(number, []).extend(originals)
        for originals in left.values():
            found |= dict.fromkeys(originals, commit)
    return [element.blamed(found[number]) for number, element in enumerate(elements)]


_Open = dict[int, list[int]]
"""Elements without a commit so far: by their number in a value, their numbers in the first value."""


class _Walk:
    """The versions of one key, read when needed; the last few stay in memory."""

    def __init__(
        self,
        repo: Core,
        start: Commit,
        key: str,
        progress: OnCommit | None,
        *,
        by_element: bool = False,
    ) -> None:
        self._repo = repo
        self._by_element = by_element
        self._key = key
        self._progress = progress
        self._count = 0
        self._versions: OrderedDict[bytes, _Version | None] = OrderedDict()
        data = self.entry(start)
        if data is None:
            raise self._absent(start)
        self.data = data

    def count(self) -> None:
        self._count += 1
        if self._progress is not None:
            self._progress(self._count)

    def entry(self, commit: Commit) -> bytes | None:
        return tree.lookup(self._repo.objects.node, commit.root, self._key)

    def version(self, data: bytes) -> _Version:
        """The value of an entry; InertError or InvalidInput if it is unreadable or has too many elements."""
        version = self._versions.get(data)
        if version is None:
            version = self._read(data)
            if self._by_element:
                version.find_elements()
            self._remember(data, version)
        self._versions.move_to_end(data)
        return version

    def _read(self, data: bytes) -> _Version:
        entry, pickled = self._repo.parse_entry(self._key, data), None
        if entry.codec == PICKLE and entry.size <= INSPECT_BYTES:
            parts, _ = read_parts(entry, self._repo.objects)
            if len(parts) == 1:
                pickled = bytes(parts[0])
                for known in self._versions.values():
                    shorter = None if known is None else known.without_last(pickled)
                    if shorter is not None:
                        return shorter
        return _Version(self._repo.inspect(self._key, data), pickled)

    def try_version(self, data: bytes) -> _Version | None:
        """As `version`, but None for an unreadable value, in which no element counts as the same."""
        if self._versions.get(data, self) is None:
            return None
        try:
            return self.version(data)
        except (InertError, InvalidInput):
            self._remember(data, None)
            return None

    def _remember(self, data: bytes, version: _Version | None) -> None:
        self._versions[data] = version
        while len(self._versions) > _VERSIONS:
            self._versions.popitem(last=False)

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
                    f"vstate blame --rev {commit.short}~1"
                )
                break
        return error


class _Version:
    """One value of the key, with the fingerprints of its parts; `pickled` if the entry is one pickle."""

    def __init__(self, value: object, pickled: bytes | None = None) -> None:
        self.value = value
        self.pickled = pickled
        self.prints = Fingerprints()
        self.prints.left = _MOST_PARTS
        self.elements: list[_Element] = []
        """The lines of a text, or the parts of any other value; filled by `find_elements`."""

    def find(self, path: str) -> list[Part]:
        return find_part(self.value, path, self.prints)

    def without_last(self, pickled: bytes) -> _Version | None:
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
        shorter = _Version(value[: len(value) - count], pickled)
        shorter.prints = self.prints
        shorter.elements = self.elements[: len(value) - count]
        return shorter

    @property
    def kind(self) -> object:
        return kind_of(self.value)

    def find_elements(self) -> None:
        """Find the elements; InvalidInput if they are too many."""
        if self.elements:
            return
        self.elements = list(islice(self._parts(), _MOST_ELEMENTS + 1))
        if len(self.elements) > _MOST_ELEMENTS:
            raise InvalidInput(
                f"more than {_MOST_ELEMENTS:,} elements are too many to blame: name one of them by its path"
            )

    def _parts(self) -> Iterator[_Element]:
        if isinstance(self.value, str):
            # str.splitlines would also split at form feeds and other characters that editors show inside a
            # line. StringIO would copy the text, with four bytes for each character.
            start = number = 0
            while start < len(self.value):
                stop = self.value.find("\n", start) + 1 or len(self.value)
                line = self.value[start:stop]
                yield _Element(Part("lines", number, "", line.removesuffix("\n")), line)
                start, number = stop, number + 1
        else:
            for part in parts_of(self.value, self.prints):
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

    def blamed(self, commit: Commit) -> Blamed:
        if self.part.group == "lines":
            assert isinstance(self.part.place, int)
            return Blamed("", commit, self.part.value, line=self.part.place + 1)
        return Blamed(self.part.step.removeprefix("."), commit, self.part.value)


def _pass_on(left: _Open, new: _Version, old: _Version | None) -> tuple[_Open, _Open]:
    """The open elements that are in the older value too, by their numbers there; and the others."""
    if old is None or old.kind != new.kind:
        return {}, left
    before = _by_group(old.elements)
    passed: _Open = {}
    for group, numbers in _by_group(new.elements).items():
        earlier = before.get(group, [])
        if group in SEQUENCES or group == "lines":
            places = align(
                [old.elements[n].content for n in earlier], [new.elements[n].content for n in numbers]
            )
            pairs = [
                (number, earlier[place])
                for number, place in zip(numbers, places, strict=True)
                if place is not None
            ]
        else:
            known = {old.elements[number].part.place: number for number in earlier}
            pairs = [
                (number, known[place])
                for number in numbers
                if (place := new.elements[number].part.place) in known
            ]
        for number, earlier_number in pairs:
            if number in left and new.elements[number].content == old.elements[earlier_number].content:
                passed.setdefault(earlier_number, []).extend(left.pop(number))
    return passed, left


def _by_group(elements: Sequence[_Element]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for number, element in enumerate(elements):
        groups[element.part.group].append(number)
    return groups


def _unchanged(trail: Sequence[Part], new: _Version, old: _Version | None) -> list[Part] | None:
    """The parts that lead to the same part in the older value; None if it is absent or different there."""
    if old is None:
        return None
    earlier: list[Part] = []
    inside, before = new.value, old.value
    for part in trail:
        found = _counterpart(part, inside, before, new, old) if kind_of(inside) == kind_of(before) else None
        if found is None:
            return None
        earlier.append(found)
        inside, before = part.value, found.value
    return earlier if new.prints.of(inside) == old.prints.of(before) else None


def _counterpart(part: Part, inside: object, before: object, new: _Version, old: _Version) -> Part | None:
    """The part of `before` in the place of this part of `inside`."""
    if part.group not in SEQUENCES:
        return part_like(part, before, old.prints)
    items = sequence_of(before, part.group)
    places = align(
        [old.prints.of(item) for item in items],
        [new.prints.of(item) for item in sequence_of(inside, part.group)],
    )
    assert isinstance(part.place, int)
    place = places[part.place]
    return None if place is None else part._replace(place=place, value=items[place])


def align(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int | None]:
    """For each item of `new`, the index in `old` of the equal item, or of the item whose place it took.

    Equal items at both ends stay in place. Between them, items are aligned in order; in long sequences the
    n-th of several equal items is the n-th in `old`, wherever it is. None for an added item.
    """
    start, end = common_ends(old, new)
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    places: list[int | None] = [*range(start), *[None] * len(after), *range(len(old) - end, len(old))]
    if len(before) * len(after) > _LONG:
        pairs: Iterator[tuple[int | None, int | None]] = _by_occurrence(before, after)
    else:
        pairs = Aligner(_MOST_STEPS).pairs(before, after)
    for earlier, later in pairs:
        if earlier is not None and later is not None:
            places[start + later] = start + earlier
    return places


def _by_occurrence(
    old: Sequence[Hashable], new: Sequence[Hashable]
) -> Iterator[tuple[int | None, int | None]]:
    known: dict[Hashable, deque[int]] = defaultdict(deque)
    for index, item in enumerate(old):
        known[item].append(index)
    places = [known[item].popleft() if known[item] else None for item in new]
    taken = set(places)
    for index, place in enumerate(places):
        if place is not None:
            yield place, index
        elif index < len(old) and index not in taken:
            yield index, index
