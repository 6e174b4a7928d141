"""Plan: how the slots in hand differ from a tree, and the step of each slot once the changes are committed.

Making a plan changes only caches, so an exception at any line leaves nothing to undo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vstate.errors import CorruptObject, VStateError
from vstate.objects import expiry, tree
from vstate.objects.expiry import EXPIRING, Expiry, split_expiry, with_expiry
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.stream import BLOB_BYTES
from vstate.repo.objects import Overlay
from vstate.repo.repository import Repository
from vstate.state.slots import (
    ABSENT,
    CLEAN,
    FORGET,
    NO_ENTRIES,
    UNASKED,
    UNREAD,
    Base,
    Slot,
    SlotTable,
    Step,
)
from vstate.state.tracking import is_unshared
from vstate.values.entry import (
    PICKLE,
    Encoded,
    Entry,
    Reader,
    encode_unchecked,
    entry_chunks,
    is_stored_plain,
)
from vstate.values.pickle_errors import culprit, own_error
from vstate.values.same_value import is_alike_in_parts, may_count_partly


class Plan:
    """The difference between the slots and a tree.

    - `changes`: the new entry of each key that differs, None for a deleted key; `encoded` the same before
      they are stored, and `objects` the objects that the entries need.
    - `unchanged`: keys that were set to their committed value, or deleted and not committed: no change for a
      commit, but a savepoint has to set them again.
    - `steps`: the successor of each slot, once the changes are committed.
    - `unshared`: keys whose values nobody outside could reach.
    - `unpicklable`: for each value that could not be stored, its part that is to blame.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self.changes: dict[str, bytes | None] = {}
        self.encoded: dict[str, Encoded | None] = {}
        self.objects: NewObjects = {}
        self.unchanged: dict[str, Encoded | None] = {}
        self.steps: dict[str, Step] = {}
        self.unshared: list[str] = []
        self.unpicklable: dict[str, str] = {}

    def add(self, key: str, value: object, encoded: Encoded, due: Expiry | None) -> bool:
        """Note the new value of a key, and when it expires; False if it would not load, which is noted."""
        try:
            encoded = encoded if encoded.check is None else encoded.checked()
        except Exception as error:  # loading runs the classes' own code, which may raise anything
            self.unpicklable[key] = culprit(value, f'state["{key}"]', error)
            return False
        if due is not None:
            encoded = encoded._replace(entry=with_expiry(encoded.entry, due))
        self.changes[key], self.encoded[key] = encoded.entry, encoded
        if encoded.objects:
            self.objects.update(encoded.objects)
        return True

    @property
    def staged(self) -> dict[str, Encoded | None]:
        """The entries that bring the keys back to this state."""
        return {**self.encoded, **self.unchanged}

    @property
    def touched(self) -> set[str]:
        """The keys that differ from the tree, or were set to the value there."""
        return {*self.changes, *self.unpicklable, *self.unchanged}

    @property
    def only_read(self) -> set[str]:
        """The keys of values that are as committed, and that nobody outside could reach."""
        return {*self.unshared} - self.touched

    def reader(self) -> Reader:
        """A reader that finds the plan's objects besides the stored ones."""
        return Overlay(self._repo.objects, dict(self.objects))


def make_plan(
    repo: Repository, table: SlotTable, root: ObjectId | None, keys: Iterable[str] | None = None
) -> Plan:
    """Compare every slot that may differ from the tree, or those of the keys. The handle's lock is held.

    A value that somebody may edit leaves the cache first. So its readers wait for the lock, and no edit comes
    between counting its references and encoding it.
    """
    plan, slots = Plan(repo), table.slots
    if table.timed:
        _drop_expired(table)
    for key in sorted(table.open | table.dirty) if keys is None else keys:
        slot = slots.get(key)
        if slot is None or (slot.fixed and not slot.dirty):
            continue
        if slot.value is ABSENT:
            if tree.lookup(repo.objects.node, root, key) is not None:
                plan.changes[key] = plan.encoded[key] = None
            else:
                plan.unchanged[key] = None
            plan.steps[key] = slot, FORGET
        elif slot.value is UNREAD:
            _plan_expiry(plan, key, slot, tree.lookup(repo.objects.node, root, key))
        else:
            _plan_value(plan, repo, table, key, slot, root)
    return plan


