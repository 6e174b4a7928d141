"""Pickles that want to do harm: they cost little, run nothing, and are read or refused."""

import contextlib
import datetime
import functools
import io
import json
import pickle
import pickletools
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
from bombs import BOMBS, QUICK, Clock, compare, show
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds_of_values import make, usual
from rich.cells import cell_len
from soak import sized
from vstate_cli.output import Output

from vstate import Memory
from vstate.errors import CorruptObject, InvalidInput
from vstate.objects.ids import BLOB, Object, ObjectId
from vstate.repo.compare.details import details
from vstate.repo.objects import Objects
from vstate.values import shapes
from vstate.values.budget import InertError, Limits
from vstate.values.entry import Entry, encode_value
from vstate.values.inert import read
from vstate.values.inspection import inspect_value
from vstate.values.instance import Instance
from vstate.values.opcodes import OPCODES, frameless, tokens
from vstate.values.pickling import dumps
from vstate.values.plain import plain
from vstate.values.preview import preview
from vstate.values.tables import Column, table_of
from vstate.values.tokens import same

LONGER = sized(1, 50)
MEGABYTES = 256
SECONDS = 10.0  # of the processor; a quiet machine takes 1.5, and code without bounds takes minutes

# --- the cost of bombs


@pytest.fixture(scope="module")
def measure() -> Iterator[Callable[[str], list[Any]]]:
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

        def ask(name: str) -> list[Any]:
            questions.write(f"{name}\n")
            return json.loads(answers.readline())  # type: ignore[no-any-return]

        yield ask
        questions.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sized(QUICK, list(BOMBS)))
def test_bombs_cost_little(name: str, measure: Callable[[str], list[Any]]) -> None:
    """The worst inputs are read, shown and compared, or refused, in 256 MB and a few seconds a step."""
    peak, seconds, outcome = measure(name)
    print(f"{name}: {peak:.0f} MB, {seconds}, {outcome}")
    assert peak < MEGABYTES, outcome
    assert max(seconds.values()) < SECONDS, (seconds, outcome)
    # Keys of different hashes that all look for a place where others are.
    assert name != "one key of a taken hash, often" or outcome.startswith("its keys take more time")


def test_a_text_of_which_one_character_is_wide() -> None:
    """It makes each other character as wide, so the text is too long to show."""
    objects = Objects(Memory())
    encoded = encode_value("a" * (20 << 20) + "\U0001f600")
    objects.store.set_many(objects.stored(encoded.objects))
    with pytest.raises(InvalidInput, match="bytes in memory is too long to show"):
        inspect_value(Entry.decode(encoded.entry), objects)


def test_blobs_that_are_longer_than_they_should_be_take_no_memory() -> None:
    """The lengths in an index of a stream are checked before the chunks are decompressed."""
    objects = Objects(Memory())
    bodies = [bytes([number]) * 4_000_000 for number in range(20)]
    made = {ObjectId.of(BLOB, body): Object(BLOB, body) for body in bodies}
    objects.store.set_many(objects.stored(made))
    with at_most(1_000_000), pytest.raises(CorruptObject, match="4,000,000 bytes; the link to it says 20000"):
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
        assert repr(value).isprintable() or not isinstance(value, Instance)
        show(value, clock, out)
        for old, new in ((value, again), ([value], [1, again]), (value, None)):
            compare(old, new, clock, out)
            assert all(str(detail).isprintable() for detail in details(old, new))
    assert all(char.isprintable() or char in "\n\t" for char in written.getvalue())
    json.loads(json.dumps(plain(value), allow_nan=False))
    assert max(clock.seconds.values()) < SECONDS, clock.seconds


# --- fuzzing

NAMES = sorted(
    {*shapes._SHAPES, *shapes._DATA, "os.system", "builtins.eval", "builtins.ValueError", "app.Plan"}
    | {"numpy.ndarray", "numpy.dtype", "a\x1b[2J.b\u202e"}
)


def _global(name: str) -> bytes:
    module, _, rest = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + rest.encode() + b"\n"


@functools.cache
def _pickles() -> list[bytes]:
    """Pickles of the kinds of values, in every protocol, and with classes by value."""
    made = []
    for kind in usual():
        value = make(kind)
        for protocol in range(3, 6):
            for dumper in (pickle.dumps, cloudpickle.dumps, lambda value, protocol: dumps(value)[0]):
                try:
                    data = dumper(value, protocol)
                except Exception:  # this protocol, or pickle itself, cannot
                    continue
                if len(data) < 2000:
                    made.append(data)
    return [*dict.fromkeys(made)]


