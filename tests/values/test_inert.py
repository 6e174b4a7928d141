"""Reading pickles without running them."""

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import os
import pathlib
import pickle
import re
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest

from vstate.errors import VStateError
from vstate.values import recipes
from vstate.values.budget import InertError, Limits
from vstate.values.inert import Machine, read
from vstate.values.instance import Global, Instance
from vstate.values.pickling import dumps
from vstate.values.plain import plain
from vstate.values.preview import preview
from vstate.values.tables import table_of

PROTOCOLS = range(3, 6)


class Plan:
    def __init__(self, goal: str) -> None:
        self.goal = goal


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    b: Any = None

    def __getstate__(self) -> Any:
        return None, {"a": self.a, "b": self.b}


class Pair(NamedTuple):
    left: int
    right: int


class Colour(enum.Enum):
    RED = 1


class Items(list):  # type: ignore[type-arg]
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


class Reduced(Plan):
    def __reduce__(self) -> Any:
        return super().__reduce__()


class ReducedItems(Items):
    def __reduce__(self) -> Any:
        return super().__reduce__()


class ReducedTable(Table):
    def __reduce__(self) -> Any:
        return super().__reduce__()


class Keyword:
    def __new__(cls, *, size: int) -> "Keyword":
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> Any:
        return (), {"size": 3}


_here = __name__


def _read(value: object, protocol: int = 5) -> Any:
    return read(pickle.dumps(value, protocol))


# --- plain data


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_long_values_and_odd_numbers(protocol: int) -> None:
    """Long texts and ints, surrogates, infinities, and times."""
    value: list[Any] = [2**5000, -(2**5000), -1, 255, 256, 65536, 2**31, -(2**31) - 1, float("inf"), -0.0]
    value += ["é" * 300, "\ud800", "a\\b\nc\x1a\0", "x" * 70_000, b"\n" * 300, b"y" * 70_000]
    value += [
        datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, fold=1),
        datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(9999, 12, 31, tzinfo=datetime.timezone(datetime.timedelta(hours=-3), "X")),
        datetime.date(2024, 2, 29),
        datetime.time(23, 59, 59, 999999),
        datetime.timedelta(-5, 3, 1),
    ]
    found = _read(value, protocol)
    assert found == value
    assert found[16].fold == (protocol >= 4)  # earlier ones cannot say it
    assert found[18].tzname() == "X"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sharing_and_cycles_are_kept(protocol: int) -> None:
    """One object referred to twice is one object, and a container may contain itself."""
    shared = [1]
    value: dict[str, Any] = {"a": shared, "b": shared}
    value["self"] = value
    value["tuple"] = (value,)
    found = _read(value, protocol)
    assert found["a"] is found["b"]
    assert found["self"] is found
    assert found["tuple"][0] is found
    assert "<cycle>" in preview(found)
    assert {"$cycle": True} in json.loads(json.dumps(plain(found))).values()


def test_buffers_are_taken_in_order() -> None:
    """Out-of-band buffers are the ones given; too few are an error."""
    buffers: list[pickle.PickleBuffer] = []
    value = [pickle.PickleBuffer(b"abc"), pickle.PickleBuffer(bytearray(b"def")), np.arange(5)]
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    found: Any = read(data, raw)
    assert [bytes(found[0]), bytes(found[1])] == [b"abc", b"def"]
    assert found[0].readonly
    assert found[2].fields["data"] == [0, 1, 2, 3, 4]
    with pytest.raises(InertError, match="buffers"):
        read(data, raw[:2])


