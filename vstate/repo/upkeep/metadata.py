"""Rows: what a store holds besides objects: refs, HEAD, the reflog, ends of histories, policies, leases, the
format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import OBJECT_PREFIX
from vstate.kv.encrypted import MARK as ENCRYPTION
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.core import EXPIRY_FORMAT, FORMAT, FORMAT_KEY, SIGNED_COMMITS
from vstate.repo.history import SHALLOW, SHALLOW_FORMAT, parse_shallow_row
from vstate.repo.names.refs import (
    CHECK_DIGITS,
    HEAD,
    HEADS,
    LIFETIME,
    REF,
    REFLOG,
    REMOTES,
    SWEEP,
    TAGS,
    ReflogEntry,
    Refs,
    check_ref_name,
    line_check,
    parse_lifetime,
)
from vstate.repo.names.remotes import REMOTE, parse_remote
from vstate.repo.objects import DAMAGED, INCONSISTENT, TRASH
from vstate.repo.rules.leases import LEASE, parse_lease
from vstate.repo.rules.policies import POLICY, parse_policies
from vstate.repo.upkeep.damage import Damage
from vstate.repo.upkeep.salvage import Row, Salvage, Unreadable

_READ = 256

_ID = re.compile("[0-9a-f]{64}")
_LINE = re.compile(rf"(reflog/(.+):[0-9a-f]{{16}})([0-9a-f]{{{CHECK_DIGITS}}}|[0-9a-f]{{6}})", re.DOTALL)
_SYMBOLIC = b"ref: heads/"
_KEYS = (FORMAT_KEY, REF + HEAD, SWEEP, ENCRYPTION)
_PREFIXES = (
    REF + HEADS,
    REF + TAGS,
    REF + REMOTES,
    REMOTE,
    REFLOG,
    SHALLOW,
    TRASH,
    DAMAGED,
    POLICY,
    LEASE,
    LIFETIME,
)


def object_id(key: str) -> ObjectId | None:
    """The id of the object that is kept under this key; None if it is no object's."""
    if len(key) != len(OBJECT_PREFIX) + 64 or not key.startswith(OBJECT_PREFIX):
        return None
    digits = key[len(OBJECT_PREFIX) :]
    try:
        oid = ObjectId(bytes.fromhex(digits))
    except ValueError:
        return None
    return oid if oid.hex() == digits else None  # fromhex also takes capitals and spaces


def is_foreign(key: str) -> bool:
    """Whether a row that is no object's is none of vstate's at all."""
    return not key.startswith(_PREFIXES) and key not in _KEYS


