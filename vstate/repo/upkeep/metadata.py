"""Metadata: the rows of a store that hold no objects, such as refs, reflog lines and leases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import OBJECT_PREFIX, ROOM_PREFIX, split_room
from vstate.kv.encrypted import MARK as ENCRYPTION
from vstate.kv.prefixed import RESERVED
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ObjectId
from vstate.repo import graph, sweeps
from vstate.repo.core import FORMAT_KEY, STAMP
from vstate.repo.history import SHALLOW, parse_shallow_row
from vstate.repo.names import refs, remotes
from vstate.repo.names.refs import (
    HEAD,
    HEADS,
    REF,
    REFLOG,
    REMOTES,
    SWEEP,
    TAGS,
    ReflogEntry,
    Refs,
    ref_of_line,
)
from vstate.repo.objects import DAMAGED, INCONSISTENT, REPLACED, TRASH, parse_replaced
from vstate.repo.rooms import GONE, ROOM_OF, room_in
from vstate.repo.rules import keeps, labels, leases, policies, workspaces
from vstate.repo.upkeep.damage import Damage
from vstate.repo.upkeep.salvage import Row, Salvage, Unreadable

_ID = re.compile("[0-9a-f]{64}")
_LINE = re.compile(rf"(reflog/(.+):[0-9a-f]{{16}})([0-9a-f]{{{refs.CHECK_DIGITS}}})", re.DOTALL)
_SYMBOLIC = b"ref: heads/"
_REFS = (HEADS, TAGS, REMOTES)
_IN_REF = (*(REF + prefix for prefix in _REFS), refs.LABELS, refs.WITH, refs.NEWEST)


def _check_trash(row: bytes) -> None:
    if len(row) <= 8:
        raise ValueError("it holds no object")


def _check_entry(row: bytes) -> None:
    if room_in(row) is None:
        raise ValueError("it names no room")


_PARSERS: Mapping[str, tuple[str, Callable[[str, bytes], object]]] = {
    remotes.REMOTE: ("remote", lambda _, row: remotes.parse_remote(row)),
    keeps.RULES: ("keep", lambda _, row: keeps.parse_rules(row)),
    leases.LEASE: ("lease", lambda _, row: leases.parse_lease(row)),
    leases.SIGHT: ("sight of a lease", lambda _, row: leases.parse_sights(row)),
    policies.POLICY: ("policy", lambda _, row: policies.parse_policies(row)),
    workspaces.WORKSPACE: ("workspace", lambda _, row: workspaces.parse_workspace(row)),
    refs.LABELS: ("labels", lambda _, row: labels.parse_labels(row)),
    graph.GRAPH: ("graph", graph.read_segment),
    sweeps.ARRIVED: ("arrival", lambda _, row: sweeps.check_arrival(row)),
    REPLACED: ("replaced commits", lambda _, row: parse_replaced(row)),
    TRASH: ("trash", lambda _, row: _check_trash(row)),
    ROOM_OF: ("room of a ref", lambda _, row: _check_entry(row)),
    GONE: ("room of a deleted ref", lambda _, row: _check_entry(row)),
}
"""By prefix, the kind of the rows, and the function that parses one with its key."""


def object_id(key: str) -> ObjectId | None:
    """The id of the object with this key; None if the key is not that of an object."""
    digits = key.removeprefix(OBJECT_PREFIX)
    return ObjectId.parse(digits) if OBJECT_PREFIX + digits == key and _ID.fullmatch(digits) else None


def is_foreign(key: str) -> bool:
    """Whether vstate did not write a row that holds no object."""
    kind, slash, name = key.partition("/")
    if kind + slash == REF:
        return name != HEAD and not key.startswith(_IN_REF)
    if not slash:
        return key not in (FORMAT_KEY, SWEEP, ENCRYPTION)
    if kind + slash in (OBJECT_PREFIX, ROOM_PREFIX):
        return not split_room(key)[0]
    return kind not in RESERVED


def noted(key: str) -> str | None:
    """The id, in hex, of the object that a row under `damaged/` is about; None if it is about none."""
    digits = key.removeprefix(INCONSISTENT) if key.startswith(INCONSISTENT) else key.removeprefix(DAMAGED)
    return digits if _ID.fullmatch(digits) else None


class Metadata:
    """Reads and checks the rows that hold no objects; reports damage to `found`. Afterwards it has:

    - `rows`: the rows of HEAD, branches, tags and tracking refs; None for a ref whose row is lost;
    - `refs`: the commits that they name, of branches first, then of a detached HEAD, then of others;
    - `broken`: the refs that name no commit;
    - `ends`: by commit, the parents that it has in this store, of those with other ones;
    - `bad`: other rows that cannot be decoded, by key;
    - `lost`: the ids of objects that an earlier repair noted as lost or as inconsistent, and that still are;
    - `healed`: the keys of such notes on lost objects that are back, and on inconsistent ones that are gone.
    """

    def __init__(self, salvage: Salvage, found: Callable[[Damage], None]) -> None:
        self.salvage = salvage
        self._found = found
        self._parse_line = Refs(salvage.store).parse_line
        self.rows: dict[str, Row] = {}
        self.refs: dict[str, ObjectId] = {}
        self.broken: list[str] = []
        self.bad: dict[str, Row] = {}
        self.lost: set[str] = set()
        self.healed: list[str] = []
        self.reflog_lines = 0
        self._last: dict[str, tuple[str, ObjectId | None]] = {}
        """By ref, the key of its last reflog line, and where the ref went."""
        self.ends: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def parents(self, commit: Commit) -> tuple[ObjectId, ...]:
        """The parents that a commit has in this store."""
        return self.ends.get(commit.oid, commit.parent_ids)

    def read(self) -> None:
        """Read and check all rows, except the reflog and the format."""
        notes = {key: digits for key in self.salvage.keys(DAMAGED) if (digits := noted(key)) is not None}
        there = self.salvage.present(OBJECT_PREFIX + digits for digits in notes.values())
        for key, digits in notes.items():
            if (OBJECT_PREFIX + digits in there) is key.startswith(INCONSISTENT):
                self.lost.add(digits)
            else:
                self.healed.append(key)
        self.read_refs()
        mark = self.salvage.row(SWEEP)
        if isinstance(mark, Unreadable):
            self._mark_bad(SWEEP, "row", mark, mark.reason)
        self.read_ends()
        for prefix, (kind, parse) in _PARSERS.items():
            for key, row in self.salvage.items(prefix):
                try:
                    parse(key, _readable(row))
                except (ValueError, CorruptStore) as error:
                    self._mark_bad(key, kind, row, f"{key}: {error}")

    def read_refs(self) -> None:
        """Read and check the rows of HEAD, branches, tags and tracking refs."""
        for key, row in sorted(self.salvage.items(REF), key=lambda ref: _rank(ref[0])):
            name = key.removeprefix(REF)
            if name == HEAD or name.startswith(_REFS):
                self.rows[name] = row
                self._check_ref(name, row)

    def read_ends(self) -> None:
        """Read and check the ends of histories; again, once new refs may have brought new ends."""
        for key, row in self.salvage.items(SHALLOW):
            try:
                commit, kept = parse_shallow_row(key, _readable(row))
                self.ends[commit] = kept
            except (ValueError, CorruptStore) as error:
                self._mark_bad(key, "shallow", row, f"{key} names no parents: {error}", readable=False)

    def refuse_end(self, commit: ObjectId, reason: str) -> None:
        """Report that the row with the parents that a commit has in this store cannot be right."""
        key = SHALLOW + commit.hex()
        self._mark_bad(key, "shallow", self.salvage.row(key), f"{key}: {reason}", readable=False)

    def _mark_bad(self, key: str, kind: str, row: Row, reason: str, *, readable: bool = True) -> None:
        if key not in self.bad:
            self.bad[key] = row
            self._found(Damage(key, kind, reason, readable))

    # Refs

    def _break(self, name: str, reason: str) -> None:
        self.broken.append(name)
        self._found(Damage(REF + name, "ref", reason))

    def _check_ref(self, name: str, row: bytes | Unreadable) -> None:
        # Behind its kind, and for a tracking ref behind the remote, stands the name of a branch or a tag.
        fault = "" if name == HEAD else _name_fault(name.split("/", 2 if name.startswith(REMOTES) else 1)[-1])
        if fault:
            self._found(Damage(REF + name, "ref", fault, readable=True))
        if not isinstance(row, bytes):
            self._break(name, row.reason)
        elif (oid := _commit_in(row)) is not None:
            self.refs[name] = oid
        elif name != HEAD or not row.startswith(_SYMBOLIC):  # `compare_with_reflogs` looks for HEAD's branch
            self._break(name, f"{row.decode('ascii', 'replace')[:80]!r} is no id of a commit")

    def compare_with_reflogs(self) -> None:
        """Find the refs that are not where a move of their reflog put them, once the lines are checked.

        Not in a store without transactions: there a process that died may have written the line of a new
        branch without the branch, or deleted a branch without the line.
        """
        is_listed = not any(prefix.startswith(REFLOG) for prefix in self.salvage.unlisted)
        for name, (_, new) in sorted(self._last.items()) if self.salvage.store.transactional else ():
            if is_listed and new != self.refs.get(name) and name != HEAD and name not in self.broken:
                self._compare_with_reflog(name)
        head = self.rows.get(HEAD)
        if isinstance(head, bytes) and head.startswith(_SYMBOLIC):
            self._check_branch_of_head(head.removeprefix(_SYMBOLIC).decode("utf-8", "replace"))

    def _compare_with_reflog(self, name: str) -> None:
        row = self.salvage.row(REF + name)
        lines = [self._line(*item) for item in sorted(self.salvage.items(f"{REFLOG}{name}:"))]
        if row != self.salvage.row(REF + name) or not lines:
            return  # somebody is moving it
        last = lines[-1]
        if row is None and name.startswith((HEADS, TAGS)):
            if isinstance(last, ReflogEntry) and last.new is not None:
                self.rows[name] = None
                self._break(name, f"its row is lost; by its reflog it was at {last.new}")
            return
        moves = [line for line in lines if isinstance(line, ReflogEntry)]
        at = _commit_in(row) if isinstance(row, bytes) else None
        if at is None or len(moves) < len(lines):  # with a damaged line the log says too little
            return
        # Counted, not in order: the lines of machines whose clocks differ may be out of order.
        times = Counter(line.new for line in moves)
        times.subtract(line.old for line in moves)
        is_commit = self.salvage.kind_of_whole(at, self.salvage.stored(at)) is COMMIT
        if times[at] < 1 <= max(times.values()) and is_commit:
            reason = (
                f"it is at {at}, but its reflog leads to {moves[-1].new or 'its deletion'}: another program "
                "has overwritten it, or the log has lost lines; see `vstate reflog`, and reset it"
            )
            self._found(Damage(REF + name, "ref", reason, readable=True))

    def _check_branch_of_head(self, branch: str) -> None:
        """Check that the branch of HEAD exists. It may have no commit yet, unless HEAD's reflog names one."""
        if fault := _name_fault(branch):
            self._break(HEAD, fault)
        elif HEADS + branch not in self.rows and not self._is_there(HEADS + branch):
            newest = max(self.salvage.keys(f"{REFLOG}{HEAD}:"), default=None)
            line = None if newest is None else self._line(newest, self.salvage.row(newest))
            if isinstance(line, ReflogEntry) and line.commits:
                self._break(HEAD, f"it is on branch {branch!r}, which does not exist")

    def _is_there(self, ref: str) -> bool:
        """Whether a ref has a row, here or in a room."""
        return any(self.salvage.row(start + ref) is not None for start in (REF, ROOM_OF))

    # The reflog

    def lines(self, ref: str = "", *, check: bool = False) -> Iterator[tuple[str, ReflogEntry]]:
        """The readable lines of a ref, oldest first, or of all refs in no order, each with the ref.

        With `check` they are counted, and the others are reported as damage.
        """
        rows = sorted(self.salvage.items(f"{REFLOG}{ref}:")) if ref else self.salvage.items(REFLOG)
        for key, row in rows:
            line = self._line(key, row)
            if isinstance(line, ReflogEntry):
                name = ref_of_line(key)
                if check:
                    self.reflog_lines += 1
                    if key > self._last.get(name, ("", None))[0]:
                        self._last[name] = key, line.new
                yield name, line
            elif check:
                self._mark_bad(key, "reflog", row, line)

    def _line(self, key: str, row: Row) -> ReflogEntry | str:
        """The content of a line, or the reason why it is damaged."""
        match = _LINE.fullmatch(key)
        if match is None:
            return f"{key} has no time"
        try:
            value = _readable(row)
            if match[3] != refs.line_check(match[1], value):
                return f"{key} does not match its checksum"
            return self._parse_line(key, value)
        except CorruptStore as error:
            return error.reason

    # The format

    def check_stamp(self) -> None:
        """Check that a store with refs says its format."""
        row = self.salvage.row(FORMAT_KEY)
        if isinstance(row, Unreadable):
            self._found(Damage(FORMAT_KEY, "format", row.reason))
        elif row != STAMP and (row is not None or self.rows):
            says = f"says that its format is {row[:20]!r}" if row else "names no format"
            reason = f"the store {says}; it is {STAMP!r}"
            self._found(Damage(FORMAT_KEY, "format", reason, readable=True))


def _commit_in(row: bytes) -> ObjectId | None:
    text = row.decode("ascii", "replace")
    return ObjectId.parse(text) if _ID.fullmatch(text) else None


def _readable(row: Row) -> bytes:
    if isinstance(row, bytes):
        return row
    raise CorruptStore("", "it is gone" if row is None else row.reason)


def _rank(key: str) -> tuple[int, str]:
    """Branches first, then HEAD, then tags: damage below several refs is reported for the first."""
    return (0 if key.startswith(REF + HEADS) else 1 if key == REF + HEAD else 2), key


def _name_fault(name: str) -> str:
    try:
        refs.check_ref_name(name)
    except InvalidInput as error:
        return str(error)
    return ""