# --- objects


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_instance_has_its_fields(protocol: int) -> None:
    """Class name, attributes, arguments, items and entries of instances of importable classes."""
    found = _read([Plan("x"), Slotted(1), Pair(1, 2), Items([1, 2]), Table(a=1)], protocol)
    assert [repr(one) for one in found] == [
        f"{_here}.Plan(goal='x')",
        f"{_here}.Slotted(a=1, b=None)",
        f"{_here}.Pair(1, 2)",
        f"{_here}.Items([1, 2])",
        f"{_here}.Table({{'a': 1}})",
    ]
    assert found[0].type == f"{_here}.Plan"
    assert found[0].fields == {"goal": "x"}
    assert found[3].items == [1, 2]
    assert found[4].entries == {"a": 1}
    assert _read(Keyword(size=3)).kwargs == {"size": 3}
    reduced = _read([Reduced("x"), ReducedItems([1]), ReducedTable(a=1)], protocol)
    assert repr(reduced) == (
        f"[{_here}.Reduced(goal='x'), {_here}.ReducedItems([1]), {_here}.ReducedTable({{'a': 1}})]"
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (collections.OrderedDict(a=1), "collections.OrderedDict({'a': 1})"),
        (collections.defaultdict[int, Any](list, {1: 2}), "collections.defaultdict(<builtins.list>, {1: 2})"),
        (collections.Counter("aa"), "collections.Counter({'a': 2})"),
        (collections.deque([1, 2]), "collections.deque([1, 2])"),
        (collections.deque([1], 5), "collections.deque([1], maxlen=5)"),
        (decimal.Decimal("1.50"), "decimal.Decimal('1.50')"),
        (uuid.UUID(int=5), "uuid.UUID('00000000-0000-0000-0000-000000000005')"),
        (pathlib.PurePosixPath("/a/b"), "pathlib.PurePosixPath('/a/b')"),
        (pathlib.PureWindowsPath("c:\\a\\b"), r"pathlib.PureWindowsPath('c:\\a\\b')"),
        (range(3), "builtins.range(0, 3, 1)"),
        (ValueError("x"), "builtins.ValueError('x')"),
        (zoneinfo.ZoneInfo("UTC"), "zoneinfo.ZoneInfo('UTC')"),
        (Colour.RED, f"<{_here}.Colour(1)>"),
        (os.path.join, "<posixpath.join>"),
        (re.compile("a"), "<re._compile('a', 32)>"),
        (np.float64(1.5), "numpy.float64(1.5)"),
        (np.arange(3, dtype=">i2"), "numpy.ndarray(dtype='>int16', shape=(3,), data=[0, 1, 2])"),
        (np.array([True]), "numpy.ndarray(dtype='bool', shape=(1,), data=[True])"),
        (np.array(["a", "bc"]), "numpy.ndarray(dtype='U2', shape=(2,), data=['a', 'bc'])"),
        (np.array([{}, 1], object), "numpy.ndarray(dtype='object', shape=(2,), data=[{}, 1])"),
        (np.array([1 + 2j]), "numpy.ndarray(dtype='complex128', shape=(1,), data=[(1+2j)])"),
        (np.zeros((0, 2)), "numpy.ndarray(dtype='float64', shape=(0, 2), data=[])"),
        (
            np.array(["2024-02-03T04:05:06.5", "NaT"], "M8[ms]"),
            "numpy.ndarray(dtype='datetime64[ms]', shape=(2,), data=['2024-02-03T04:05:06.500', 'NaT'])",
        ),
        (
            np.asfortranarray([[1, 2], [3, 4]]),
            "numpy.ndarray(dtype='int64', shape=(2, 2), order='F', data=[1, 3, 2, 4])",
        ),
    ],
)
def test_well_known_classes_read_well(value: Any, shown: str, protocol: int) -> None:
    """The common classes show their content, the same in every protocol."""
    assert repr(_read(value, protocol)) == shown


def test_an_array_shows_its_beginning() -> None:
    """A hundred elements are decoded; the array says how many more there are, and has all the bytes."""
    array = _read(np.arange(1000.0))
    assert array.fields["data"] == [float(n) for n in range(100)]
    assert array.fields["omitted"] == 900
    assert array.raw.nbytes == 8000


def test_a_time_in_a_named_zone() -> None:
    """Without the rules of the zone, the local time and the zone are shown beside each other."""
    value = datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))
    assert repr(_read(value)) == (
        "datetime.datetime(datetime.datetime(2024, 1, 1, 0, 0), zoneinfo.ZoneInfo('UTC'))"
    )


def test_by_value_classes_and_functions() -> None:
    """Classes and functions of `__main__`, stored by value, show under their own names."""
    main = types.ModuleType("__main__")
    exec(
        "import enum\n"
        "class Plan:\n"
        "    def __init__(self): self.goal = 'x'\n"
        "class Level(enum.Enum):\n"
        "    LOW = 1\n"
        "def fn(x, y=2): return x\n",
        main.__dict__,
    )
    data, buffers = dumps([main.Plan(), main.Plan, main.Level.LOW, main.fn, compile("1", "x", "eval")])
    found: Any = read(data, [bytes(buffer) for buffer in buffers])
    assert found.pop().type == "types.CodeType"
    assert repr(found) == "[__main__.Plan(goal='x'), <__main__.Plan>, <__main__.Level(1)>, <__main__.fn>]"
    assert repr(found[3].fields["__defaults__"]) == "(2,)"