class Rows:
    """Reads and checks the rows; what is wrong goes to `found`.

    `refs` are the commits that branches, a detached HEAD and tags name, in this order; `raw_refs` their
    values as they stand there; `broken` those that name none, `gone` those of them whose row is not there
    any more, with the commit that it held. `bad` are the keys of other rows that make no sense.
    """

    def __init__(self, salvage: Salvage, found: Callable[[Damage], None]) -> None:
        self._salvage = salvage
        self._store = salvage.store
        self._found = found
        self._parse_line = Refs(self._store).parse_line
        self.raw_refs: dict[str, bytes] = {}
        self.refs: dict[str, ObjectId] = {}
        self.broken: list[str] = []
        self.gone: dict[str, ObjectId] = {}
        self.bad: dict[str, None] = {}
        self.stamp: bytes | None = None
        self.expiring = False
        """Whether a branch has a lifetime."""
        self.needed_format = 0
        """What the stamp has to say, 0 when it says so."""
        self.lost: set[str] = set()
        """The ids of objects that an earlier repair noted as lost, and which still are, or as misleading."""
        self.healed: list[str] = []
        """The keys of such notes on objects that are there again, or, if misleading, gone."""
        self.reflog_lines = 0
        self._newest: dict[
            str, tuple[str, ObjectId | None]
        ] = {}  # by ref the last line, and where it moved to
        self._shallow: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def parents(self, commit: Commit) -> tuple[ObjectId, ...]:
        """The parents that a commit has in this store."""
        return self._shallow.get(commit.oid, commit.parents)

    def is_shallow(self, oid: ObjectId) -> bool:
        """Whether there is a note on which parents the commit has left."""
        return oid in self._shallow

    def read(self) -> None:
        """Read and check all but the reflog, what only that tells of the refs, and the format."""
        self._read_lost()
        for key, row in self._salvage.items(REF):
            name = key.removeprefix(REF)
            if name == HEAD or name.startswith((HEADS, TAGS, REMOTES)):
                if isinstance(row, bytes):
                    self.raw_refs[name] = row
                else:
                    self._break(name, row.reason)
        for name in sorted(self.raw_refs, key=_by_weight):
            self._read_ref(name, self.raw_refs[name])
        mark = self._salvage.row(SWEEP)
        if isinstance(mark, Unreadable):
            self._refuse(SWEEP, "row", mark.reason)
        self.read_ends()
        for key, row in self._salvage.items(POLICY):
            try:
                parse_policies(_readable(row))
            except (ValueError, CorruptStore) as error:
                self._refuse(key, "policy", f"{key}: {error}")

    def read_ends(self) -> None:
        """Read and check where histories end: again for what refs and lines lead to that came since, perhaps
        with ends of its own.
        """
        for key, row in self._salvage.items(SHALLOW):
            try:
                commit, kept = parse_shallow_row(key, _readable(row))
                self._shallow[commit] = kept
            except (ValueError, CorruptStore) as error:
                self._refuse(key, "shallow", f"{key} names no parents: {error}", readable=False)
        for key, row in self._salvage.items(REMOTE):
            try:
                parse_remote(_readable(row))
            except (ValueError, CorruptStore) as error:
                self._refuse(key, "remote", f"{key}: {error}")
        for key, row in self._salvage.items(LIFETIME):
            try:
                parse_lifetime(_readable(row))
                self.expiring = True
            except (ValueError, CorruptStore) as error:
                self._refuse(key, "expiry", f"{key}: {error}")
        for key, row in self._salvage.items(LEASE):
            try:
                parse_lease(_readable(row))
            except (ValueError, CorruptStore) as error:
                self._refuse(key, "lease", f"{key}: {error}")

    def _refuse(self, key: str, kind: str, reason: str, *, readable: bool = True) -> None:
        if key not in self.bad:
            self.bad[key] = None
            self._found(Damage(key, kind, reason, readable))

    def _read_lost(self) -> None:
        keys = self._salvage.keys(DAMAGED)
        while batch := list(islice(keys, _READ)):
            notes = {key: digits for key in batch if (digits := noted(key)) is not None}
            there = self._salvage.present(OBJECT_PREFIX + digits for digits in notes.values())
            for note, digits in notes.items():
                if (OBJECT_PREFIX + digits in there) is note.startswith(INCONSISTENT):
                    self.lost.add(digits)
                else:
                    self.healed.append(note)

    # Refs

    def _break(self, name: str, reason: str) -> None:
        self.broken.append(name)
        self._found(Damage(REF + name, "ref", reason))

    def _read_ref(self, name: str, value: bytes) -> None:
        if name != HEAD and (fault := _name_fault(_behind_prefix(name))):
            self._found(Damage(REF + name, "ref", fault, readable=True))
        if name == HEAD and value.startswith(_SYMBOLIC):
            return  # `find_lost_refs` knows whether the branch is there
        text = value.decode("ascii", "replace")
        if _ID.fullmatch(text):
            self.refs[name] = ObjectId.parse(text)
        else:
            self._break(name, f"{text[:80]!r} is no id of a commit")

    def _read_branch_of_head(self, branch: str) -> None:
        """HEAD may be on a branch that has no commit yet, but not if that had one when HEAD was put there."""
        if fault := _name_fault(branch):
            self._break(HEAD, fault)
            return
        if HEADS + branch in self.raw_refs or HEADS + branch in self.broken:
            return
        if self._salvage.row(REF + HEADS + branch) is not None:
            return  # made meanwhile, or not listed
        newest = max(self._salvage.keys(f"{REFLOG}{HEAD}:"), default=None)
        line = None if newest is None else self._line(newest, self._salvage.row(newest))
        if isinstance(line, ReflogEntry) and _named_in(line):
            self._break(HEAD, f"it is on branch {branch!r}, which is not there")

    def find_lost_refs(self) -> None:
        """Find the refs that are not there though, by the lines that were read, nobody has deleted them.

        Not in a store without transactions: there the line of a branch that was to be made may be all that is
        left of it, and that of one that was deleted may have been removed, by a process that died.
        """
        if self._store.transactional and not any(key.startswith(REFLOG) for key in self._salvage.unlisted):
            for name, (key, new) in sorted(self._newest.items()):
                if new is None or name in self.raw_refs or name in self.broken:
                    continue
                if not name.startswith((HEADS, TAGS)) or self._salvage.row(REF + name) is not None:
                    continue
                # No other line has come since that one was read: while the row was looked for, nobody moved
                # the ref.
                if key == max(self._salvage.keys(f"{REFLOG}{name}:"), default=None):
                    self.gone[name] = new
                    self._break(name, f"it is not there; by its reflog it was at {new}")
        head = self.raw_refs.get(HEAD, b"")
        if head.startswith(_SYMBOLIC):
            self._read_branch_of_head(head.removeprefix(_SYMBOLIC).decode("utf-8", "replace"))

    # The reflog

    def lines(self, ref: str = "") -> Iterator[tuple[str, list[ObjectId]]]:
        """The lines that make sense, of all refs or of one, and then the oldest first: the ref, and the
        commits named, the new one first.
        """
        prefix = f"{REFLOG}{ref}:" if ref else REFLOG
        for key, row in self._salvage.items(prefix, in_order=bool(ref)):
            found = self._line(key, row)
            if isinstance(found, ReflogEntry):
                yield _ref_of(key), _named_in(found)

    def moves(self) -> Iterator[tuple[ObjectId | None, ObjectId | None]]:
        """From where to where all the lines that make sense moved a ref."""
        for key, row in self._salvage.items(REFLOG):
            found = self._line(key, row)
            if isinstance(found, ReflogEntry):
                yield found.old, found.new

    def check_lines(self) -> Iterator[tuple[str, list[ObjectId]]]:
        """All the lines that make sense, counted; the others are damage."""
        for key, row in self._salvage.items(REFLOG):
            found = self._line(key, row)
            if isinstance(found, str):
                self._refuse(key, "reflog", found)
                continue
            ref = _ref_of(key)
            self.reflog_lines += 1
            self._newest[ref] = max(
                self._newest.get(ref, ("", None)), (key, found.new), key=lambda line: line[0]
            )
            yield ref, _named_in(found)

    def _line(self, key: str, row: Row) -> ReflogEntry | str:
        """What a line says, or what is wrong with it."""
        match = _LINE.fullmatch(key)
        if match is None:
            return f"{key} has no time"
        try:
            value = _readable(row)
            # Six digits are from before there was a checksum.
            if len(match[3]) == CHECK_DIGITS and match[3] != line_check(match[1], value):
                return f"{key} does not say what was written"
            return self._parse_line(key, value)
        except CorruptStore as error:
            return error.reason

    # The format

    def check_stamp(self, *, signed: bool, expiring: bool) -> None:
        """Check that older programs are told if they would misread the store."""
        row = self._salvage.row(FORMAT_KEY)
        if isinstance(row, Unreadable):
            self._found(Damage(FORMAT_KEY, "format", row.reason))
            return
        self.stamp = row
        needed = 1 if self.raw_refs else 0
        if self._shallow:
            needed = max(needed, SHALLOW_FORMAT)
        if signed:
            needed = max(needed, SIGNED_COMMITS)
        if expiring or self.expiring:
            needed = max(needed, EXPIRY_FORMAT)
        stamp = self.stamp or b""
        found = int(stamp) if stamp.isdigit() and len(stamp) < 10 else 0
        if found < needed or found > FORMAT or (self.stamp is not None and not found):
            self.needed_format = needed or 1
            says = f"says that it has format {found}" if self.stamp else "does not say which format it has"
            reason = f"the store {says}, and not {self.needed_format}"
            self._found(Damage(FORMAT_KEY, "format", reason, readable=True))