def out_of_reach(table: SlotTable) -> Iterator[str]:
    """The keys of values that were not set, and that nobody outside can reach. The handle's lock is held."""
    for key in table.open - table.dirty:
        slot = table.slots.get(key)
        if slot is not None and not slot.fixed:
            if key in table.cache:
                del table.cache[key]
            if is_unshared([slot.value]):
                yield key


def _drop_expired(table: SlotTable) -> None:
    """Drop the slots of keys that have expired. One that is dirty becomes a staged deletion."""
    at, steps = expiry.now(), dict[str, Step]()
    for key in sorted(table.timed):
        slot = table.slots.get(key)
        if slot is not None and slot.over(at):
            steps[key] = slot, Slot(ABSENT, True, True) if slot.dirty else FORGET
    if steps:
        table.apply(steps)


def _plan_value(
    plan: Plan, repo: Repository, table: SlotTable, key: str, slot: Slot, root: ObjectId | None
) -> None:
    if not slot.fixed:
        if key in table.cache:
            del table.cache[key]
        if is_unshared([slot.value]):  # before `value` refers to it too
            plan.unshared.append(key)
    value, base = slot.value, slot.base
    if base is not None and base.plain and not slot.dirty and is_stored_plain(value, base.entry):
        return
    if base is None and root is not None:
        base = _read_base(repo, key, slot, root)
    try:
        encoded = encode_unchecked(value, () if base is None else base.chunks)
    except Exception as error:  # pickling runs the classes' own code, which may raise anything
        if slot.dirty or base is None or not _is_alike_in_parts(repo, key, value, base):
            plan.unpicklable[key] = culprit(value, f'state["{key}"]', error)
        return
    if base is not None and base is slot.base and not slot.dirty and encoded.entry == base.entry:
        return  # mostly so: nobody has edited the value
    changed, before = True, None
    if base is not None:
        same, base = _compare(repo, key, slot, base, encoded)
        changed, before = not same, base.expiry
        if base is not slot.base and not slot.fixed and table.slots.get(key) is slot:
            table.slots[key] = slot = slot.replaced(base=base)
    due = None if before is None and slot.wanted is UNASKED else slot.next_expiry(before)
    if changed or due != before:
        if not plan.add(key, value, encoded, due):
            return
        if not slot.fixed:
            base = Base(encoded.entry, encoded.chunks, encoded.size, False, NO_ENTRIES, due)
    elif not slot.dirty:
        return
    elif slot.is_set:
        plan.unchanged[key] = encoded._replace(entry=with_expiry(encoded.entry, due))
    if slot.fixed and due is None:
        plan.steps[key] = slot, CLEAN
        table.idle += encoded.size
    else:
        at = None if due is None else due.at
        plan.steps[key] = slot, Slot(value, slot.fixed, False, None if slot.fixed else base, at)


def _plan_expiry(plan: Plan, key: str, slot: Slot, data: bytes | None) -> None:
    """Plan the change of an expiry alone. Without an entry the key went with a commit of somebody else."""
    plan.steps[key] = slot, FORGET
    if data is None:
        return
    bare, before = split_expiry(data)
    due = slot.next_expiry(before)
    if due != before:
        plan.changes[key] = with_expiry(bare, due)
        plan.encoded[key] = Encoded(with_expiry(bare, due), {}, (), 0)