def test_keys_that_are_instances() -> None:
    """An Instance can be a key or a member, with any content."""
    found = _read({Colour.RED: 1, Pair(1, 2): 2, frozenset({Colour.RED}): 3})
    assert sorted(found.values()) == [1, 2, 3]
    assert any(isinstance(key, Instance) for key in found)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x80\x02\x82\x07.", b"\x80\x02K\x05Q.", b"Pname\n.", b"(I1\niapp\nOld\n.", b"(capp\nOld\nK\1o."),
        *(
            b"S'a'\n.",
            b"U\x01a.",
            b"Va\n.",
            b"I1\n.",
            b"L1L\n.",
            b"F1\n.",
            b"]p0\n.",
            b"(l.",
            b"(d.",
            b"N2\x86.",
        ),
    ],
)
def test_opcodes_of_the_first_protocols_are_refused(data: bytes) -> None:
    """Nothing that vstate stores has them: names without a module, texts of Python 2, numbers as text."""
    with pytest.raises(InertError, match="is not an opcode"):
        read(data)


# --- nothing runs


@pytest.mark.parametrize(
    ("name", "raw"),
    [("date", "07e4021f"), ("datetime", "07e4021f000000000000"), ("time", "013c00000000"), ("date", "07e4")],
)
def test_times_that_do_not_exist_are_shown_as_calls(name: str, raw: str) -> None:
    """The thirty-first of February, and a sixtieth minute, are no times."""
    data = bytes.fromhex(raw)
    found = read(b"cdatetime\n" + name.encode() + b"\nC" + bytes([len(data)]) + data + b"\x85R.")
    assert repr(found) == f"datetime.{name}({data!r})"


def test_a_forged_pickle_changes_no_other_value() -> None:
    """An object in the data of another serializer, which values share, is not the one that BUILD changes."""
    content = msgpack.packb(msgpack.ExtType(5, msgpack.packb(["app", "Message", {"text": "honest"}])))
    pair = pickle.dumps(("msgpack", content), 3)[:-1]
    read(pair + b"}X\4\0\0\0textK\7sb.")
    assert repr(read(pair + b".")) == "app.Message(text='honest')"
    snapshot = msgpack.packb(msgpack.ExtType(7, msgpack.packb(["honest"])))
    pair = pickle.dumps(("msgpack", snapshot), 3)[:-1]
    assert read(pair + b"Na.") == ["honest", None]
    assert read(pair + b".") == ["honest"]


@pytest.mark.parametrize(
    ("code", "content", "shown"),
    [
        (0, ["builtins", "set", ["a", "b"]], "builtins.set(['a', 'b'])"),
        (0, ["app", "Kind", {"a": 1}], "app.Kind({'a': 1})"),
        (0, ["app", "Kind", 1, 2, 3], "msgpack.ExtType(0, ['app', 'Kind', 1, 2, 3])"),
        (1, ["datetime", "date", [2024, 5, 1]], "datetime.date(2024, 5, 1)"),
        (2, ["app", "Plan", {"goal": "x"}], "app.Plan(goal='x')"),
        (3, ["datetime", "time", "01:02", "fromisoformat"], "datetime.time('01:02')"),
        (4, ["app", "Old", {"a": 1}], "app.Old(a=1)"),
        (5, ["app", "Root", [1, 2], "model_validate_json"], "app.Root([1, 2])"),
        (6, ["<i2", [2], "C", b"\1\0\2\0"], "numpy.ndarray(dtype='int16', shape=(2,), data=[1, 2])"),
        (6, ["|O", [1], "C", b"x"], "msgpack.ExtType(6, ['|O', [1], 'C', b'x'])"),
        (7, ["password", "is", "hunter2", "too"], "['password', 'is', 'hunter2', 'too']"),
        (8, ["password", "is", "hunter2", "too"], "msgpack.ExtType(8, ['password', 'is', 'hunter2', 'too'])"),
    ],
)
def test_an_extension_is_shown_as_its_code_means_it(code: int, content: list[object], shown: str) -> None:
    """The codes are those of LangGraph's serializer. An unknown one keeps all that it has."""
    data = msgpack.packb(msgpack.ExtType(code, msgpack.packb(content)))
    assert repr(read(pickle.dumps(("msgpack", data)))) == shown