def noted(key: str) -> str | None:
    """The id, in hex, of the object that a row under `damaged/` is a note on; None if it is on none."""
    digits = key.removeprefix(INCONSISTENT) if key.startswith(INCONSISTENT) else key.removeprefix(DAMAGED)
    return digits if _ID.fullmatch(digits) else None


def _ref_of(line: str) -> str:
    return line.removeprefix(REFLOG).rpartition(":")[0]


def _named_in(line: ReflogEntry) -> list[ObjectId]:
    return [oid for oid in (line.new, line.old) if oid is not None]


def _readable(row: Row) -> bytes:
    if isinstance(row, bytes):
        return row
    raise CorruptStore("", "it is gone" if row is None else row.reason)


def _by_weight(name: str) -> tuple[int, str]:
    """Branches first, then HEAD, then tags: what several lead to is reported with the first."""
    return (0 if name.startswith(HEADS) else 1 if name == HEAD else 2), name


def _behind_prefix(ref: str) -> str:
    """The name of the branch or tag that a ref is of."""
    kind, slash, name = ref.partition("/")
    return name.partition("/")[2] if kind + slash == REMOTES else name


def _name_fault(name: str) -> str | None:
    try:
        check_ref_name(name)
    except InvalidInput as error:
        return str(error)
    return None
