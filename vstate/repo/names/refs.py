"""Refs: names of commits that move, the log of their moves, and how long branches are kept."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from blake3 import blake3

from vstate.arguments import check_text
from vstate.errors import CorruptStore, InvalidInput, NotFound
from vstate.kv.base import KVStore
from vstate.objects.canonical import Packer, decode
from vstate.objects.commit import ONE_SECOND, Commit, moment
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.plural import counted
from vstate.repo.rooms import ROOM_OF, Rooms
from vstate.similar import similar

REF = "r/"
HEADS = "heads/"
TAGS = "tags/"
REMOTES = "remotes/"
"""Tracking refs: `remotes/<remote>/<branch>` is the last known position of a branch of another store."""
HEAD = "HEAD"
DEFAULT_BRANCH = "main"
REFLOG = "reflog/"
LABELS = "r/labels/"
"""The row `r/labels/heads/<branch>` ends with its branch. Only a commit to the branch writes it."""
NEWEST = "r/newest/"
WITH = "r/with/"
"""The rows of the index of the branches, see `BranchIndex`."""
_MOST_ASIDE = 100  # lines of a reflog that wait for the one that leads to them
CHECK_DIGITS = 8
SWEEP = "gc"
"""The key whose value changes whenever a sweep of `gc` deletes something."""

_SYMBOLIC = "ref: "
LONGEST_NAME = 200
_HOUR = 3_600 * 10**9  # nanoseconds
_RECENT = 4
_TIME = re.compile("[0-7][0-9a-f]{15}")
_RULES = {
    r"\A\Z": "is not empty",
    r"[\x00-\x1f\x7f]": "has no control character in it",
    " ": "has no space in it",
    r"[~^:?*\[\\]": "has none of ~ ^ : ? * [ \\ in it",
    r"\.\.": "has no '..' in it",
    r"@\{": "has no '@{' in it",
    "//": "has no '//' in it",
    r"\A/|/\Z": "has no '/' at its beginning or end",
    r"(\A|/)\.": "has no part that begins with '.'",
    r"\.lock(/|\Z)": "has no part that ends in '.lock'",
    r"\.\Z": "does not end in '.'",
    r"\A-": "does not begin with '-'",
    r"\A(@|HEAD)\Z": "is not '@' or 'HEAD'",
    "[\ud800-\udfff]": "has no half of a surrogate pair in it",
}
"""The rules of git's check-ref-format: what breaks each, and the rule about a name."""
_FORBIDDEN = re.compile("|".join(_RULES))


_TO_QUOTE = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\%]|(?:\A|(?<=/))\.|\.(?=\.|\Z|lock(?:/|\Z))|\A/|/(?=/|\Z)|\A-|\A@\Z|@(?=\{)"
)
_QUOTED = re.compile("%[0-9A-F]{2}")


def quote_ref(text: str) -> str:
    """The name of a branch or tag for any text, such as the id of a session.

    A text that is a name already stays as it is, unless it holds `%`. As in URLs, other
    characters become `%` and two hex digits for each byte. Equal names come from equal texts only, and
    `unquote_ref` gives the text back. Raises InvalidInput for a text whose name is longer than 200
    characters, or that UTF-8 cannot encode.
    """
    return check_ref_name(percent_encoded(check_text("the text of a ref name", text)))


def percent_encoded(text: str) -> str:
    """As `quote_ref`, of any length."""
    return "%" if not text else f"%{ord('H'):X}EAD" if text == HEAD else _TO_QUOTE.sub(_percent, text)


def unquote_ref(name: str) -> str:
    """The text that `quote_ref` made this name of; InvalidInput for any other name."""
    text = "" if name == "%" else unquote(name, errors="replace")
    if quote_ref(text) != name:
        raise InvalidInput(f"quote_ref makes no name like {name!r}")
    return text


def typed_ref(text: str) -> str:
    """The ref name that a person means by a text: `users/user 0` is `users/user%200`.

    Characters that no name may have are quoted. A `%` with two hex digits behind it is quoted already.
    """
    return text if _is_allowed(text) else _TO_QUOTE.sub(_percent_unless_quoted, text)


def shown_ref(name: str) -> str:
    """The text that people read, and may type, for a ref name: `users/user%200` is `users/user 0`."""
    text = unquote(name)
    return text if text.isprintable() and typed_ref(text) == name else name


