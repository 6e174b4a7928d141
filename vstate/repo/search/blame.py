"""Blame: which commit last changed a key, a part of its value, or each of its elements."""

from __future__ import annotations

import io
import pickletools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Final

from vstate.errors import InvalidInput, KeyNotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.compare.paths import (
    SEQUENCES,
    Fingerprints,
    Part,
    find_part,
    kind_of,
    part_like,
    parts_of,
    sequence_of,
)
from vstate.repo.core import Core
from vstate.repo.walk import NewestFirst
from vstate.values.entry import PICKLE, read_parts
from vstate.values.inert import InertError
from vstate.values.inspection import INSPECT_BYTES

__all__ = ["Blamed", "align", "blame", "blame_items"]

_MOST_STEPS: Final = 50_000  # of difflib for two versions of a list: some tenths of a second at the worst
_SEARCHED: Final = 10_000  # commits that are looked at for the one that removed a key
_MOST_ELEMENTS: Final = 300_000  # of one value: with what is noted of them some 100 MB
_VERSIONS: Final = 3  # values of one key that are in memory at once

Progress = Callable[[int], None]
"""Called after each commit that was looked at, with their number."""


@dataclass(frozen=True, slots=True)
class Blamed:
    """One element of a value and the commit that last changed it.

    `path` is where it is, as `details` prints it, "" for the value as a whole; of a text, `line` is the number
    of the line, from 1. `value` is the element as the inert reader gives it, a line without its end.
    """

    path: str
    commit: Commit
    value: object
    line: int | None = None


def blame(
    repo: Core, start: Commit, key: str, path: str | None = None, *, progress: Progress | None = None
) -> Commit:
    """As `Repository.blame` promises."""
    walk = _Walk(repo, start, key, progress)
    at, data = start, walk.data
    trail = None if path is None else walk.version(data).find(path)
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


def blame_items(repo: Core, start: Commit, key: str, *, progress: Progress | None = None) -> list[Blamed]:
    """As `Repository.blame_items` promises."""
    walk = _Walk(repo, start, key, progress, by_element=True)
    first = walk.version(walk.data)
    elements = first.elements
    if not elements:
        return [Blamed("", blame(repo, start, key, progress=progress), first.value)]
    found: dict[int, Commit] = {}
    # What is still to be blamed on each commit or on one before it: by its number in the value there, the
    # numbers in the first value. A commit comes out of the queue after all its children.
    pending: dict[ObjectId, tuple[bytes, _Open]] = {
        start.oid: (walk.data, {number: [number] for number in range(len(elements))})
    }
    queue = NewestFirst()
    queue.push(start)
    for commit in queue:
        walk.count()
        data, left = pending.pop(commit.oid)
        parents = [(parent, walk.entry(parent)) for parent in repo.history.before(commit)]
        # Where the key is the same, nothing has to be read.
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