def test_a_call_is_shown_as_not_made() -> None:
    """Calls and globals stand in angle brackets."""
    found = read(b"\x80\2cos\nsystem\nX\7\0\0\0echo hi\x85R.")
    assert repr(found) == "<os.system('echo hi')>"
    assert isinstance(found, Instance)
    assert found.called
    assert plain(found) == {"$type": "os.system", "$called": True, "$args": ["echo hi"]}
    bare = read(b"cos\nsystem\n.")
    assert isinstance(bare, Global)
    assert repr(bare) == "<os.system>"


def test_cells_of_several_chunks_come_in_order() -> None:
    """A column of pyarrow is read across the ends of its chunks, and from the middle of one."""

    def chunk(*bits: bool) -> Instance:
        data = bytes([sum(bit << at for at, bit in enumerate(bits))])
        cells = Instance("pyarrow.lib.py_buffer", args=(data,))
        kind = Instance("pyarrow.lib.type_for_alias", args=("bool",))
        return Instance("pyarrow.lib._restore_array", args=((kind, len(bits), 0, 0, [None, cells]),))

    parts = [chunk(True, False, False), chunk(True), chunk(False, True, True, False)]
    column = Instance("pyarrow.lib.chunked_array", args=(parts, None))
    schema = Instance("pyarrow.lib.schema", args=([Instance("pyarrow.lib.field", args=("a",))],))
    table = table_of(Instance("pyarrow.lib._reconstruct_table", args=([column], schema)))
    assert table is not None
    cells = [True, False, False, True, False, True, True, False]
    assert [table.columns[0].cells(at, 8) for at in range(9)] == [cells[at:] for at in range(9)]
    assert table.columns[0].cells(2, 5) == cells[2:5]


# --- malformed and costly input

_MALFORMED = {
    "empty": b"",
    "no STOP": b"N",
    "unknown opcode": b"\xff.",
    "newer protocol": b"\x80\x63N.",
    "empty stack": b".",
    "cut text": b"X\x05\0\0\0ab.",
    "length past the end": b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "frame past the end": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
    "no mark": b"t.",
    "takes below the mark": b"N(\x85.",
    "memo": b"h\x05.",
    "memo out of order": b"\x80\x04K\1q\5K\2\x94h\1\x86.",
    "text that is no UTF-8": b"\x8c\x01\xff.",
    "unhashable key": b"}]Ns.",
    "unhashable member": b"\x8f(]\x90.",
    "unhashable in a tuple": b"}]\x85Ns.",
    "appends to a number": b"K\x01K\x02a.",
    "entries in a list": b"]NNs.",
    "odd entries": b"}(Nu.",
    "calls a number": b"K\x01)R.",
    "arguments that are no tuple": b"cos\nsystem\nNR.",
    "attributes of a number": b"K\x01}K\x01K\x01sb.",
    "global of numbers": b"K\x01K\x02\x93.",
    "no buffer": b"\x97.",
    "buffer of None": b"N\x98.",
    "long name": b"c" + b"a" * 5000 + b"\nb\n.",
}


@pytest.mark.parametrize("name", _MALFORMED)
def test_malformed_input_is_an_inert_error(name: str) -> None:
    """The error names the fault and its place."""
    with pytest.raises(InertError, match=r"cannot read this pickle: .* \(at byte \d+\)") as caught:
        read(_MALFORMED[name])
    assert isinstance(caught.value, VStateError)
    assert caught.value.offset is not None


def test_python_handles_only_opcodes_of_plain_data() -> None:
    """No handler of Python's unpickler that finds, makes or fills an object is in use."""
    for machine in (Machine, recipes._Reader):
        inherited = {handler.__name__ for handler in machine.handlers if handler.__module__ == "pickle"}
        acting = {f"load_{name}" for name in ("reduce", "newobj", "newobj_ex", "build", "append", "appends")}
        acting |= {f"load_{name}" for name in ("setitem", "setitems", "additems", "dict", "frozenset", "pop")}
        assert inherited
        assert inherited.isdisjoint(acting)
        assert machine.find_class.__module__.startswith("vstate.values")