def _percent_unless_quoted(match: re.Match[str]) -> str:
    return match[0] if _QUOTED.match(match.string, match.start()) else _percent(match)


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def check_ref_name(name: str, kind: str = "branch") -> str:
    """The name, if git's check-ref-format accepts it for a branch; InvalidInput if not."""
    if not isinstance(name, str):
        raise TypeError(f"a {kind} name is a str, not {type(name).__name__}")
    if len(name) > LONGEST_NAME:
        raise InvalidInput(
            f"{name[:20]!r}… is not a {kind} name: it has {len(name):,} characters, "
            f"and {LONGEST_NAME} are the most"
        )
    if not _is_allowed(name):
        rule = next(rule for pattern, rule in _RULES.items() if re.search(pattern, name))
        raise InvalidInput(
            f"{name!r} is not a {kind} name: as in git, a name {rule}; quote_ref(text) makes a "
            "name of any text"
        )
    return name


def absent(message: str, name: str, known: Iterable[str], noun: str, command: str = "") -> NotFound:
    """The error for a name that is not there: with similar names, or else with the number of names.

    `command` lists the known names.
    """
    names = list(known)
    candidates = similar(name, names)
    if not candidates:
        also = f"which `{command}` lists" if command else f"such as {names[-1] if names else ''}"
        there = f"is {counted(1, noun)}" if len(names) == 1 else f"are {counted(len(names), noun)}"
        message += f"; there {there}, {also}" if names else f"; there is no {noun} yet"
    return NotFound(message, name=name, candidates=candidates)


@lru_cache(1024)  # a program commits to the same branches again and again
def _is_allowed(name: str) -> bool:
    return not _FORBIDDEN.search(name)


