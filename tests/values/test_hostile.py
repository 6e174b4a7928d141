"""Pickles that want to do harm: they cost little, run nothing, and are read or refused."""

import contextlib
import datetime
import io
import json
import pickle
import pickletools
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "zoo"))

import bombs
import cloudpickle
import numpy as np
import pytest
from bombs import COMPARED, QUICK, READ, SHOWN, STORED, Clock, Found, le
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds_of_values import make, usual
from rich.cells import cell_len
from soak import sized
from vstate_cli import changes, values
from vstate_cli.output import Output

from vstate import Memory
from vstate.errors import CorruptObject
from vstate.objects.ids import BLOB, Object, ObjectId
from vstate.repo.compare.details import details
from vstate.repo.objects import Objects
from vstate.values import shapes
from vstate.values.inert import InertError, Instance, Limits, plain, preview, read
from vstate.values.opcodes import OPCODES
from vstate.values.tables import Column, table_of

LONGER = sized(1, 50)
BOMBS = [*READ, *SHOWN, *COMPARED, *STORED]
MEGABYTES = 256
SECONDS = 10.0  # of the processor; a quiet machine takes 1.5, and code without bounds takes minutes

# --- the cost of bombs


@pytest.fixture(scope="module")
def measure() -> Iterator[Callable[[str], list[list[Any]]]]:
    """Ask a process that does nothing else for the cost of a bomb."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs /proc to measure memory")
    script = Path(bombs.__file__)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(name: str) -> list[list[Any]]:
            questions.write(f"{name}\n")
            return json.loads(answers.readline())  # type: ignore[no-any-return]

        yield ask
        questions.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sized(QUICK, BOMBS))
def test_bombs_cost_little(name: str, measure: Callable[[str], list[list[Any]]]) -> None:
    """The worst inputs are read, shown and compared, or refused, in 256 MB and a few seconds a step."""
    for peak, seconds, outcome in measure(name):
        print(f"{name}: {peak:.0f} MB, {seconds}, {outcome}")
        assert peak < MEGABYTES, outcome
        assert max(seconds.values()) < SECONDS, (seconds, outcome)
        # Keys of different hashes that all look for a place where others are.
        assert ", often" not in name or name in SHOWN or outcome.startswith("its keys take more time")


def test_blobs_that_are_longer_than_they_should_be_take_no_memory() -> None:
    """The lengths in an index of a stream are checked before the chunks are decompressed."""
    objects = Objects(Memory())
    bodies = [bytes([number]) * 4_000_000 for number in range(20)]
    made = {ObjectId.of(BLOB, body): Object(BLOB, body) for body in bodies}
    objects.store.set_many(objects.stored(made))
    with at_most(1_000_000), pytest.raises(CorruptObject, match="4000000 bytes, not 20000"):
        objects.blobs(dict.fromkeys(made, 20_000))


@contextlib.contextmanager
def at_most(size: int) -> Iterator[None]:
    """What happens inside takes at most this memory."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size


# --- nothing runs

_RUN = (
    "import",
    "exec",
    "compile",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "ctypes.",
    "shutil.",
    "pickle.",
)
_seen: list[str] | None = None


def _hook(event: str, args: tuple[object, ...]) -> None:
    if _seen is not None and event.startswith(_RUN):
        _seen.append(f"{event} {args[0]}")


sys.addaudithook(_hook)
cell_len("中\u0301")  # rich imports its tables of wide characters when it first needs them


@contextlib.contextmanager
def nothing_runs() -> Iterator[None]:
    """Fails if anything inside imports, compiles, opens or starts something."""
    global _seen
    modules = set(sys.modules)
    seen = _seen = []
    try:
        yield
    finally:
        _seen = None
    assert not seen
    assert set(sys.modules) == modules


def test_the_watch_sees_what_runs() -> None:
    """The hook sees a pickle that imports and calls: the other tests prove something."""
    with pytest.raises(AssertionError), nothing_runs():
        pickle.loads(b"cos\ngetcwd\n)R.")
    with pytest.raises(AssertionError), nothing_runs():
        eval("1")