def test_limits_are_those_given() -> None:
    """Depth, nodes and bytes are counted."""
    nested: list[Any] = []
    for _ in range(50):
        nested = [nested]
    read(pickle.dumps(nested), limits=Limits(depth=60))
    with pytest.raises(InertError, match="nested"):
        read(pickle.dumps(nested), limits=Limits(depth=40))
    with pytest.raises(InertError, match="parts"):
        read(pickle.dumps(list(range(1000))), limits=Limits(nodes=500))
    with pytest.raises(InertError, match="memory"):
        read(pickle.dumps(b"x" * 5000), limits=Limits(bytes=500))
    assert len(read(pickle.dumps("x" * 6000), limits=Limits(bytes=9000))) == 6000
    with pytest.raises(InertError, match="memory"):  # one wide character makes all as wide
        read(pickle.dumps("é" * 3000), limits=Limits(bytes=9000))
    with pytest.raises(InertError, match="more than 9 members, not all of them texts"):
        read(pickle.dumps(set(range(10))), limits=Limits(members=9))
    assert len(read(pickle.dumps({str(n) * 99 for n in range(99)}), limits=Limits(members=9))) == 99
    with pytest.raises(InertError, match="time"):
        read(pickle.dumps({n: n for n in range(3000)}), limits=Limits(seconds=1e-6))


# --- showing


def test_preview_fits_the_width_or_breaks() -> None:
    """One line where it fits, else one line a part."""
    value = {"goal": "x" * 30, "steps": [Instance("app.Step", {"n": n, "text": "y" * 20}) for n in range(3)]}
    assert preview(value["steps"][0]) == "app.Step(n=0, text='yyyyyyyyyyyyyyyyyyyy')"
    text = preview(value, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.startswith("{\n  'goal': 'xxx")
    assert "\n" not in preview(value, width=None)


def test_preview_is_bounded() -> None:
    """Items, depth, long strings and huge numbers are cut, and say so."""
    assert preview(list(range(100)), max_items=3) == "[0, 1, 2, … 97 more]"
    assert preview([[[[1]]]], max_depth=2) == "[[[…]]]"
    assert preview("x" * 10_000).endswith("… 9500 more")
    assert "more" in preview(10**100_000)
    shared: list[Any] = [1]
    for _ in range(200):
        shared = [shared, shared]
    assert len(preview(shared, max_depth=1000, width=None)) < 1_000_000
    assert preview({2, 1, "b", "a"}) == "{1, 2, 'a', 'b'}"
    assert preview((1,)) == "(1,)"
    assert preview([set(), frozenset(), frozenset({1})]) == "[set(), frozenset(), frozenset({1})]"


def test_nothing_drives_a_terminal() -> None:
    """Control characters are escaped in texts, names, fields and keys."""
    evil = "\x1b[2J\x07\u202e\x9b\n"
    value = [evil, {evil: evil}, Instance(evil, {evil: evil}), Global(evil), evil.encode()]
    assert preview(value, width=None).isprintable()
    assert repr(value[2]).isprintable()


def test_plain_is_json() -> None:
    """Every kind of value has a form in JSON that tells it from the others."""
    value = {
        "a": [1, 2.5, None, True, "x", (1,)],
        "$odd": {1: 2},
        "bytes": b"ab",
        "nan": [float("nan"), float("-inf")],
        "sets": [{2, 1}, frozenset()],
        "time": datetime.datetime(2024, 1, 1),
        "record": Instance("app.P", {"x": 1, "$y": 2}, args=(3,), items=[4], entries={"k": 5}),
        "global": Global("a.b"),
        "int": 10**2000,
    }
    found = json.loads(json.dumps(plain(value), allow_nan=False))
    assert found["int"].pop("$int") == hex(10**2000)
    assert found == {
        "a": [1, 2.5, None, True, "x", [1]],
        "$$odd": {"$dict": [[1, 2]]},
        "bytes": {"$bytes": "YWI="},
        "nan": [{"$float": "nan"}, {"$float": "-inf"}],
        "sets": [{"$set": [1, 2]}, {"$frozenset": []}],
        "time": {"$datetime": "2024-01-01T00:00:00"},
        "record": {"$type": "app.P", "$args": [3], "x": 1, "$$y": 2, "$items": [4], "$entries": {"k": 5}},
        "global": {"$global": "a.b"},
        "int": {},
    }


def test_plain_is_bounded() -> None:
    """Nodes, depth and the length of strings are limited, and the parts that are left out are counted."""
    assert plain(list(range(10)), max_nodes=4) == [0, 1, 2, {"$more": 7}]
    assert plain("x" * 10_000, max_nodes=3) == {"$str": "x" * 3072, "$size": 10_000}
    nested: list[Any] = []
    for _ in range(500):
        nested = [nested]
    assert "$deep" in json.dumps(plain(nested))
    shared: list[Any] = ["x" * 1000]
    for _ in range(50):
        shared = [shared, shared]
    assert len(json.dumps(plain(shared, max_nodes=1000))) < 3_000_000
