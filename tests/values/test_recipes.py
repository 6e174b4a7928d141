"""Recipes: values that are read, merged and written back without loading anything."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pickle
import uuid

import numpy
import pytest

from vstate.values import pickling, recipes
from vstate.values.absent import Unmergeable
from vstate.values.budget import InertError, Limits
from vstate.values.merging import POLICIES
from vstate.values.opcodes import frameless


@dataclasses.dataclass
class Message:
    role: str
    text: str
    parts: list = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None

    def __repr__(self):
        return f"Slotted({self.value})"


class Colour(enum.Enum):
    RED = 1


class Failed(Exception):
    """A call that is dropped sets its attributes when it loads."""

    def __init__(self, *, code):
        super().__init__("failed")
        self.code = code

    def __repr__(self):
        return f"Failed({self.code})"


class Numbers(list):
    pass


class Names(dict):
    pass


def rewritten(value):
    """The value, read as Recipes, written and loaded."""
    data, buffers = pickling.dumps(value)
    again, more = recipes.dumps(recipes.read(data, buffers, Limits())[0])
    return pickling.loads(again, [bytearray(part) for part in more])


SHARED = Message("user", "hello")

VALUES = [
    [1, 1.5, None, True, "text", b"bytes", bytearray(b"x"), (1, 2), {1, 2}, frozenset({3}), 2**100, 1j],
    [Message("user", "hello", [Slotted(1)]), Colour.RED, Message, len, len],
    {"a": decimal.Decimal("1.50"), "b": fractions.Fraction(1, 3), "c": uuid.UUID(int=5)},
    {datetime.date(2026, 1, 2): datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)},
    [collections.OrderedDict(a=1), collections.defaultdict(list, a=[1]), collections.Counter("aab")],
    [collections.deque([1, 2], maxlen=3), Numbers([1, 2]), Names(a=1), slice(1, 2), range(3)],
    [ValueError("bad", 1), Failed(code=5), datetime.timedelta(seconds=4)],
    [numpy.arange(3), numpy.arange(1000), numpy.arange(4000)[::2], numpy.float64(2.5)],
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_what_is_read_is_written_as_it_was(value):
    """A value that goes through Recipes loads as it did before."""
    assert repr(rewritten(value)) == repr(value)
    assert type(rewritten(value)) is type(value)


def test_sharing_and_cycles_stay():
    """An object that is in two places, or in itself, is so again."""
    message = Message("user", "hello")
    message.parts.append(message)
    first, second = rewritten([message, message])
    assert first is second
    assert first.parts[0] is first


def test_writable_and_read_only_arrays_stay_so():
    """An array can be written to after the round trip if it could before."""
    fixed = numpy.arange(1000)
    fixed.flags.writeable = False
    writable, frozen = rewritten([numpy.arange(1000), fixed])
    assert (writable.flags.writeable, frozen.flags.writeable) == (True, False)


@pytest.mark.parametrize("value", [{Slotted: 1}, {Colour.RED}, {(1, Colour.RED): 1}, frozenset({Colour.RED})])
def test_objects_in_sets_and_keys_are_refused(value):
    """Only an object's own code says which others it equals, so a merge without that code is refused."""
    data, buffers = pickling.dumps(value)
    with pytest.raises(InertError, match="a set or the keys of a dict hold objects"):
        recipes.read(data, buffers, Limits())


def read(value):
    return recipes.read(*pickling.dumps(value), Limits())[0]


def test_a_long_bytearray_is_plain_data():
    """Its pickle is a reference to its buffer alone, and a merge gets a bytearray."""
    value = bytearray(b"x") * pickling.LONG_BYTEARRAY
    assert read(value) == rewritten(value) == value
    assert type(read(value)) is type(rewritten(value)) is bytearray


@pytest.mark.slow
def test_names_in_old_opcodes_are_no_plain_data():
    """A forged pickle may name a class by old opcodes; the cost of deep keys is bounded."""
    assert recipes.read(b"cos\nsystem\n.", (), Limits())[1] is False
    assert recipes.read(*pickling.dumps([1, "x", {2}]), Limits())[1] is True
    with pytest.raises(InertError):
        laugh = b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60))
        recipes.read(b"\x80\x04(K\x01\x94" + laugh + b"\x91.", (), Limits(nodes=100_000))


def test_forged_numbers_and_calls():
    """An impossible number is moved as an object. A pickle that drops an object is refused."""
    for name in (b"decimal\nDecimal\n(\x8c\x051.5.0", b"fractions\nFraction\n(\x8c\x031/0"):
        assert isinstance(recipes.read(b"c" + name + b"tR.", (), Limits())[0], recipes.Recipe)
    for call in (b"ca\nb\n(tR", b"ca\nb\n)\x81"):
        with pytest.raises(InertError, match="drops an object"):
            recipes.read(b"\x80\x04K\x01" + call + b"0.", (), Limits())


def test_policies_move_objects_that_they_do_not_look_into():
    """Append, union and deep take over objects as they are stored."""
    old = Message("user", "hello")
    base, ours, theirs = [old], [old, Message("user", "a")], [old, Message("user", "b", [Colour.RED])]
    for policy in ("append", "union"):
        merged = POLICIES[policy](*map(read, (base, ours, theirs)))
        assert pickling.loads(*recipes.dumps(merged)) == [old, ours[1], theirs[1]]
    merged = POLICIES["deep"](
        *map(read, ({"a": old, "b": old}, {"a": ours[1], "b": old}, {"a": old, "b": theirs[1]}))
    )
    assert pickling.loads(*recipes.dumps(merged)) == {"a": ours[1], "b": theirs[1]}
    for sides in ((old, ours[1], theirs[1]), ({"a": old}, {"a": ours[1]}, {"a": theirs[1]})):
        with pytest.raises(Unmergeable, match="both sides changed it"):
            POLICIES["deep"](*map(read, sides))


def test_a_list_tells_what_it_was_before_items_were_appended() -> None:
    """The lists of its first items come with the pickles that they have, down to one item."""
    items = [("a", {"n": number}, ("b", b"x" * number)) for number in range(5)]
    value, is_plain, firsts = recipes.read_list(frameless(pickle.dumps(items, 5)), (), Limits())
    assert (value, is_plain) == (items, True)
    assert firsts == [(items[:n], frameless(pickle.dumps(items[:n], 5))) for n in range(1, 5)]


SHARED: list[object] = []


@pytest.mark.parametrize(
    "value",
    [
        [(1, 2)],
        [],
        [[1], [2]],
        [{"a": 1}, {"b": [2]}],
        [(), (1, 2)],
        [("a", SHARED), ("b", SHARED)],
        [(number, "x") for number in range(1002)],
        [("a", "x" * 8_000), ("b", "y" * 8_500)],
        ((1, 2), (3, 4)),
    ],
)
def test_a_list_tells_nothing_that_may_not_have_been(value: object) -> None:
    """A list that is long, has one item, mutable items or two batches, and any other value tell nothing."""
    assert recipes.read_list(frameless(pickle.dumps(value, 5)), (), Limits()) == (value, True, [])