_READ_ALL = """
import json, sys
from vstate.values.inert import InertError, plain, preview, read

def forbid(event, args):
    if watching and event.startswith(("import", "exec", "compile", "open", "os.", "subprocess.", "socket.")):
        print(event, *map(repr, args))

pickles = [bytes.fromhex(line) for line in sys.stdin.read().split()]
watching = False
sys.addaudithook(forbid)
modules = set(sys.modules)
watching = True
for data in pickles:
    try:
        value = read(data, [b"buffer"] * 9)
    except InertError as error:
        str(error)
        continue
    preview(value)
    repr(value)
    plain(value)
watching = False
print(*(set(sys.modules) - modules), len(pickles))
"""


@pytest.mark.slow
def test_a_process_that_reads_pickles_imports_nothing(run_python: Callable[..., str], tmp_path: Path) -> None:
    """Neither names of pickles are imported, nor late imports of the reader itself."""
    made = [
        *PICKLES,
        b"Vtext\\u00e9\n.",
        b"cos\nsystem\n(S'x'\ntR.",
        b"(S'x'\nios\nsystem\n.",
        *map(_global, _names),
    ]
    script = tmp_path / "read.py"
    script.write_text(_READ_ALL.replace("sys.stdin.read()", repr(" ".join(data.hex() for data in made))))
    assert run_python(script) == f"{len(made)}\n"


def use(data: bytes) -> None:
    """Read a pickle, and do everything that is ever done with the result, in so many seconds each."""
    buffers = [b"abcd", bytearray(8)]
    with nothing_runs(), contextlib.redirect_stdout(io.StringIO()) as written:
        out = Output()
        clock = Clock()
        try:
            value = read(data, buffers)
        except InertError:
            return
        again = read(data, buffers)
        clock.took("read")
        assert preview(value, width=None).isprintable()
        assert preview(value).replace("\n", "").isprintable()
        clock.took("preview")
        if isinstance(value, Instance):
            assert value == value
            assert hash(value) == hash(value)
            assert repr(value).isprintable()
            clock.took("repr")
        values.write_value(value, out)
        clock.took("show")
        out.json(plain(value))
        clock.took("json")
        sides = [("same", value, again), ("in a list", [value], [1, again]), ("gone", value, None)]
        for step, old, new in sides:
            found = details(old, new)
            clock.took(step)
            for detail in found:
                assert str(detail).isprintable()
            diff: Any = Found(found)
            out.lines(changes.detail_lines(diff, "", out, 1000, 0))
            clock.took(f"{step}, diff")
            out.json(changes.detail_documents(diff, "", out))
            clock.took(f"{step}, diff --json")
    assert all(char.isprintable() or char in "\n\t" for char in written.getvalue())
    json.loads(json.dumps(plain(value), allow_nan=False))
    assert max(clock.seconds.values()) < SECONDS, clock.seconds


# --- fuzzing

_names = sorted(
    {*shapes._SHAPES, *shapes._DATA, "os.system", "builtins.eval", "builtins.ValueError", "app.Plan"}
    | {"numpy.ndarray", "numpy.dtype", "a\x1b[2J.b\u202e"}
)


def _global(name: str) -> bytes:
    module, _, rest = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + rest.encode() + b"\n"


def _counted(opcode: bytes, size: int) -> Callable[[bytes], bytes]:
    return lambda raw: opcode + le(len(raw), size) + raw


_text = st.one_of(
    st.text(max_size=4), st.sampled_from(["", "int", "__module__", "latin1", "C", "F", "f8", "M8"])
)
_raw = _text.map(lambda text: text.encode("utf-8", "surrogatepass"))
_line = st.one_of(
    st.integers(-300, 2**70).map(str),
    st.sampled_from(["", "00", "01", "1L", "'a'", '"\\x41"', "1.5", "nan", "1e999", "\\u0041", "é"]),
    st.text(max_size=5).map(lambda text: text.replace("\n", "")),
).map(lambda text: text.encode("utf-8", "surrogatepass") + b"\n")
_index = st.integers(0, 6) | st.integers(0, 255)

