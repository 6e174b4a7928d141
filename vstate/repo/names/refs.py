"""Refs: the names of commits that move, and the log of how they moved."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from blake3 import blake3

from vstate.errors import CorruptObject, CorruptStore, InvalidInput
from vstate.kv.base import KVStore
from vstate.objects.canonical import decode, encode
from vstate.objects.commit import microseconds, moment
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.names.lifetimes import Lifetime, Lifetimes, lifetime_key, read_lifetime

PREFIX = "r/"
HEADS = "heads/"
TAGS = "tags/"
REMOTES = "remotes/"
"""Tracking refs: `remotes/<remote>/<branch>` is where a branch of another store was when it was last seen."""
HEAD = "HEAD"
DEFAULT_BRANCH = "main"
REFLOG = "reflog/"
EXPIRED = "branch: expired"
CHECK_DIGITS = 8
SWEEP = "gc"
"""The key that changes whenever a sweep of `gc` deletes something."""

_SYMBOLIC = "ref: "
_LONGEST_NAME = 200
_TIME = re.compile("[0-7][0-9a-f]{15}")
_UNSAID = re.compile(r"((?:undo(?: [0-9]+ moves)?: |redo: )?commit(?: \(merge\))?): *")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|^/|/$|\.$|(^|/)\.|\.lock(/|$)|^@$|^-|^$")


def check_ref_name(name: str, what: str = "branch") -> str:
    """The name, if git's check-ref-format would take it for a branch; InvalidInput if not."""
    if not isinstance(name, str):
        raise TypeError(f"a {what} name is a str, not {type(name).__name__}")
    if len(name) > _LONGEST_NAME:
        raise InvalidInput(
            f"{name[:20]!r}… is not a {what} name: it has {len(name):,} characters, and {_LONGEST_NAME} are the most"
        )
    if _FORBIDDEN.search(name) or name == HEAD or not _is_utf8(name):
        raise InvalidInput(
            f"{name!r} is not a {what} name: as in git, no spaces, control characters, '~^:?*[\\', '..', "
            "'@{', no '/' or '.' at an end, no part that begins with '.' or ends in '.lock', not 'HEAD'"
        )
    return name


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def line_check(key: str, value: bytes) -> str:
    """What the key of a reflog's line ends with: a checksum, since an id in it may well be of no commit any more.

    It also keeps two moves of one ref in the same nanosecond apart.
    """
    return blake3(key.encode() + b"\0" + value).hexdigest(length=CHECK_DIGITS // 2)


class Head(NamedTuple):
    """Where HEAD is: on a branch (whose commit is None before the first), or detached at a commit."""

    branch: str | None
    commit: ObjectId | None


class ReflogEntry(NamedTuple):
    """One move of a ref: from `old` to `new` (None: absent) at `time`, by `action`."""

    old: ObjectId | None
    new: ObjectId | None
    time: datetime
    action: str


class Sweep(NamedTuple):
    """Which sweep of `gc` was the last one; `mark` is None before the first."""

    mark: bytes | None


class Refs:
    """The refs of one store: `heads/<branch>`, `tags/<tag>`, `remotes/<remote>/<branch>`. Nothing is cached."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._latest = 0
        self.lifetimes = Lifetimes(store)

    def read(self, ref: str) -> ObjectId | None:
        """The commit that the ref names, None if there is no such ref, or the branch has expired."""
        return self._found(ref, self._values([ref]))

    def read_many(self, refs: Sequence[str]) -> Sequence[ObjectId | None]:
        """The commits that the refs name, None for each that is not there, read at once."""
        values = self._values(refs)
        return [self._found(ref, values) for ref in refs]

    def _values(self, refs: Sequence[str], *others: str) -> Mapping[str, bytes]:
        """The rows of refs, with those that say when branches expire, and others, read at once."""
        keys = [PREFIX + ref for ref in refs]
        # Behind the refs: a store that reads one after the other has each row as it was then, or later.
        keys += [lifetime_key(ref) for ref in refs if ref.startswith(HEADS)]
        return self._store.get_many([*others, *keys])

    def _found(self, ref: str, values: Mapping[str, bytes]) -> ObjectId | None:
        value = values.get(PREFIX + ref)
        if ref.startswith(HEADS):
            row = values.get(lifetime_key(ref))
            self.lifetimes.note(ref, value, row)
            if row is not None and read_lifetime(row).is_over:
                return None
        return self._parse(ref, value)

    def list(self, prefix: str) -> dict[str, ObjectId]:
        """The refs under `heads/`, `tags/` or `remotes/`, sorted, by the name behind that prefix."""
        over = set(self.lifetimes.over()) if prefix == HEADS else ()
        found = {}
        for key, value in self._store.items(PREFIX + prefix):
            oid = self._parse(key, value)
            if oid is not None and key.removeprefix(PREFIX) not in over:
                found[key.removeprefix(PREFIX + prefix)] = oid
        return dict(sorted(found.items()))

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
    ) -> bool:
        """Move the ref from `expected` to `new` (None: absent); False, and nothing, if it was elsewhere."""
        return self.publish(ref, {}, expected=expected, new=new, action=action)

    def publish(
        self,
        ref: str,
        rows: Mapping[str, bytes | None],
        *,
        expected: ObjectId | None,
        new: ObjectId | None,
        action: str,
        not_before: datetime | None = None,
        sweep: Sweep | None = None,
        expecting: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Write the rows and move the ref, in one `transact`; False, with the ref where it was, if it moved.

        False also if `sweep` is given and not the last one any more, or a row has not the value that
        `expecting` says. What a branch that expired leaves counts as absent; a branch that slides begins its time anew.
        The reflog's line is dated `not_before` that time, whatever the clock says; that of a deletion after all the
        others, since `fsck` takes a ref for lost that the last line does not say to be deleted.
        """
        earliest = 0 if not_before is None else microseconds(not_before) * 1000
        if new is None:
            earliest = max(earliest, self._last_move(ref) + 1)
        before, after = _value(expected), _value(new)
        lines, lived = dict[str, bytes](), dict[str, bytes | None]()
        is_branch = ref.startswith(HEADS)
        row = self.lifetimes.row(ref, before) if is_branch else None
        if row is not None or self.lifetimes.is_wanted(ref):  # mostly a branch never expires
            life = read_lifetime(row)
            if expected is None and row is not None:
                before, lines, life = self._begun_anew(ref, row)
            elif life.is_over:
                return False
            earliest = max(earliest, life.since * 1000)
            now = None if new is None else self.lifetimes.moved(ref, life).encode()
            if now != row:
                lived[lifetime_key(ref)] = now
        line, text = self._reflog_line(ref, expected, new, action, earliest)
        lines[line] = text
        writes = {**lived, **rows, **lines, PREFIX + ref: after}
        conditions = {PREFIX + ref: before, **expecting}
        if sweep is not None:
            conditions[SWEEP] = sweep.mark
        done = self._transact(writes, conditions)
        if done and is_branch:
            self.lifetimes.note(ref, after, writes.get(lifetime_key(ref), row))  # `rows` may have one, too
        return done

    def _transact(self, writes: Mapping[str, bytes | None], conditions: Mapping[str, bytes | None]) -> bool:
        """Carry out the writes of a move, its lines of reflogs among them; False, and no line, if the race is lost."""
        done = self._store.transact(writes, conditions)
        if not done and not self._store.transactional:
            # It may have written them, as it does objects, before the swap failed.
            lines = self._store.present([key for key in writes if key.startswith(REFLOG)])
            self._store.delete_many(lines)
        return done

    def _begun_anew(self, ref: str, row: bytes) -> tuple[bytes | None, dict[str, bytes], Lifetime]:
        """What is left where a branch expired and a new one is to begin: its value, the line of its end, and the
        lifetime that the new one has so far.
        """
        value = self._store.get(PREFIX + ref)
        if value is not None and read_lifetime(row).is_over:
            if self._store.transactional:
                line, text = self._reflog_line(ref, self._parse(ref, value), None, EXPIRED)
                return value, {line: text}, self._since_now()
            self.drop_expired(ref, {})
            row = self._store.get(lifetime_key(ref)) or row
        # Not without a row: the one of the old branch would go after the new one is there, or not at all.
        return None, {}, Lifetime(None, max(read_lifetime(row).since, 1))

    def _since_now(self) -> Lifetime:
        return Lifetime(None, self._latest // 1000 + 1)

    def drop_expired(self, ref: str, rows: Mapping[str, bytes | None]) -> bool:
        """Delete a branch that has expired, and write the rows; False if it has moved meanwhile.

        Its reflog counts as that of a branch that is gone for good, and so does a HEAD on it as one on a new branch.
        """
        values = self._store.get_many([PREFIX + ref, lifetime_key(ref), PREFIX + HEAD])
        value = values.get(PREFIX + ref)
        if value is None or not read_lifetime(values.get(lifetime_key(ref))).is_over:
            return False
        line, text = self._reflog_line(ref, self._parse(ref, value), None, EXPIRED, self._last_move(ref) + 1)
        writes: dict[str, bytes | None] = {**rows, line: text, PREFIX + ref: None}
        life = {lifetime_key(ref): self._since_now().encode()}
        if values.get(PREFIX + HEAD) == (_SYMBOLIC + ref).encode():
            line, text = self._reflog_line(HEAD, None, None, EXPIRED)
            writes[line] = text
        if self._store.transactional:
            return self._transact({**writes, **life}, {PREFIX + ref: value})
        # Not before the branch is gone: interrupted, that would go on living.
        return self._transact(writes, {PREFIX + ref: value}) and self._store.transact(life, {})

    def _last_move(self, ref: str) -> int:
        """When the ref was moved last by what is logged, in nanoseconds: perhaps by a clock that is ahead."""
        prefix = f"{REFLOG}{ref}:"
        times = [key.removeprefix(prefix)[:16] for key in self._store.keys(prefix)]
        return max((int(time, 16) for time in times if _TIME.fullmatch(time)), default=0)

    def head(self) -> Head:
        """Where HEAD is; on the branch `main` in a new store."""
        # Where HEAD is on the default branch, as it mostly is, one read does for both.
        values = self._values([HEADS + DEFAULT_BRANCH], PREFIX + HEAD)
        value = values.get(PREFIX + HEAD)
        if value is None:
            return Head(DEFAULT_BRANCH, self._found(HEADS + DEFAULT_BRANCH, values))
        text = value.decode("utf-8", "replace")
        if text.startswith(_SYMBOLIC + HEADS):
            branch = text.removeprefix(_SYMBOLIC + HEADS)
            return Head(branch, self.read(HEADS + branch))
        return Head(None, self._parse(HEAD, value))

    def sweep(self) -> Sweep:
        """The last sweep of `gc`."""
        return Sweep(self._store.get(SWEEP))

    def set_head(
        self,
        *,
        branch: str | None = None,
        commit: ObjectId | None = None,
        action: str,
        sweep: Sweep | None = None,
    ) -> bool:
        """Put HEAD on a branch, or detach it at a commit; the last one to ask has it.

        False, and nothing, if `sweep` is given and not the last one any more.
        """
        value = (_SYMBOLIC + HEADS + branch).encode() if branch is not None else _value(commit)
        while sweep is None or self.sweep() == sweep:
            before = self._store.get(PREFIX + HEAD)
            old = self.head().commit
            new = self.read(HEADS + branch) if branch is not None else commit
            line, text = self._reflog_line(HEAD, old, new, action)
            conditions = {PREFIX + HEAD: before}
            if sweep is not None:
                conditions[SWEEP] = sweep.mark
            if self._transact({line: text, PREFIX + HEAD: value}, conditions):
                return True
        return False

    def replace(
        self,
        ref: str,
        *,
        raw: bytes | None,
        new: ObjectId,
        action: str,
        aside: str | None = None,
        branch: str | None = None,
    ) -> bool:
        """Put a ref, or HEAD, on a commit whatever its value `raw` means; False if it has another by now.

        `raw` is None where there is no row. `aside` is the key under which that value is kept; `branch` the
        one that HEAD is to follow.
        """
        try:
            old = self._parse(ref, raw)
        except CorruptStore:
            old = None
        writes = self._replacing(ref, old, new, action, branch)
        if aside is not None and raw is not None:
            writes[aside] = raw
        return self._transact(writes, {PREFIX + ref: raw})

    def replace_unreadable(
        self, ref: str, *, new: ObjectId, action: str, aside: str, branch: str | None = None
    ) -> bool:
        """As `replace`, for a ref whose value the store cannot read; False if it can by now."""
        writes = {**self._replacing(ref, None, new, action, branch), aside: b""}
        done = False

        def plan() -> Mapping[str, bytes | None]:
            nonlocal done
            try:
                self._store.get(PREFIX + ref)
                done = False
            except (CorruptObject, CorruptStore):
                done = True
            return writes if done else {}

        # A store that cannot keep others out: nobody swaps a row that cannot be read for another.
        if not self._store.exclusively(plan) and plan():
            self._store.set_many(writes)
        return done

    def _replacing(
        self, ref: str, old: ObjectId | None, new: ObjectId, action: str, branch: str | None
    ) -> dict[str, bytes]:
        value = new.hex().encode() if branch is None else (_SYMBOLIC + HEADS + branch).encode()
        line, text = self._reflog_line(ref, old, new, action)
        return {line: text, PREFIX + ref: value}

    def reflog(self, ref: str) -> Iterator[ReflogEntry]:
        """The moves of the ref, newest first."""
        for key in sorted(self._store.keys(f"{REFLOG}{ref}:"), reverse=True):
            value = self._store.get(key)
            if value is not None:
                yield self.parse_line(key, value)

    def parse_line(self, key: str, value: bytes) -> ReflogEntry:
        """What a line of a reflog says; CorruptStore if it makes no sense."""
        try:
            old, new, action = decode(value)
            if not isinstance(action, str):
                raise ValueError("it says no action")
            at = moment(int(key.rpartition(":")[2][:16], 16) // 1000)
            # vstate 0.1.0 wrote nothing behind the colon for a commit without a message.
            unsaid = _UNSAID.fullmatch(action)
            return ReflogEntry(_oid(old), _oid(new), at, unsaid[1] if unsaid else action)
        except (ValueError, TypeError) as error:
            raise CorruptStore(self._store.location, f"a bad reflog entry {key}: {error}") from error

    def _reflog_line(
        self,
        ref: str,
        old: ObjectId | None,
        new: ObjectId | None,
        action: str,
        earliest: int = 0,
    ) -> tuple[str, bytes]:
        """The key and the value of a line of now, or of `earliest` if that is later, in nanoseconds."""
        # ":" is in no ref name, so the log of "a" holds no line of "a/b".
        self._latest = max(time.time_ns(), self._latest + 1, earliest)
        key = f"{REFLOG}{ref}:{self._latest:016x}"
        value = encode([old, new, action])
        return key + line_check(key, value), value

    def _parse(self, ref: str, value: bytes | None) -> ObjectId | None:
        if value is None:
            return None
        try:
            return ObjectId.parse(value.decode("ascii"))
        except ValueError as error:
            raise CorruptStore(self._store.location, f"the ref {ref} holds no commit id") from error


def _value(oid: ObjectId | None) -> bytes | None:
    return None if oid is None else oid.hex().encode()


def _oid(raw: bytes | None) -> ObjectId | None:
    if raw is None:
        return None
    if len(raw) != ID_BYTES:
        raise ValueError("an id of 32 bytes is missing")
    return ObjectId(raw)