def _read_base(repo: Repository, key: str, slot: Slot, root: ObjectId) -> Base | None:
    """The base of a key that was set without being read; None if there is none, or it has expired."""
    data, due = tree.lookup(repo.objects.node, root, key), None
    if data is None:
        return None
    if data[:1] in EXPIRING:
        if slot.hides(data):
            return None
        data, due = split_expiry(data)
    # The chunks of the committed value only save time, and only where the new value is long.
    if not slot.fixed or (type(slot.value) in (bytes, str) and len(slot.value) > BLOB_BYTES):
        try:
            entry = repo.parse_entry(key, data)
            chunks = entry_chunks(entry, repo.objects)
            return Base(data, chunks, entry.size, loaded=False, expiry=due)
        except CorruptObject:  # a damaged value may be replaced
            pass
    return Base(data, (), 0, loaded=False, expiry=due)


def _compare(repo: Repository, key: str, slot: Slot, base: Base, encoded: Encoded) -> tuple[bool, Base]:
    """Whether the slot's value, encoded so, is the committed one; and its base, which may know more then."""
    if encoded.entry == base.entry or encoded.entry in base.alternates:
        return True, base
    if slot.dirty and not base.loaded:
        return False, base
    entry, value = Entry.decode(encoded.entry), slot.value
    if entry.codec != PICKLE:
        return False, base
    same = False
    if base.loaded or (encoded.check is not None and not encoded.check.is_steady):
        same, base = _compare_copies(repo, key, value, base, encoded)
    if same or slot.dirty:
        return same, base
    # The program did not set the value. So a class that changed, or a result that was cached, is no edit.
    if _defined_anew(base, entry, encoded.definitions):
        return True, base
    if may_count_partly() and _is_alike_in_parts(repo, key, value, base):
        return True, base.replaced(alternates=base.alternates | {encoded.entry})
    return False, base


def _is_alike_in_parts(repo: Repository, key: str, value: object, base: Base) -> bool:
    """Whether the value is the committed one, in all parts that count."""

    def alike() -> bool:
        return is_alike_in_parts(value, lambda: repo.load(key, base.entry).value)

    try:
        return alike()
    except Exception as error:  # the classes' own code may raise anything: then the value counts as edited
        own_error(alike, error)
        return False


def _compare_copies(
    repo: Repository, key: str, value: object, base: Base, encoded: Encoded
) -> tuple[bool, Base]:
    """As `_compare`, for a value whose untouched copy may give other bytes than the stored ones."""
    try:
        if repo.parse_entry(key, base.entry).codec != PICKLE:
            return False, base
        copy = repo.load(key, base.entry).value
    except VStateError:  # the stored value does not load any more, so the value in hand is new
        return False, base
    again = encode_unchecked(copy, base.chunks)
    base = base.replaced(loaded=False, alternates=base.alternates | {again.entry})
    if again.entry == encoded.entry:
        return True, base
    # The first pickling of a class may leave something in the class, which is pickled with it from then on.
    now = encode_unchecked(value, base.chunks)
    check = encoded.check
    if now.entry == again.entry or check is None or check.is_steady:
        return now.entry == again.entry, base
    # The classes' own code may leave something in a value, too.
    second = encode_unchecked(copy, base.chunks)
    if second.entry == now.entry:
        return True, base.replaced(alternates=base.alternates | {second.entry})
    if second.entry == again.entry and now.entry == encoded.entry:
        check.note_steady()
    return False, base


def _defined_anew(base: Base, entry: Entry, definitions: frozenset[int]) -> bool:
    """Whether only the definitions of classes, which the entry has beside the value, differ."""
    if len(entry.parts) < 2:  # mostly so
        return False
    for known in map(Entry.decode, (base.entry, *base.alternates)):
        places = range(len(entry.parts))
        if (known.type, known.parts[:1], len(known.parts)) == (entry.type, entry.parts[:1], len(places)):
            differing = {i for i in places if known.parts[i] != entry.parts[i]}
            if differing <= definitions:
                return True
    return False