_atoms = st.one_of(
    st.sampled_from([b"N", b"\x88", b"\x89", b"]", b"}", b")", b"\x8f", b"\x97", b"\x97\x98"]),
    *(
        st.binary(min_size=size, max_size=size).map(code.__add__)
        for code, size in ((b"K", 1), (b"M", 2), (b"J", 4), (b"G", 8))
    ),
    *(_raw.map(_counted(code, size)) for code, size in ((b"\x8c", 1), (b"X", 4), (b"\x8d", 8))),
    *(st.binary(max_size=12).map(_counted(bytes([code]), 1)) for code in b"CU\x8a"),
    *(st.binary(max_size=12).map(_counted(bytes([code]), 4)) for code in b"BT\x8b"),
    *(st.binary(max_size=12).map(_counted(bytes([code]), 8)) for code in b"\x8e\x96"),
    st.tuples(st.sampled_from([b"I", b"L", b"F", b"S", b"V", b"P"]), _line).map(b"".join),
    st.sampled_from(_names).map(_global),
    _index.map(lambda n: b"h" + le(n, 1)),
    _index.map(lambda n: b"g%d\n" % n),
    st.integers(0, 2**31).map(lambda n: b"\x84" + le(n, 4)),
    st.integers(0, 255).map(lambda n: b"\x82" + le(n, 1)),
)


