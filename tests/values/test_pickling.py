"""Pickling: the values that are refused, the parts that an edit writes again, and plain pickles."""

from __future__ import annotations

import copyreg
import pickle
from collections import OrderedDict
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Unpicklable, Versioned
from vstate.errors import CannotLoad
from vstate.values.entry import encode_value
from vstate.values.opcodes import load_only_plain
from vstate.values.pickling import LONG_BYTEARRAY, dumps, pickled, plain_pickle


def test_an_open_file_is_refused(tmp_path: Path) -> None:
    """An open file is refused: a copy of its current content would not be the file."""
    state = Versioned()
    with (tmp_path / "f").open("w+") as file:
        state["f"] = file
        with pytest.raises(Unpicklable, match=r'state\["f"\]'):
            state.commit()


def test_parts_that_changed_places_are_not_written_again() -> None:
    """The objects of the new value leave out everything that the older value holds in any part."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    one, other = numpy.random.default_rng(1).bytes(100_000), numpy.random.default_rng(2).bytes(100_000)
    arrays = [numpy.frombuffer(data, "u1") for data in (one, other)]
    first = encode_value(arrays)
    assert len(first.chunks) == 3
    assert len(first.objects) > 100
    again = encode_value(arrays[::-1], first.chunks)
    assert len(again.objects) == 1  # the pickle, in which one comes before the other


def _added(value: Any, before: Any) -> int:
    """The bytes of the objects that the value has and the value before has not."""
    first = encode_value(before)
    objects = encode_value(value, first.chunks).objects
    return sum(len(new.body) for oid, new in objects.items() if oid not in first.objects)


def test_a_table_whose_rows_come_apart() -> None:
    """The rows of an array are stored once, also if they come in three arrays of other chunk sizes."""
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    table = numpy.random.default_rng(1).standard_normal((6, 200_000))
    row = table[3:4].copy()
    row[0, 100] = 7
    assert _added([table[:3], table[4:], row], [table]) < 300_000
    assert _added([table[:3], table[4:], row], [table[:3], table[3:4], table[4:]]) < 300_000


@pytest.mark.parametrize("length", [LONG_BYTEARRAY - 1, LONG_BYTEARRAY])
@pytest.mark.slow
def test_a_long_bytearray_is_a_buffer_beside_its_pickle(length: int) -> None:
    """Loading it copies nothing, and edits of the loaded value, of any length, are stored."""
    value = bytearray(b"0123456789abcdef") * (length // 16 + 1)
    del value[length:]
    state = Versioned()
    state["value"] = value
    state.commit()
    value += b"end"  # the commit has let go of its memory
    entry = state.repo.entry(state.repo.resolve("HEAD").root, "value")
    assert entry is not None
    assert entry.type == "bytearray"
    assert len(entry.parts) == (2 if length == LONG_BYTEARRAY else 1)
    if length == LONG_BYTEARRAY:
        assert entry.parts[0] == bytes.fromhex("8005972e")
    other = state.fork("other")
    assert type(other["value"]) is bytearray
    assert other["value"] == value[:-3]
    assert other.commit() is None
    other["value"][7] = 0
    other["value"] += b"more"
    assert other.commit() is not None
    stored = state.checkout("other")["value"]
    assert stored[:8] == b"0123456\0"
    assert stored.endswith(b"more")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_only_plain_data_is_loaded(protocol: int) -> None:
    """Whatever the protocol, a pickle that names a class or function is refused, and nothing is called."""
    plain = [None, 1.5, {"a": (1, [b"\x93\x8f", {2}])}] if protocol > 3 else [None, 1.5, {"a": (1, ["b"])}]
    assert load_only_plain(pickle.dumps(plain, protocol)) == plain
    for value in (Noted(), Noted, 1j, [Path("/")]):
        with pytest.raises(CannotLoad):
            load_only_plain(pickle.dumps(value, protocol))
    assert not NOTED


def test_a_class_with_a_short_code_is_no_plain_data() -> None:
    """Not even a class that this process has registered with a short code, and loaded before, is loaded."""
    copyreg.add_extension(__name__, "note", 0xEE)
    try:
        data = pickle.dumps(Noted(), 5)
        pickle.loads(data)
        NOTED.clear()
        assert b"\x82\xee" in data
        with pytest.raises(CannotLoad):
            load_only_plain(data)
        assert not NOTED
        long = [f"\u2082{number}" for number in range(3000)]  # texts with the byte of such a code
        assert load_only_plain(pickle.dumps(long, 5)) == long
    finally:
        copyreg.remove_extension(__name__, "note", 0xEE)
        copyreg.clear_extension_cache()


NAMED = {
    "GLOBAL": f"c{__name__}\nnote\n(tR.".encode(),
    "GLOBAL of protocol 5": b"\x80\x05" + f"c{__name__}\nnote\n)R.".encode(),
    "INST": f"(i{__name__}\nnote\n.".encode(),
    "OBJ": f"(c{__name__}\nnote\no.".encode(),
    "a name in a list": b"\x80\x05](" + f"K\1c{__name__}\nnote\n)Re.".encode(),
    "a name in a damaged pickle": f"c{__name__}\nnote\n(tRu.".encode(),
}


@pytest.mark.parametrize("data", NAMED.values(), ids=NAMED)
def test_no_old_opcode_gets_a_name(data: bytes) -> None:
    """A forged pickle with a name of protocol 0 calls nothing."""
    NOTED.clear()
    with pytest.raises(CannotLoad, match="only plain data"):
        load_only_plain(data)
    assert not NOTED


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x05", b"\x80\x05K", b"\x80\x05h\x07.", b"garbage", b"\x80\x05a.", b"(u."]
)
def test_damaged_plain_data_is_told(data: bytes) -> None:
    """A damaged pickle of plain data raises CannotLoad."""
    with pytest.raises(CannotLoad):
        load_only_plain(data)


NOTED: list[str] = []


def note() -> None:
    NOTED.append("called")


class Colour(Enum):
    """A class whose members are found by their values."""

    RED = 1


def test_a_member_that_its_class_does_not_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after other members were stored, which proved the class."""
    dumps(Colour.RED)
    monkeypatch.setattr(Colour.RED, "_value_", 5)
    with pytest.raises(CannotLoad, match="5 is not a valid Colour"):
        dumps(Colour.RED)


class Noted:
    """Notes each time that it is loaded."""

    def __reduce__(self) -> Any:
        return note, ()


class Plain:
    def __reduce__(self) -> str:
        raise AssertionError("code of the class runs")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda part: st.lists(part) | st.tuples(part, part) | st.dictionaries(st.text() | st.integers(), part),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(PLAIN, st.integers(0, 3))
def test_plain_data_is_pickled_alike_in_short(value: object, copies: int) -> None:
    """By the quick way and by the general one: an entry must not depend on the way."""
    assert plain_pickle([value] * copies) == pickled([value] * copies)[0]


@pytest.mark.parametrize(
    "part",
    [Path(), pytest, len, Plain(), OrderedDict(), b"x" * 70_000, pickle.PickleBuffer(bytes(2000))],
    ids=lambda part: type(part).__name__,
)
def test_other_values_take_the_general_way(part: object) -> None:
    """Objects, however deep, before any of their code runs, buffers, and data longer than a frame."""
    assert plain_pickle({"in": [part]}) is None
    assert plain_pickle(part) is None