def line_check(key: str, value: bytes) -> str:
    """The checksum that ends the key of a reflog line: ids in a line may be of commits that are gone.

    It also tells two moves of one ref in the same nanosecond apart.
    """
    return blake3(key.encode() + b"\0" + value).hexdigest(length=CHECK_DIGITS // 2)


def reflog_action(operation: str, commit: Commit) -> str:
    """The text of a line of the reflog: the operation and the first line of the commit's message."""
    return f"{operation}: {subject}" if commit.message and (subject := commit.subject[:80]) else operation


class Head(NamedTuple):
    """The position of HEAD: on a branch, whose commit is None before the first, or detached at a commit."""

    branch: str | None
    commit: ObjectId | None


class ReflogEntry(NamedTuple):
    """One move of a ref: from `old` to `new` (None: absent) at `time`, by `action`.

    `time` is by the clock of the process that moved it. `order` is the place of the line in the reflog, in
    microseconds: the same, unless a clock was wrong.
    """

    old: ObjectId | None
    new: ObjectId | None
    time: datetime
    action: str
    order: int

    @property
    def commits(self) -> Sequence[ObjectId]:
        """The commits that the line names, the new one first."""
        return [oid for oid in (self.new, self.old) if oid is not None]


def ref_of_line(key: str) -> str:
    """The ref that the reflog line with this key is about."""
    return key.removeprefix(REFLOG).rpartition(":")[0]


def line_with(key: str, row: bytes, new: Mapping[ObjectId, ObjectId]) -> Mapping[str, bytes | None]:
    """The rows that change where a line names `new` commits in the place of others; none if it names none."""
    old, to, *rest = decode(row)
    if old not in new and to not in new:
        return {}
    begin = key[:-CHECK_DIGITS]
    row = Packer().pack([new.get(old, old), new.get(to, to), *rest])
    return {key: None, begin + line_check(begin, row): row}


class Move(NamedTuple):
    """A ref goes from `expected` to `new` (None: absent), with a line of the reflog that says the action.

    The place of the line in the reflog is `order`, in microseconds, or now if it is None. With the order of
    the commit, lines stand in the order of the commits, whatever the clocks say.

    `room` is the number of the room that the ref lies in. With None, the store is asked.
    """

    ref: str
    expected: ObjectId | None
    new: ObjectId | None
    action: str
    order: int | None = None
    room: int | None = None


Rows = Mapping[str, bytes | None]


class Index(Protocol):
    """The methods of `BranchIndex` that `Refs` calls."""

    def moved(
        self, ref: str, old: ObjectId | None, new: ObjectId | None, order: int | None, rows: Rows
    ) -> tuple[Rows, Rows]:
        """The rows to write in the transaction that moves a branch, and the rows that it expects."""

    def forget(self, ref: str) -> None:
        """Drop what is known of the branch: a move has failed, or may have."""


def rows_of_head(store: KVStore, branch: str | None, *others: str) -> Mapping[str, bytes]:
    """The rows that `Refs.head_in` needs for a branch, or for HEAD, and others, read at once."""
    # HEAD is mostly on the default branch: one round trip reads both.
    rows = [REF + HEADS + DEFAULT_BRANCH, REF + HEAD] if branch is None else [REF + HEADS + branch]
    return store.get_many([*others, *rows])


class Refs:
    """The refs of one store: `heads/<branch>`, `tags/<tag>`, `remotes/<remote>/<branch>`; never cached."""

    def __init__(self, store: KVStore, index: Index | None = None) -> None:
        """`index` is that of the branches, if the store has one."""
        self._store = store
        self._index = index
        self._latest = 0
        self._recent: tuple[str, ...] = ()

    def recent(self) -> tuple[str, ...]:
        """Some branches that this program has read lately, the latest first, and the default branch."""
        return *self._recent, HEADS + DEFAULT_BRANCH

    def mention(self, ref: str) -> None:
        """Make the branch the first of the `recent` ones."""
        self._recent = tuple(dict.fromkeys((ref, *self._recent)))[:_RECENT]

    def read(self, ref: str, known: ObjectId | None = None) -> ObjectId | None:
        """The commit that the ref names, None if there is no such ref; `known` itself, if it is that."""
        row = self._store.get(REF + ref)
        if known is not None and row == known.hex().encode():
            return known
        return self._commit_of(ref, row)

    def read_many(self, refs: Sequence[str]) -> Sequence[ObjectId | None]:
        """The commits that the refs name, None for each absent ref, read at once."""
        rows = self._store.get_many([REF + ref for ref in refs])
        return [self._commit_of(ref, rows.get(REF + ref)) for ref in refs]

    def _commit_of(self, ref: str, value: bytes | None) -> ObjectId | None:
        """The commit in the row of a ref, None without a row; a branch counts as read."""
        if ref.startswith(HEADS) and ref not in self._recent[:1]:
            self.mention(ref)
        if value is None:
            return None
        try:
            return ObjectId.parse(value.decode("ascii"))
        except ValueError as error:
            reason = f"the ref {ref} holds no commit id"
            raise CorruptStore(self._store.location, reason, repairable=True) from error

    def list(self, prefix: str) -> dict[str, ObjectId]:
        """The refs under `heads/`, `tags/` or `remotes/`, sorted, by the name after that prefix."""
        found = {}
        for key, value in self._store.items(REF + prefix):
            oid = self._commit_of(key, value)
            if oid is not None:
                found[key.removeprefix(REF + prefix)] = oid
        return dict(sorted(found.items()))

    def names(self, prefix: str, begin: str = "") -> Sequence[str]:
        """As `list`, the names alone, of those that begin so: no ref is read."""
        return list(self.each_name(prefix, begin))

    def each_name(self, prefix: str, begin: str = "") -> Iterator[str]:
        """As `names`. A store that lists its keys in order reads no more of them than are asked for."""
        keys: Iterable[str] = self._store.keys(REF + prefix + begin)
        if not (self._store.ordered and self._store.transactional):
            keys = sorted(keys)
        return (key.removeprefix(REF + prefix) for key in keys)

    def condition(self, ref: str, value: ObjectId | None) -> Mapping[str, bytes | None]:
        """The rows of a ref at this commit, None for absent in all rooms: a condition of a transaction."""
        if value is None and self._store.transactional:
            return {REF + ref: None, ROOM_OF + ref: None}
        return {REF + ref: _value(value)}

    def all(self) -> dict[str, ObjectId]:
        """Every ref by its full name, such as `heads/<branch>`, and HEAD if it is detached."""
        found = {}
        for prefix in (HEADS, TAGS, REMOTES):
            for name, oid in self.list(prefix).items():
                found[prefix + name] = oid
        head = self.head()
        if head.branch is None and head.commit is not None:
            found[HEAD] = head.commit
        return found

    def compare_and_swap(
        self,
        ref: str,
        *,
        expected: ObjectId | None,
        new: ObjectId | None,
        action: str,
        rows: Mapping[str, bytes | None] = MappingProxyType({}),
        expecting: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Move the ref from `expected` to `new` (None: absent), as `publish_all` does."""
        return self.publish_all([Move(ref, expected, new, action)], rows, expecting)

    def publish_all(
        self,
        moves: Sequence[Move],
        rows: Mapping[str, bytes | None],
        expecting: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Write the rows and move the refs, in one `transact`; False, with no move, if one was elsewhere.

        False also if a row, such as that of the last sweep, differs from its value in `expecting`. The line
        of a deletion is dated after all others of the ref: `fsck` takes an absent ref for lost unless its
        last line is a deletion. The line of a commit that was just made has its time, in the order of its
        branch. More than one move takes a store with transactions.
        """
        writes, conditions = dict(rows), dict(expecting)
        numbers: dict[str, int] = {}
        for ref, expected, new, action, order, room in moves:
            if room is not None:
                numbers[ref] = room
            place = time.time_ns()
            if order is not None and place - order * 1000 < _HOUR:
                place = order * 1000
            elif new is None or (expected is not None and ref.startswith(HEADS)):
                place = max(place, self._last_move(ref) + 1)
            line, writes[line] = self._reflog_line(ref, expected, new, action, place)
            # As `_value`, without two calls in each commit.
            writes[REF + ref] = None if new is None else new.hex().encode()
            conditions[REF + ref] = None if expected is None else expected.hex().encode()
            if expected is None:
                conditions |= self.condition(ref, None)
            if self._index is not None and ref.startswith(HEADS):
                changed, needed = self._index.moved(ref, expected, new, order, rows)
                writes |= changed
                conditions |= needed
            if new is None and ref.startswith(HEADS):
                writes[LABELS + ref] = None
        done = False
        try:
            done = self.transact(writes, conditions, numbers)
        finally:
            if not done and self._index is not None:
                for move in moves:
                    self._index.forget(move.ref)
        return done

    def transact(
        self,
        writes: Mapping[str, bytes | None],
        conditions: Mapping[str, bytes | None],
        rooms: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """Carry out the writes of a move; False, leaving no line in the reflogs, if the race is lost."""
        if rooms and isinstance(self._store, Rooms):
            done = self._store.transact_in(rooms, writes, conditions)
        else:
            done = self._store.transact(writes, conditions)
        if not done and not self._store.transactional:
            # Such a store may have written the lines, as it writes objects, before the swap failed.
            lines = [key for key, row in writes.items() if key.startswith(REFLOG) and row is not None]
            self._store.delete_many(self._store.present(lines))
        return done

    def end(
        self,
        ref: str,
        rows: Mapping[str, bytes | None],
        *,
        expected: ObjectId | None,
        but_head: bool = False,
    ) -> bool:
        """Delete a branch with its reflog, and write the rows; False if it is not at `expected`. With
        `but_head`, HEAD's branch stays: False too.

        In a store without transactions, lines of the reflog may stay if this is cut short; they go when their
        days are over.
        """
        condition = {REF + ref: _value(expected)}
        done = False

        def writes() -> Mapping[str, bytes | None]:
            nonlocal done
            is_spared = but_head and f"{HEADS}{self.head().branch}" == ref
            done = not is_spared and self._store.get(REF + ref) == condition[REF + ref]
            lines = dict.fromkeys(self._store.keys(f"{REFLOG}{ref}:"))
            return {**rows, **self.rows_of_end(ref, expected), **lines} if done else {}

        if self._store.exclusively(writes):
            return done
        found = writes()
        return done and self.transact(found, condition)

    def rows_of_end(self, ref: str, at: ObjectId | None) -> Rows:
        """The rows that go with a branch at this commit, besides its reflog."""
        changed: Rows = {}
        if self._index is not None:
            self._index.forget(ref)  # no condition would find that it is elsewhere by now
            changed, _ = self._index.moved(ref, at, None, None, {})
        return {**changed, **dict.fromkeys([REF + ref, LABELS + ref])}

    def lines(self, ref: str) -> dict[str, ReflogEntry]:
        """The lines of the ref's reflog by key, oldest first."""
        rows = dict(self._store.items(f"{REFLOG}{ref}:"))
        return {key: self.parse_line(key, rows[key]) for key in sorted(rows)}

    def _last_move(self, ref: str) -> int:
        """The time of the ref's last move by its reflog, in nanoseconds; perhaps by a clock that is ahead."""
        prefix = f"{REFLOG}{ref}:"
        times = [key.removeprefix(prefix)[:16] for key in self._store.keys(prefix)]
        return max((int(time, 16) for time in times if _TIME.fullmatch(time)), default=0)

    def head(self) -> Head:
        """The position of HEAD; on the branch `main` in a new store."""
        return self.head_in(rows_of_head(self._store, None))

    def head_in(self, rows: Mapping[str, bytes], branch: str | None = None) -> Head:
        """The position of a branch, or of HEAD, by the rows that `rows_of_head` read."""
        if branch is None:
            branch, value = DEFAULT_BRANCH, rows.get(REF + HEAD)
            if value is not None:
                text = value.decode("utf-8", "replace")
                if not text.startswith(_SYMBOLIC + HEADS):
                    return Head(None, self._commit_of(HEAD, value))
                branch = text.removeprefix(_SYMBOLIC + HEADS)
            if branch != DEFAULT_BRANCH:
                return Head(branch, self.read(HEADS + branch))
        return Head(branch, self._commit_of(HEADS + branch, rows.get(REF + HEADS + branch)))

    def sweep(self) -> bytes | None:
        """The mark of the last sweep of `gc`, which is the row `SWEEP`; None before the first.

        In a store with rooms, the marks of all that were used lately.
        """
        return self._store.marks() if isinstance(self._store, Rooms) else self._store.get(SWEEP)

    def set_head(
        self,
        *,
        branch: str | None = None,
        commit: ObjectId | None = None,
        action: str,
        existing: bool = False,
        expecting: Mapping[str, bytes | None] = MappingProxyType({}),
        rows: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Put HEAD on a branch, or detach it at a commit, and write the rows; the last caller wins.

        False, changing nothing, if a row differs from its value in `expecting`, or if the branch has to be an
        `existing` one and is gone.
        """
        value = (_SYMBOLIC + HEADS + branch).encode() if branch is not None else _value(commit)
        while all(self._store.get(key) == row for key, row in expecting.items()):
            before = self._store.get(REF + HEAD)
            old = self.head().commit
            conditions = {**expecting, REF + HEAD: before}
            new = commit
            if branch is not None:
                new = self.read(HEADS + branch)
                if existing:
                    if new is None:
                        return False
                    conditions[REF + HEADS + branch] = _value(new)
            line, text = self._reflog_line(HEAD, old, new, action)
            if self.transact({**rows, line: text, REF + HEAD: value}, conditions):
                return True
        return False

    def rows_of_move(
        self, ref: str, old: ObjectId | None, new: ObjectId, action: str, branch: str | None = None
    ) -> dict[str, bytes]:
        """The rows that put a ref on a commit, or HEAD on a `branch`, for `transact`."""
        value = new.hex().encode() if branch is None else (_SYMBOLIC + HEADS + branch).encode()
        line, text = self._reflog_line(ref, old, new, action)
        return {line: text, REF + ref: value}

    def reflog(self, ref: str) -> Iterator[ReflogEntry]:
        """The moves of the ref, newest first.

        A move comes before the one that led to its old commit, whatever their clocks said. Lines that do not
        connect keep their places.
        """
        aside: list[ReflogEntry] = []
        at: ObjectId | None = None
        for number, key in enumerate(sorted(self._store.keys(f"{REFLOG}{ref}:"), reverse=True)):
            value = self._store.get(key)
            if value is None:
                continue
            aside.append(self.parse_line(key, value))
            if number == 0:
                at = aside[0].new if ref == HEAD else self._commit_of(ref, self._store.get(REF + ref))
            while (found := next((line for line in aside if line.new == at), None)) is not None:
                aside.remove(found)
                at = found.old
                yield found
            if len(aside) > _MOST_ASIDE:
                yield from aside
                at = aside[-1].old
                aside = []
        yield from aside

    def parse_line(self, key: str, value: bytes) -> ReflogEntry:
        """The move that a reflog line records; CorruptStore if the line cannot be parsed."""
        try:
            old, new, action, *clock = decode(value)
            if not isinstance(action, str):
                raise ValueError("it says no action")
            order = int(key.rpartition(":")[2][:16], 16) // 1000
            (at,) = clock or [order]
            return ReflogEntry(_oid(old), _oid(new), moment(at), action, order)
        except (ValueError, TypeError) as error:
            reason = f"a bad reflog entry {key}: {error}"
            raise CorruptStore(self._store.location, reason, repairable=True) from error

    def _reflog_line(
        self,
        ref: str,
        old: ObjectId | None,
        new: ObjectId | None,
        action: str,
        place: int = 0,
    ) -> tuple[str, bytes]:
        """The key and value of a new line, dated now. Its place, in nanoseconds, is now by default."""
        # No ref name contains ":", so the log of "a" holds no line of "a/b".
        clock = time.time_ns()
        self._latest = max(place or clock, self._latest + 1)
        key = f"{REFLOG}{ref}:{self._latest:016x}"
        behind = (self._latest - clock) // 1000 >= ONE_SECOND
        value = Packer().pack([old, new, action, clock // 1000] if behind else [old, new, action])
        return key + line_check(key, value), value


def _value(oid: ObjectId | None) -> bytes | None:
    return None if oid is None else oid.hex().encode()


def _oid(raw: bytes | None) -> ObjectId | None:
    if raw is None:
        return None
    if len(raw) != ID_BYTES:
        raise ValueError("an id of 32 bytes is missing")
    return ObjectId(raw)
