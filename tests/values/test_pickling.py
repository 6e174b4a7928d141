"""A script that stores its own classes and functions, those of `__main__`, by value."""

from __future__ import annotations

import copyreg
import pickle
from pathlib import Path
from typing import Any

import pytest

from vstate import Unpicklable, Versioned
from vstate.errors import CannotLoad
from vstate.values.entry import encode_value
from vstate.values.opcodes import load_only_plain
from vstate.values.pickling import LONG_BYTEARRAY

SCRIPT = """
import enum, sys
from dataclasses import dataclass, field
from typing import NamedTuple
from vstate import Versioned

@dataclass
class Plan:
    goal: str
    steps: list = field(default_factory=list)
    def title(self): return self.goal.upper()

class Outer:
    class Inner:
        x = 1

class Colour(enum.Enum):
    RED = 1

class Pair(NamedTuple):
    a: int
    b: int

class Base:
    def who(self): return "base"

class Derived(Base):
    def who(self): return "derived of " + super().who()

def double(x): return helper(x) * 2
def helper(x): return x + 1

with Versioned(sys.argv[1]) as state:
    first = state.head is None
    if first:
        state["plan"] = Plan("go", ["a"])
        state["inner"] = Outer.Inner()
        state["colour"] = Colour.RED
        state["pair"] = Pair(1, 2)
        state["derived"] = [Derived()]
        state["double"] = double
        state["class"] = Plan
    else:
        assert isinstance(state["plan"], Plan)
        assert type(state["plan"]) is Plan is state["class"]
        assert isinstance(state["pair"], Pair) and state["pair"] == Pair(1, 2)
        assert isinstance(state["derived"][0], Derived) and isinstance(state["derived"][0], Base)
        assert state["colour"] is Colour.RED
        assert state["double"](3) == 8
        NESTED
        assert state.commit("only read") is None
        state["plan"].steps.append("b")
    print(state.commit("run") is not None)
"""


@pytest.mark.slow
def test_the_same_script_twice(run_python: Any, tmp_path: Path) -> None:
    """Run again, a script finds instances of its own classes, and reading them makes no commit."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("NESTED", ""))
    for seed in (1, 2, 3):
        assert run_python(script, tmp_path / "s", seed=seed).strip() == "True"


@pytest.mark.slow
def test_nested_classes_of_a_script(run_python: Any, tmp_path: Path) -> None:
    """The same holds for a class that is defined inside another one."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("NESTED", 'assert isinstance(state["inner"], Outer.Inner)'))
    for seed in (1, 2):
        run_python(script, tmp_path / "s", seed=seed)


@pytest.mark.slow
def test_another_program_reads_them(run_python: Any, tmp_path: Path) -> None:
    """A program without these classes and functions loads them by value and uses them."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("NESTED", ""))
    run_python(script, tmp_path / "s", seed=1)
    out = run_python(
        "import sys; from vstate import Versioned\n"
        "s = Versioned(sys.argv[1])\n"
        "print(s['plan'].title(), s['derived'][0].who(), s['double'](3), s['pair'].b, s['colour'].name,"
        " type(s['plan']) is s['class'])\n"
        "print(s.commit())\n"
        "s['plan'].steps.append('c'); print(s.commit() is not None, s['plan'].steps)",
        tmp_path / "s",
        seed=2,
    )
    assert out.splitlines() == ["GO derived of base 8 2 RED True", "None", "True ['a', 'c']"]


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


def test_a_column_of_a_frame() -> None:
    """Setting a column of a frame of 16 MB, one cell of it new, stores the chunks around the cell."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    random = numpy.random.default_rng(1)
    frame = pandas.DataFrame({f"c{i}": random.standard_normal(200_000) for i in range(10)})
    before = frame.copy()
    column = frame["c3"].copy()
    column.iloc[100] = 7.0
    frame["c3"] = column
    assert _added(frame, before) < 300_000


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


class Noted:
    """Notes each time that it is loaded."""

    def __reduce__(self) -> Any:
        return note, ()
