"""Metadata: the rows of a store that hold no objects, such as refs, reflog lines and leases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import OBJECT_PREFIX
from vstate.kv.encrypted import MARK as ENCRYPTION
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ID_BYTES, ObjectId
from vstate.repo.core import FORMAT, FORMAT_KEY
from vstate.repo.graph import GRAPH, read_segment
from vstate.repo.history import SHALLOW, parse_shallow_row
from vstate.repo.names.refs import (
    CHECK_DIGITS,
    HEAD,
    HEADS,
    LABELS,
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
from vstate.repo.rules.labels import parse_labels
from vstate.repo.rules.leases import LEASE, SIGHT, parse_lease, parse_sights
from vstate.repo.rules.policies import POLICY, parse_policies
from vstate.repo.sweeps import ARRIVED
from vstate.repo.upkeep.damage import Damage
from vstate.repo.upkeep.salvage import Row, Salvage, Unreadable

_READ = 256

_ID = re.compile("[0-9a-f]{64}")
_LINE = re.compile(rf"(reflog/(.+):[0-9a-f]{{16}})([0-9a-f]{{{CHECK_DIGITS}}})", re.DOTALL)
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
    LABELS,
    LEASE,
    SIGHT,
    LIFETIME,
    GRAPH,
    ARRIVED,
)


_PARSERS: Mapping[str, tuple[str, Callable[[str, bytes], object]]] = {
    REMOTE: ("remote", lambda _, row: parse_remote(row)),
    LIFETIME: ("expiry", lambda _, row: parse_lifetime(row)),
    LEASE: ("lease", lambda _, row: parse_lease(row)),
    SIGHT: ("sight of a lease", lambda _, row: parse_sights(row)),
    POLICY: ("policy", lambda _, row: parse_policies(row)),
    LABELS: ("labels", lambda _, row: parse_labels(row)),
    GRAPH: ("graph", read_segment),
}
"""By prefix, the kind of the rows, and the function that parses one with its key."""


_PREFIX_LENGTH = len(OBJECT_PREFIX)


def object_id(key: str) -> ObjectId | None:
    """The id of the object with this key; None if the key is not that of an object."""
    try:
        raw = bytes.fromhex(key[_PREFIX_LENGTH:])
    except ValueError:
        return None
    # fromhex also takes capitals and spaces.
    return ObjectId(raw) if len(raw) == ID_BYTES and OBJECT_PREFIX + raw.hex() == key else None


def is_foreign(key: str) -> bool:
    """Whether vstate did not write a row that holds no object."""
    return not key.startswith(_PREFIXES) and key not in _KEYS


class Metadata:
    """Reads and checks the rows that hold no objects; reports damage to `found`.

    `refs` are the commits of branches, of a detached HEAD and of tags, in this order. `raw_refs` are the
    values of these rows. `broken` are the refs that name no commit, and `gone` those of them whose row is
    lost, each with its last commit. `bad` are the keys of other rows that cannot be decoded.
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
        self.needs_stamp = False
        """Whether the format has to be written."""
        self.lost: set[str] = set()
        """The ids of objects that an earlier repair noted as lost or as inconsistent, and that still are."""
        self.healed: list[str] = []
        """The keys of notes on lost objects that are back, and on inconsistent objects that are gone."""
        self.reflog_lines = 0
        self._newest: dict[str, tuple[str, ObjectId | None]] = {}
        """By ref, the key of its last reflog line, and the commit in it."""
        self._moves: dict[str, Counter[ObjectId | None]] = {}
        """By ref, how much more often its reflog lines lead to a commit than away from it."""
        self._shallow: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def parents(self, commit: Commit) -> tuple[ObjectId, ...]:
        """The parents that a commit has in this store."""
        return self._shallow.get(commit.oid, commit.parent_ids)

    def is_shallow(self, oid: ObjectId) -> bool:
        """Whether a row says that the history ends at the commit."""
        return oid in self._shallow

    def read(self) -> None:
        """Read and check all rows, except the reflog and the format."""
        self._read_lost()
        for key, row in self._salvage.items(REF):
            name = key.removeprefix(REF)
            if name == HEAD or name.startswith((HEADS, TAGS, REMOTES)):
                if isinstance(row, bytes):
                    self.raw_refs[name] = row
                else:
                    self._break(name, row.reason)
        for name in sorted(self.raw_refs, key=_rank):
            self._read_ref(name, self.raw_refs[name])
        mark = self._salvage.row(SWEEP)
        if isinstance(mark, Unreadable):
            self._mark_bad(SWEEP, "row", mark.reason)
        self.read_ends()
        for prefix, (kind, parse) in _PARSERS.items():
            for key, row in self._salvage.items(prefix):
                try:
                    parse(key, _readable(row))
                except (ValueError, CorruptStore) as error:
                    self._mark_bad(key, kind, f"{key}: {error}")

    def read_ends(self) -> None:
        """Read and check the ends of histories; again, once new refs may have brought new ends."""
        for key, row in self._salvage.items(SHALLOW):
            try:
                commit, kept = parse_shallow_row(key, _readable(row))
                self._shallow[commit] = kept
            except (ValueError, CorruptStore) as error:
                self._mark_bad(key, "shallow", f"{key} names no parents: {error}", readable=False)

    def _mark_bad(self, key: str, kind: str, reason: str, *, readable: bool = True) -> None:
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
        """Check that the branch of HEAD exists. It may have no commit yet, unless HEAD's reflog names one."""
        if fault := _name_fault(branch):
            self._break(HEAD, fault)
            return
        if HEADS + branch in self.raw_refs or HEADS + branch in self.broken:
            return
        if self._salvage.row(REF + HEADS + branch) is not None:
            return  # the branch is new, or was not listed
        newest = max(self._salvage.keys(f"{REFLOG}{HEAD}:"), default=None)
        line = None if newest is None else self._line(newest, self._salvage.row(newest))
        if isinstance(line, ReflogEntry) and _named_in(line):
            self._break(HEAD, f"it is on branch {branch!r}, which does not exist")

    def find_lost_refs(self) -> None:
        """Find the refs that are missing although no reflog line says that they were deleted.

        Not in a store without transactions: there a process that died may have written the line of a new
        branch without the branch, or deleted a branch without the line.
        """
        if self._store.transactional and not any(key.startswith(REFLOG) for key in self._salvage.unlisted):
            for name, (key, new) in sorted(self._newest.items()):
                if new is None or name in self.raw_refs or name in self.broken:
                    continue
                if not name.startswith((HEADS, TAGS)) or self._salvage.row(REF + name) is not None:
                    continue
                # The last line is still the last one: nobody has moved the ref meanwhile.
                if key == max(self._salvage.keys(f"{REFLOG}{name}:"), default=None):
                    self.gone[name] = new
                    self._break(name, f"its row is lost; by its reflog it was at {new}")
            self._find_overwritten_refs()
        head = self.raw_refs.get(HEAD, b"")
        if head.startswith(_SYMBOLIC):
            self._read_branch_of_head(head.removeprefix(_SYMBOLIC).decode("utf-8", "replace"))

    def _find_overwritten_refs(self) -> None:
        """Find the refs that no move of their reflog put where they are.

        The moves are counted, not ordered: the lines of machines whose clocks differ may be out of order.
        """
        for name, moves in sorted(self._moves.items()):
            if name in self.refs and self._is_overwritten(name, self.refs[name], moves):
                # Again, with lines that are as new as the ref: others may have moved it meanwhile.
                moves, row = Counter(), self._salvage.row(REF + name)
                for key, line in self._salvage.items(f"{REFLOG}{name}:"):
                    found = self._line(key, line)
                    if isinstance(found, ReflogEntry):
                        _count_move(moves, found)
                if row == self._salvage.row(REF + name) and isinstance(row, bytes):
                    self._report_overwritten(name, row.decode("ascii", "replace"), moves)

    def _report_overwritten(self, name: str, text: str, moves: Counter[ObjectId | None]) -> None:
        at = ObjectId.parse(text) if _ID.fullmatch(text) else None
        if at is None or not self._is_overwritten(name, at, moves):
            return
        if self._salvage.kind_of_whole(at, self._salvage.stored(at)) is not COMMIT:
            return  # which is damage of its own
        last = self._newest[name][1]
        reason = (
            f"it is at {text}, but its reflog leads to {last or 'its deletion'}: another program has "
            "overwritten it, or the log has lost lines; see `vstate reflog`, and reset it"
        )
        self._found(Damage(REF + name, "ref", reason, readable=True))

    def _is_overwritten(self, name: str, at: ObjectId, moves: Counter[ObjectId | None]) -> bool:
        if name == HEAD or any(key.startswith(f"{REFLOG}{name}:") for key in self.bad):
            return False  # the branch of HEAD moves without HEAD; with a damaged line the log says too little
        return moves[at] < 1 and max(moves.values(), default=0) > 0

    # The reflog

    def lines(self, ref: str = "") -> Iterator[tuple[str, list[ObjectId]]]:
        """The readable lines of all refs, or of one, oldest first: the ref, and its new and old commits."""
        prefix = f"{REFLOG}{ref}:" if ref else REFLOG
        for key, row in sorted(self._salvage.items(prefix)) if ref else self._salvage.items(prefix):
            found = self._line(key, row)
            if isinstance(found, ReflogEntry):
                yield _ref_of(key), _named_in(found)

    def moves(self) -> Iterator[tuple[ObjectId | None, ObjectId | None]]:
        """The old and the new commit of every readable line."""
        for key, row in self._salvage.items(REFLOG):
            found = self._line(key, row)
            if isinstance(found, ReflogEntry):
                yield found.old, found.new

    def check_lines(self) -> Iterator[tuple[str, list[ObjectId]]]:
        """The readable lines, which are counted. The others are reported as damage."""
        for key, row in self._salvage.items(REFLOG):
            found = self._line(key, row)
            if isinstance(found, str):
                self._mark_bad(key, "reflog", found)
                continue
            ref = _ref_of(key)
            self.reflog_lines += 1
            _count_move(self._moves.setdefault(ref, Counter()), found)
            self._newest[ref] = max(
                self._newest.get(ref, ("", None)), (key, found.new), key=lambda line: line[0]
            )
            yield ref, _named_in(found)

    def _line(self, key: str, row: Row) -> ReflogEntry | str:
        """The content of a line, or the reason why it is damaged."""
        match = _LINE.fullmatch(key)
        if match is None:
            return f"{key} has no time"
        try:
            value = _readable(row)
            if match[3] != line_check(match[1], value):
                return f"{key} does not match its checksum"
            return self._parse_line(key, value)
        except CorruptStore as error:
            return error.reason

    # The format

    def check_stamp(self) -> None:
        """Check that a store with refs says its format."""
        row = self._salvage.row(FORMAT_KEY)
        if isinstance(row, Unreadable):
            self._found(Damage(FORMAT_KEY, "format", row.reason))
            return
        self.stamp = row
        self.needs_stamp = row != str(FORMAT).encode() and (row is not None or bool(self.raw_refs))
        if self.needs_stamp:
            says = (
                "names no format"
                if not row
                else f"says that it has format {row[:20].decode('ascii', 'replace')}"
            )
            self._found(
                Damage(FORMAT_KEY, "format", f"the store {says}; it has format {FORMAT}", readable=True)
            )


def _count_move(moves: Counter[ObjectId | None], line: ReflogEntry) -> None:
    for oid, step in ((line.new, 1), (line.old, -1)):
        moves[oid] += step
        if not moves[oid]:
            del moves[oid]


def noted(key: str) -> str | None:
    """The id, in hex, of the object that a row under `damaged/` is about; None if it is about none."""
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


def _rank(name: str) -> tuple[int, str]:
    """Branches first, then HEAD, then tags: damage below several refs is reported for the first."""
    return (0 if name.startswith(HEADS) else 1 if name == HEAD else 2), name


def _behind_prefix(ref: str) -> str:
    """The name of the branch or tag in the full name of a ref."""
    kind, slash, name = ref.partition("/")
    return name.partition("/")[2] if kind + slash == REMOTES else name


def _name_fault(name: str) -> str | None:
    try:
        check_ref_name(name)
    except InvalidInput as error:
        return str(error)
    return None