ODD = [
    *(bytes([code]) for code in OPCODES),
    *(b"Pname\n", b"\x82\x07", b"\x84\0\0\0\x7f", b"g5\n", b"p300\n", b"r\xff\xff\xff\xff", b"I1L\n"),
    *(b"F1e999\n", b"S'\\x41'\n", b"S'\n", b"V\\u0041\n", b"K\0", b"K\2", b"\x8a\x20" + b"\x7f" * 32),
    *(bombs.int4(-5), bombs.long(2**61), b"\x97", b"\x97\x98", b"N\x98", b"K\1\x85R", b"2\x86", b")R"),
    *map(bombs.word, ("", "f8", "i1", "U2", "O8", "S0", "V5", "c16", "M8", "x4", "C", "F", ">", "a\x1b[")),
    *(b"C" + bombs.le(size, 1) + b"\xff" * size for size in (0, 1, 4, 6, 8, 10, 16)),
    *(b"G\x7f\xf0" + bytes(6), b"}X\1\0\0\0aK\1sb", *map(_global, NAMES)),
]
"""Opcodes with arguments that a pickle does not have in these places."""
PICKLES = st.deferred(lambda: st.sampled_from(_pickles()))  # late: to make them takes a second
TOKENS = st.deferred(
    lambda: st.sampled_from(sorted({token for data in _pickles() for token in tokens(frameless(data)) or ()}))
)


def _edited(data: bytes, edits: list[tuple[str, int, int, bytes, bytes]]) -> bytes:
    """The pickle with opcodes and bytes replaced, taken out and put in."""
    parts = tokens(frameless(data)) or [data]
    for action, at, count, token, other in edits:
        at %= len(parts) + 1
        some = tokens(frameless(other)) or []
        start = count * len(some) // 9
        match action:
            case "replace":
                parts[at : at + 1] = [token]
            case "insert":
                parts[at:at] = [token]
            case "delete":
                del parts[at : at + count]
            case "double":
                parts[at:at] = parts[max(at - count, 0) : at]
            case "splice":  # whole parts of another pickle
                parts[at:at] = some[start : start + at % 20]
            case "byte":
                whole = b"".join(parts)
                at = at * 7 % (len(whole) + 1)
                parts = [whole[:at], token[:1], whole[at + 1 :]]
    return b"".join(parts)


_edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "replace", "replace", "insert", "delete", "double", "splice", "byte"]),
        st.integers(0, 2**16),
        st.integers(0, 9),
        st.sampled_from(ODD) | st.sampled_from(ODD) | TOKENS,
        PICKLES,
    ),
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=500 * LONGER)
@given(data=st.builds(_edited, PICKLES, _edits))
def test_pickles_with_other_opcodes(data: bytes) -> None:
    """Pickles with opcodes and bytes replaced, taken out, put in and doubled are read or refused."""
    use(data)


@pytest.mark.slow
@settings(max_examples=50 * LONGER)
@given(
    start=st.builds(_edited, PICKLES, _edits),
    body=st.lists(st.sampled_from(ODD), min_size=1, max_size=4).map(b"".join),
    times=st.integers(1, 3000),
    nodes=st.integers(1, 3000),
    size=st.integers(0, 200_000),
)
def test_small_limits_are_kept(start: bytes, body: bytes, times: int, nodes: int, size: int) -> None:
    """A smaller limit means less memory and time, for any repeated part."""
    data = start[:-1] + body * times + b"."
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


CALLS = [
    *(b"Vtext\\u00e9\n.", b"cos\nsystem\n(S'x'\ntR.", b"(S'x'\nios\nsystem\n.", b"(cos\nsystem\nS'x'\no."),
    *(b"\x80\2cos\nsystem\nX\1\0\0\0x\x85\x81.", b"\x80\4\x8c\2os\x8c\6system\x93\x8c\1x\x85R."),
    *(b"cos\nsystem\n(S'x'\ntR0N.", b"}cos\nsystem\n(S'x'\ntRI1\ns.", b"capp\nX\n)\x81cos\nsystem\n)Rb."),
    b"cbuiltins\ngetattr\n(cos\nx\nS'system'\ntR(S'x'\ntR.",
]
"""Pickles that call a function, by each opcode that can."""


def test_no_call_is_made() -> None:
    """No name of a pickle is imported or called, whatever opcode has it."""
    for data in (*CALLS, *(_global(name) + b"." for name in NAMES)):
        use(data)


@pytest.mark.slow
def test_every_beginning_of_a_pickle() -> None:
    """A pickle that is cut short, wherever, is refused."""
    chosen = _pickles() if LONGER > 1 else [data for data in _pickles()[::9] if len(data) < 400]
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


@pytest.mark.slow
@settings(max_examples=50 * LONGER)
@given(value=_data, protocol=st.integers(3, 5), optimised=st.booleans())
def test_plain_data_is_what_pickle_loads(value: Any, protocol: int, optimised: bool) -> None:
    """Of plain data, the inert value equals the loaded one, in each protocol, also with classes by value."""
    for dump in (pickle.dumps, cloudpickle.dumps):
        data = dump(value, protocol)
        data = pickletools.optimize(data) if optimised else data
        assert same(read(data), pickle.loads(data))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [3, 5])
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