class _Walk:
    """The versions of one key, read when needed, the last few of them kept."""

    def __init__(
        self,
        repo: Core,
        start: Commit,
        key: str,
        progress: Progress | None,
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
        return tree.lookup(self._repo.objects.node, commit.tree, self._key)

    def version(self, data: bytes) -> _Version:
        """The value of an entry; InertError or InvalidInput if it cannot be read, or has too many elements."""
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
        """The same, None if it cannot be read: then nothing in it is seen to be the same."""
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
        """The error for a key that is not there: with the commit that removed it, if one did not long ago."""
        error = KeyNotFound(self._key)
        error.message += f" at {start.short}"
        for commit in islice(self._repo.history.ancestors(start.oid), _SEARCHED):
            if self.entry(commit) is not None:
                continue
            before = [self.entry(parent) for parent in self._repo.history.before(commit)]
            if before and None not in before:
                error.message += (
                    f": {commit.short} removed it; blame it before that: vstate blame --rev {commit.short}~1"
                )
                break
        return error


class _Version:
    """One value of the key, and what tells its parts apart; `pickled` if it is one pickle and nothing else."""

    def __init__(self, value: object, pickled: bytes | None = None) -> None:
        self.value = value
        self.pickled = pickled
        self.prints = Fingerprints()
        self.elements: list[_Element] = []
        """What the value consists of, once found: the lines of a text, or the parts of anything else."""

    def find(self, path: str) -> list[Part]:
        return find_part(self.value, path, self.prints)

    def without_last(self, pickled: bytes) -> _Version | None:
        """The version of that pickle, if this one is a list and that the same without its last items.

        Most lists that a program keeps grow at their end. The pickle of the shorter one then is the beginning
        of the longer, so that it need not be read: of a conversation of 1,000 turns that would be a million
        messages.
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
                f"more than {_MOST_ELEMENTS:,} elements are too many to blame one by one: name one by its path"
            )

    def _parts(self) -> Iterator[_Element]:
        if isinstance(self.value, str):
            # str.splitlines would also split at form feeds and other characters that editors show inside a line.
            for number, line in enumerate(io.StringIO(self.value, newline="\n")):
                yield _Element(Part("lines", number, "", line.removesuffix("\n")), line)
        else:
            for part in parts_of(self.value, self.prints):
                yield _Element(part, self.prints.of(part.value))


_END: Final = b"e."  # APPENDS, STOP


def _items_in(tail: bytes) -> int | None:
    """How many items follow in the pickle of a list that is cut between two of them; None if that is not clear."""
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
    """Equal for equal elements, and only for those."""

    def blamed(self, commit: Commit) -> Blamed:
        if self.part.group == "lines":
            assert isinstance(self.part.place, int)
            return Blamed("", commit, self.part.value, line=self.part.place + 1)
        return Blamed(self.part.step.removeprefix("."), commit, self.part.value)


def _pass_on(left: _Open, new: _Version, old: _Version | None) -> tuple[_Open, _Open]:
    """What of the open elements is in the older value too, by the numbers there; and what is not."""
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
    """The way in the older value to the same thing, None if it is not there or was different."""
    if old is None:
        return None
    way: list[Part] = []
    inside, before = new.value, old.value
    for part in trail:
        found = _counterpart(part, inside, before, new, old) if kind_of(inside) == kind_of(before) else None
        if found is None:
            return None
        way.append(found)
        inside, before = part.value, found.value
    return way if new.prints.of(inside) == old.prints.of(before) else None


def _counterpart(part: Part, inside: object, before: object, new: _Version, old: _Version) -> Part | None:
    """What was inside `before` in the place of this part of `inside`."""
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
    """For each item of `new`, the index in `old` of the equal item, or of the one that stood in its place.

    What is equal at both ends stays in place, and difflib aligns what lies between. Where that would take long,
    the n-th of several equal items is the n-th there, wherever they are. None for an item that is neither.
    """
    places: list[int | None] = [None] * len(new)
    start, shorter = 0, min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        places[start] = start
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
        places[len(new) - end] = len(old) - end
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    counts = Counter(before)
    if sum(counts[item] for item in after) + len(before) * len(after) // 16 > _MOST_STEPS:
        found = _by_occurrence(before, after)
    else:
        found = _in_order(before, after)
    for number, place in enumerate(found, start):
        places[number] = None if place is None else place + start
    return places


def _in_order(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int | None]:
    places: list[int | None] = [None] * len(new)
    row = column = 0
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        for step in range(min(block.a - row, block.b - column)):
            places[column + step] = row + step
        row, column = block.a + block.size, block.b + block.size
        for step in range(block.size):
            places[block.b + step] = block.a + step
    return places


def _by_occurrence(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int | None]:
    known: dict[Hashable, deque[int]] = defaultdict(deque)
    for index, item in enumerate(old):
        known[item].append(index)
    places = [known[item].popleft() if known[item] else None for item in new]
    taken = set(places)
    return [
        index if place is None and index < len(old) and index not in taken else place
        for index, place in enumerate(places)
    ]