# Arguments that each function really gets, or nearly.
_some_int = st.integers(-5, 300).map(bombs.int4)
_some_text = _raw.map(_counted(b"X", 4))
_some_bytes = (
    st.sampled_from([0, 1, 4, 6, 8, 10, 16])
    .flatmap(lambda n: st.binary(min_size=n, max_size=n))
    .map(_counted(b"C", 1))
)
_some_float = st.floats().map(lambda number: b"G" + struct.pack(">d", number))
_some_global = st.sampled_from(_names).map(_global)
_code = st.sampled_from(
    ["b1", "i1", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8", "m8"]
    + ["S3", "U1", "U2", "V5", "S0", "O8", "x4", "i99"]
)
_unit = st.sampled_from(["D", "s", "ms", "ns", "Y", "\x1b"]).map(
    lambda unit: b"N(" + _counted(b"C", 1)(unit.encode()) + b"K\1K\1K\1t\x86"
)
_dtype = st.tuples(_code, st.sampled_from([b"", b"<", b">"]), _unit).map(
    lambda parts: (
        bombs.dtype(parts[0])
        + (
            b"(K\3" + _counted(b"X", 4)(parts[1]) + b"NNNJ\0\0\0\0J\0\0\0\0K\0" + parts[2] + b"tb"
            if parts[1]
            else b""
        )
    )
)
_shape = st.lists(st.integers(0, 3) | st.just(2**61), max_size=3).map(
    lambda sizes: b"(" + b"".join(map(bombs.long, sizes)) + b"t"
)
_bare_array = st.just(bombs.BARE_ARRAY)
_sizes = {"b1": 1, "i2": 2, "f4": 4, "f8": 8, "c8": 8, "c16": 16, "M8": 8, "S3": 3, "U2": 8, "V5": 5, "x4": 4}
_matching_array = st.tuples(
    st.sampled_from(sorted(_sizes)),
    st.integers(0, 3),
    st.sampled_from(["<", ">"]),
    _unit,
    st.binary(max_size=48),
).map(
    lambda parts: (
        bombs.BARE_ARRAY
        + b"(K\1"
        + bombs.int4(parts[1])
        + b"\x85"
        + bombs.dtype(parts[0])
        + b"(K\3\x8c\1"
        + parts[2].encode()
        + b"NNNJ\0\0\0\0J\0\0\0\0K\0"
        + parts[3]
        + b"tb\x89"
        + _counted(b"B", 4)(parts[4].ljust(48, b"\xf0")[: parts[1] * _sizes[parts[0]]])
        + b"tb"
    )
)
_full_array = _matching_array | st.tuples(
    _shape, _dtype, st.sampled_from([b"\x88", b"\x89"]), _some_bytes
).map(lambda state: bombs.BARE_ARRAY + b"(K\1" + b"".join(state) + b"tb")


def _known_calls(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    items = st.lists(inner, max_size=4).map(_joined(b"](", b"e"))
    args = st.lists(inner, max_size=4).map(_joined(b"(", b"t"))
    entries = st.lists(st.tuples(_some_text, inner).map(b"".join), max_size=3).map(_joined(b"}(", b"u"))
    zone = st.tuples(_some_int, _some_int, _some_int).map(
        lambda numbers: (
            _global("datetime.timezone") + _global("datetime.timedelta") + b"".join(numbers) + b"\x87R\x85R"
        )
    )
    buffer = _some_bytes | st.just(b"\x97") | st.just(b"\x97\x98")
    wanted: dict[str, list[st.SearchStrategy[bytes]]] = {
        "builtins.set": [items],
        "builtins.frozenset": [items],
        "builtins.bytes": [buffer],
        "builtins.bytearray": [buffer],
        "builtins.complex": [_some_float, _some_float],
        "builtins.getattr": [_some_global, _some_text],
        "_codecs.encode": [_some_text, st.just(b"X\6\0\0\0latin1")],
        "collections.Counter": [entries],
        "collections.defaultdict": [_some_global],
        "collections.deque": [items, _some_int],
        "copyreg.__newobj__": [_some_global, inner],
        "copyreg.__newobj_ex__": [_some_global, args, entries],
        "copyreg._reconstructor": [_some_global, _some_global, inner],
        "cloudpickle.cloudpickle._builtin_type": [_some_text],
        "cloudpickle.cloudpickle.subimport": [_some_text],
        "vstate.values.builders.stored_class": [_some_bytes, _some_text, _some_text, buffer],
        "vstate.values.builders.stored_code": [_some_bytes, inner],
        "vstate.values.builders.stored_function": [_some_bytes, _some_text, _some_text, _some_bytes, inner],
        "vstate.values.builders.set_function": [_some_global, inner],
        "datetime.date": [_some_bytes],
        "datetime.datetime": [_some_bytes, zone | inner],
        "datetime.time": [_some_bytes, zone | inner],
        "datetime.timedelta": [_some_int, _some_int, _some_int],
        "datetime.timezone": [zone, _some_text],
        "decimal.Decimal": [_some_text],
        "numpy._core.multiarray.scalar": [_dtype, _some_bytes],
        "numpy._core.numeric._frombuffer": [buffer, _dtype, _shape, st.just(b"X\1\0\0\0F")],
        "pandas._libs.arrays.__pyx_unpickle_NDArrayBacked": [_some_global, _some_int, inner],
        "pandas.core.indexes.base._new_Index": [_some_global, entries],
        "pathlib.PureWindowsPath": [_some_text, _some_text],
        "zoneinfo.ZoneInfo._unpickle": [_some_text, inner],
    }
    return st.sampled_from(sorted(wanted)).flatmap(
        lambda name: st.tuples(*wanted[name]).map(lambda args: _global(name) + b"(" + b"".join(args) + b"tR")
    )


def _joined(start: bytes, end: bytes) -> Callable[[list[bytes]], bytes]:
    return lambda parts: start + b"".join(parts) + end


def _larger(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    several = st.lists(inner, max_size=4)
    two = st.lists(inner, min_size=2, max_size=2)
    called = st.sampled_from(_names).map(_global)
    calls = _known_calls(inner)
    return st.one_of(
        calls,
        calls,
        calls,
        _full_array,
        st.tuples(_full_array | _bare_array | calls, inner).map(lambda parts: b"".join(parts) + b"b"),
        *(several.map(_joined(b"](", b"e")), several.map(_joined(b"\x8f(", b"\x90"))),
        *(several.map(_joined(b"(", end)) for end in (b"l", b"t", b"\x91")),
        st.lists(two.map(b"".join), max_size=3).map(_joined(b"}(", b"u")),
        two.map(_joined(b"}", b"s")),
        two.map(_joined(b"", b"\x86")),
        *(inner.map(lambda one, end=end: one + end) for end in (b"\x85", b"\x94", b"Q", b"2\x86")),
        st.tuples(inner, _index).map(lambda pair: pair[0] + b"q" + le(pair[1], 1)),
        st.tuples(inner, st.integers(0, 2**32 - 1)).map(lambda pair: pair[0] + b"r" + le(pair[1], 4)),
        *(
            st.tuples(called, several).map(lambda call, end=end: call[0] + b"(" + b"".join(call[1]) + end)
            for end in (b"tR", b"t\x81")
        ),
        st.tuples(called, several).map(lambda call: b"(" + call[0] + b"".join(call[1]) + b"o"),
        st.tuples(called, inner, inner).map(lambda call: b"".join(call) + b"\x92"),
        two.map(_joined(b"", b"b")),
        st.tuples(called, inner).map(lambda call: call[0] + b")\x81" + call[1] + b"b"),
        two.map(_joined(b"", b"0")),
    )


_values = st.recursive(_atoms, _larger, max_leaves=12)
_opcode = st.sampled_from(sorted(OPCODES)).map(lambda code: bytes([code]))
_soups = st.tuples(
    st.sampled_from([b"", b"\x80\x02", b"\x80\x04\x95\x08\0\0\0\0\0\0\0", b"\x80\x05"]),
    st.lists(st.one_of(_values, _values, _atoms, _opcode, st.just(b"(")), max_size=8).map(b"".join),
    st.sampled_from([b".", b".", b"\x85.", b"e.", b"t.", b"u.", b"b.", b"R.", b""]),
).map(b"".join)


@pytest.mark.slow
@settings(max_examples=500 * LONGER)
@given(data=_values)
def test_what_opcodes_in_order_make(data: bytes) -> None:
    """One value each, of opcodes that fit together, with calls of all functions that have a shape."""
    use(data + b".")


@pytest.mark.slow
@settings(max_examples=400 * LONGER)
@given(data=_soups)
def test_opcodes_in_any_order(data: bytes) -> None:
    """Opcodes that hardly fit together are read or refused."""
    use(data)


@pytest.mark.slow
@settings(max_examples=100 * LONGER)
@given(
    start=_soups.map(lambda soup: soup[:-1]),
    body=st.lists(_values | _opcode, min_size=1, max_size=3).map(b"".join),
    times=st.integers(1, 3000),
    nodes=st.integers(1, 3000),
    size=st.integers(0, 200_000),
)
def test_small_limits_are_kept(start: bytes, body: bytes, times: int, nodes: int, size: int) -> None:
    """A smaller limit means less memory and time, for any repeated part."""
    data = start + body * times + b"."
    limits = Limits(depth=50, nodes=nodes, bytes=size)
    with at_most(2 * size + 256 * 100 + 50_000):
        _tried(data, limits)
    # The quicker of several: a collection of all the garbage there is may fall into one.
    assert min(_tried(data, limits) for _ in range(3)) < 0.4


def _tried(data: bytes, limits: Limits) -> float:
    """The seconds that it takes to read the pickle, or to refuse it."""
    began = time.process_time()
    try:
        read(data, [b"abcd", bytearray(8)], limits=limits)
    except InertError:
        pass
    return time.process_time() - began


def _pickles() -> list[bytes]:
    """Pickles of all the shapes of values, in every protocol, and with classes by value."""
    made = []
    for kind in usual():
        value = make(kind)
        for protocol in range(6):
            for dumps in (pickle.dumps, cloudpickle.dumps):
                try:
                    data = dumps(value, protocol)
                except Exception:  # this protocol, or pickle itself, cannot
                    continue
                if len(data) < 2000:
                    made.append(data)
    return made


PICKLES = _pickles()
_edits = st.lists(
    st.tuples(
        st.integers(0, 2**16),
        st.integers(0, 12),
        st.one_of(st.just(b""), _opcode, st.binary(max_size=3), _atoms, st.integers(0, 2**16)),
    ),
    max_size=5,
)


def _edited(data: bytes, edits: list[tuple[int, int, bytes | int]]) -> bytes:
    for at, count, piece in edits:
        at %= len(data) + 1
        if isinstance(piece, int):
            # A piece of itself, from somewhere else.
            piece = data[piece % (len(data) + 1) :][: count * 8]
            count = 0
        data = data[:at] + piece + data[at + count :]
    return data


@pytest.mark.slow
@settings(max_examples=600 * LONGER)
@given(data=st.builds(_edited, st.sampled_from(PICKLES), _edits))
def test_pickles_with_other_bytes(data: bytes) -> None:
    """Pickles with bytes replaced, taken out, put in and doubled are read or refused."""
    use(data)


@settings(max_examples=100 * LONGER)
@given(
    one=st.sampled_from(PICKLES),
    other=st.sampled_from(PICKLES),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
@pytest.mark.slow
def test_spliced_pickles(one: bytes, other: bytes, cuts: tuple[float, float]) -> None:
    """The beginning of one pickle and the end of another are read or refused."""
    use(one[: int(cuts[0] * len(one))] + other[int(cuts[1] * len(other)) :])


@pytest.mark.slow
def test_every_pickle() -> None:
    """Pickles as they are, of each kind of value, are read and shown."""
    for data in PICKLES[:: sized(5, 1)]:
        use(data)


def test_every_beginning_of_a_pickle() -> None:
    """A pickle that is cut short, wherever, is refused."""
    chosen = PICKLES if LONGER > 1 else [data for data in PICKLES[::9] if len(data) < 400]
    for data in chosen:
        read(data, [b""] * 9)
        for end in range(len(data)):
            with pytest.raises(InertError):
                read(data[:end], [b""] * 9)


# --- valid pickles are read unchanged

_key = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    ),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
_data = st.recursive(
    _key | st.binary(max_size=300).map(bytearray) | st.text(min_size=200, max_size=300),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(lambda items: [items, items, tuple(items)]),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(_key, inner, max_size=4),
        st.sets(_key, max_size=4),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, set | frozenset):
        return a == b and sorted(map(repr, map(type, a))) == sorted(map(repr, map(type, b)))
    return a == b and (not isinstance(a, float | complex) or repr(a) == repr(b))


@pytest.mark.slow
@settings(max_examples=200 * LONGER)
@given(value=_data, protocol=st.integers(0, 5), optimised=st.booleans())
def test_plain_data_is_what_pickle_loads(value: Any, protocol: int, optimised: bool) -> None:
    """Of plain data, the inert value equals the loaded one, in each protocol, also with classes by value."""
    for dumps in (pickle.dumps, cloudpickle.dumps):
        data = dumps(value, protocol)
        data = pickletools.optimize(data) if optimised else data
        assert same(read(data), pickle.loads(data))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(6))
def test_dicts_and_sets_with_many_keys(protocol: int) -> None:
    """Many honest keys of the types that a forger can choose are read."""
    numbers = [n * 1_000_003 % 2**40 for n in range(6000)]
    pairs = [(n, str(n)) for n in range(3000)]
    value = {
        "ints": dict.fromkeys(numbers),
        "steps": dict.fromkeys(range(0, 2**40, 2**28)),
        "floats": dict.fromkeys(n / 7 for n in range(3000)),
        "pairs": {*pairs},
        "frozen": frozenset(numbers),
        "mixed": {n if n % 3 else str(n): n for n in range(6000)},
    }
    found = read(pickle.dumps(value, protocol))
    assert found == value
    assert [*found["mixed"]] == [*value["mixed"]]


def test_forged_tables_cost_little() -> None:
    """Levels of levels, an index that holds itself, chunks in many columns, and cells that are missing."""
    axis: dict[str, Any] = {"start": 0, "stop": 2, "step": 1}
    numbers = read(pickle.dumps(np.array([0, 1], dtype="int8"), 5))

    def frame(values: object, rows: object, columns: int = 1) -> Instance:
        blocks = tuple(
            Instance("block", args=(values, Instance("builtins.slice", args=(n, n + 1, 1)), 2))
            for n in range(columns)
        )
        names = Instance("pandas.RangeIndex", {**axis, "stop": columns})
        return Instance(
            "pandas.DataFrame", {"_mgr": Instance("pandas.Manager", args=(blocks, [names, rows]))}
        )

    rows = Instance("pandas.RangeIndex", axis)
    assert table_of(frame(numbers, rows)) is not None
    levels = rows
    for _ in range(60):
        levels = Instance("pandas.MultiIndex", {"levels": [levels, levels], "codes": [numbers, numbers]})
    dtype = Instance("pandas.CategoricalDtype")
    itself = Instance("pandas.Categorical", state=(dtype, numbers))
    dtype.fields["categories"] = Instance("pandas.Index", {"data": itself})
    cells = Instance("pyarrow.lib.py_buffer", args=(b"\1",))
    one = (Instance("pyarrow.lib.type_for_alias", args=("bool",)), 1, 0, 0, [None, cells])
    chunk = Instance("pyarrow.lib._restore_array", args=(one,))
    chunks = Instance("pyarrow.lib.chunked_array", args=([chunk] * 50_000, None))
    held = Instance("pandas.arrays.ArrowExtensionArray", {"_pa_array": chunks})
    fields = [Instance("pyarrow.lib.field", args=(str(n),)) for n in range(5_000)]
    schema = Instance("pyarrow.lib.schema", args=(fields,))
    table = Instance("pyarrow.lib._reconstruct_table", args=([chunks] * 5_000, schema))
    started = time.process_time()
    for forged in (frame(numbers, levels), frame(itself, rows), frame(held, rows, 5_000), table):
        assert table_of(forged) is None
    assert time.process_time() - started < 5
    short = Column("a", "int64", 3, lambda start, stop: [1])
    assert (short.cells(0, 3), short.cells(0, 9)) == ([1, None, None], [1, None, None])
