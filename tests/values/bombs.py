"""Pickles that are made to cost much, and their cost: peak memory and seconds, each in its own process.

`python tests/values/bombs.py NAME…` answers each name with a line of JSON, and so each line of its input.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "cli")]

from vstate_cli import changes, values
from vstate_cli.commands.bisect import Condition
from vstate_cli.output import Output

from vstate import Disk, InvalidInput
from vstate.objects import tree
from vstate.objects.ids import NewObjects
from vstate.repo.compare.details import Detail, details
from vstate.repo.repository import Repository
from vstate.values.budget import InertError
from vstate.values.inert import read
from vstate.values.instance import Instance
from vstate.values.plain import plain
from vstate.values.preview import preview

MILLION = 10**6
MOST_MEMORY = 2 << 30  # bytes of address space of a measuring process: a safety net
MOST_SECONDS = 60
PRIME = 2**61 - 1  # the hashes of its multiples are all 0


class Bomb(NamedTuple):
    """A pickle, the one that it is compared with, and the out-of-band buffers of both."""

    old: bytes
    new: bytes
    buffers: Sequence[bytes] = ()


# --- the parts of pickles


def le(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


def long(number: int) -> bytes:
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + le(len(raw), 1) + raw


def text(raw: bytes) -> bytes:
    return b"\x8d" + le(len(raw), 8) + raw


def binary(raw: bytes) -> bytes:
    return b"\x8e" + le(len(raw), 8) + raw


def int4(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def listed(items: bytes) -> bytes:
    return b"](" + items + b"e."


def multiples(tail: bytes) -> bytes:
    return b"".join(long(n * PRIME) + tail for n in range(1, 200_000))


def calls(function: bytes, args: bytes, opcode: bytes = b"R", count: int = 300_000) -> bytes:
    """A list of many calls of one function with one tuple of arguments."""
    return b"c" + function + b"\n\x94" + args + b"\x94](" + (b"h\0h\1" + opcode) * count + b"e."


def shared(value: bytes, count: int) -> bytes:
    """A list that holds one value many times."""
    return value + b"\x94](" + b"h\0" * count + b"e."


def pair(old: bytes, new: bytes, make: Callable[[bytes], bytes]) -> Bomb:
    return Bomb(make(old), make(new))


def often(numbers: Sequence[int]) -> bytes:
    """A dict of these keys, the last of which is set again and again."""
    entries = b"".join(long(n) + b"N" for n in numbers)
    return b"}(" + entries + b"u" + (long(numbers[-1]) + b"Ns") * 300_000 + b"."


def laugh(count: int) -> bytes:
    """A tuple that holds the one before twice, so many times."""
    return b"N\x85\x94" + b"".join((b"j" + le(n, 4)) * 2 + b"\x86\x94" for n in range(count))


NONES = b"N" * MILLION
ARRAY = b"cnumpy.core.numeric\n_frombuffer\n"


def dtype(code: str) -> bytes:
    return b"cnumpy\ndtype\n\x8c" + le(len(code), 1) + code.encode() + b"\x85R"


def array(data: bytes, code: str, shape: bytes) -> bytes:
    return ARRAY + b"(" + data + dtype(code) + shape + b"\x8c\x01CtR"


BARE_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR"


def called(name: str, *args: bytes) -> bytes:
    """A call of the function `module.name`."""
    module, _, function = name.rpartition(".")
    return b"c%b\n%b\n(" % (module.encode(), function.encode()) + b"".join(args) + b"tR"


def word(name: str) -> bytes:
    return b"\x8c" + le(len(name), 1) + name.encode()


def built(cls: str, **fields: bytes) -> bytes:
    """An object with these fields."""
    module, _, name = cls.rpartition(".")
    state = b"}(" + b"".join(word(field) + value for field, value in fields.items()) + b"u"
    return b"c%b\n%b\n)\x81" % (module.encode(), name.encode()) + state + b"b"


def array_of(code: str, *shape: int, data: bytes = b"\x97", order: str = "C") -> bytes:
    """An array over the next out-of-band buffer, or over `data`."""
    sizes = b"(" + b"".join(b"\x8a\x08" + le(size, 8) for size in shape) + b"t"
    return called("numpy._core.numeric._frombuffer", data, dtype(code), sizes, word(order))


def axis(values: bytes) -> bytes:
    fields = b"}(" + word("data") + values + word("name") + b"Nu"
    return called("pandas.core.indexes.base._new_Index", b"cpandas\nIndex\n", fields)


def row_numbers(stop: int) -> bytes:
    entries = word("name") + b"N" + word("start") + b"K\0" + word("stop") + b"\x8a\x08" + le(stop, 8)
    fields = b"}(" + entries + word("step") + b"K\1u"
    return called("pandas.core.indexes.base._new_Index", b"cpandas\nRangeIndex\n", fields)


def frame(values: bytes, width: int, names: bytes, labels: bytes) -> bytes:
    """A frame of one block, whose columns have all places."""
    places = called("builtins.slice", b"K\0", b"J" + le(width, 4), b"K\1")
    block = called("pandas._libs.internals._unpickle_block", values, places, b"K\2")
    manager = called(
        "pandas.core.internals.managers.BlockManager", b"(" + block + b"t", b"](" + names + labels + b"e"
    )
    return b"\x80\x05" + built("pandas.DataFrame", _mgr=manager) + b"."


def objects(items: bytes, count: int) -> bytes:
    """An array of objects."""
    state = b"(K\1J" + le(count, 4) + b"\x85" + dtype("O8") + b"\x89](" + items + b"et"
    return BARE_ARRAY + state + b"b"


BOMBS: dict[str, Callable[[], bytes | Bomb]] = {
    # Refused, or small when they are read.
    "lists": lambda: b"]" * (4 * MILLION) + b".",
    "marks": lambda: b"(" * (4 * MILLION) + b".",
    "nested records": lambda: b"ca\nb\n" + b")R" * MILLION + b".",
    "a nested key": lambda: b"})" + b"\x85" * 100_000 + b"Ns.",
    "a key of shared tuples": lambda: b"}" + laugh(100) + b"Ns.",
    "colliding ints": lambda: b"}(" + multiples(b"N") + b"u.",
    "colliding members": lambda: b"(" + multiples(b"") + b"\x91.",
    "one key of a taken hash, often": lambda: often([n * PRIME for n in range(1, 20_000)]),
    "a giant int as a key": lambda: (
        b"}(\x8b" + le(MILLION, 4) + b"\x7f" * MILLION + b"\x94N" + b"h\0N" * 800_000 + b"u."
    ),
    "a key of many giant ints": lambda: (
        b"\x8b" + le(MILLION, 4) + b"\x7f" * MILLION + b"\x94}(" + b"h\0" * 200_000 + b"tNs."
    ),
    "a key of many long texts": lambda: (
        text(b"k" * MILLION)
        + b"\x940"
        + text(b"k" * MILLION)
        + b"\x940}"
        + b"".join(b"(" + b"h%c" % n + b"h%c" % n + b"h\0" * 200_000 + b"tNs" for n in (0, 1))
        + b"."
    ),
    "names": lambda: text(b"a" * 400) + b"\x94" + b"h\0h\0\x93" * 900_000 + b".",
    "a name of a megabyte": lambda: b"c" + b"\x1b[2J" * 250_000 + b"\n" + b"a." * 500_000 + b"\n.",
    "calls of calls": lambda: b"ca\n" + b"b" * 900 + b"\n" + b")R" * MILLION + b".",
    "paths of one tuple": lambda: calls(b"pathlib\nPath", b"(" + NONES + b"t"),
    "arrays of one buffer": lambda: calls(
        b"numpy.core.numeric\n_frombuffer",
        b"(" + binary(bytes(100_000)) + dtype("V1000") + b"M\x64\0\x85\x8c\x01Ct",
    ),
    "read-only buffers": lambda: Bomb(
        *2 * (b"](" + b"\x97\x94" + b"\x98h\0" * MILLION + b"e.",), [bytes(10)]
    ),
    # Read, then shown, and compared with a second reading.
    "billion laughs of tuples": lambda: laugh(9_900) + b".",
    "an array that says to be long": lambda: array(b"C\0", "f8", b"(" + long(2**61) * 63 + b"t") + b".",
    "a frame with names of one hash": lambda: frame(
        array_of("i1", 9000, 1, data=binary(bytes(9000))),
        9000,
        axis(objects(b"".join(long(n * PRIME) for n in range(9000)), 9000)),
        row_numbers(1),
    ),
    "a frame of wide texts": lambda: Bomb(
        *2 * (frame(array_of("U250", 1, 20_000), 1, axis(objects(word("a"), 1)), row_numbers(20_000)),),
        [bytes(20 * MILLION)],
    ),
    "Arrow texts that are one text, often": lambda: Bomb(
        *2
        * (
            b"\x80\x05"
            + called(
                "pyarrow.lib._reconstruct_table",
                b"]("
                + called(
                    "pyarrow.lib._restore_array",
                    b"("
                    + called("pyarrow.lib.type_for_alias", word("string"))
                    + b"J"
                    + le(2 * MILLION, 4)
                    + b"K\0K\0](N"
                    + called("pyarrow.lib.py_buffer", b"\x97")
                    + called("pyarrow.lib.py_buffer", b"\x97")
                    + b"e]Nt",
                )
                + b"e",
                called("pyarrow.lib.schema", b"](" + called("pyarrow.lib.field", word("a")) + b"e"),
            )
            + b".",
        ),
        [struct.pack("<2i", 0, 8 * MILLION) * MILLION + bytes(4), bytes(8 * MILLION)],
    ),
    "messages of one long text, in many blocks": lambda: (
        b"\x80\x05"
        + (word("text") + b"\x940}" + b"h\0" + text(b"a" * (20 * MILLION)) + b"s\x940")
        + (b"](" + b"h\1" * 50 + b"e\x940")
        + b"]("
        + (b"}(" + word("role") + word("user") + word("content") + b"h\2u") * 2000
        + b"e."
    ),
    # The most expensive to compare.
    "arrays of which every second element differs": lambda: Bomb(
        b"\x80\x05" + array_of("i1", 30 * MILLION) + b".",
        b"\x80\x05" + array_of("i1", 30 * MILLION, data=b"\x970\x97") + b".",
        [bytes(30 * MILLION), b"\0\1" * (15 * MILLION)],
    ),
    "frames with labels of one hash": lambda: pair(
        b"K\0",
        b"K\1",
        lambda label: frame(
            array_of("i1", 1, 100_001, data=binary(bytes(100_001))),
            1,
            axis(objects(word("a"), 1)),
            axis(objects(b"".join(long(n * PRIME) for n in range(100_000)) + label, 100_001)),
        ),
    ),
    "a text in many places, and one more": lambda: pair(
        b"", b"Na", lambda more: shared(text(b"q" * (10 * MILLION)), 100_000)[:-1] + more + b"."
    ),
    "long paths": lambda: pair(
        b"K\1",
        b"K\2",
        lambda leaf: (
            text(b"\1" * 60) + b"\x94" + b"}h\0" * 9_000 + b"](" + leaf * 1000 + b"e" + b"s" * 9_000 + b"."
        ),
    ),
    "a laugh in many places": lambda: Bomb(
        listed(NONES[:1000]), laugh(9_000) + b"](" + (b"j" + le(9_000, 4)) * 1000 + b"e."
    ),
    "texts of long lines": lambda: pair(
        b"a", b"b", lambda letter: text((b"\1" * 30_000 + letter + b"\n") * 60) + b"."
    ),
}
"""Each is read, shown and compared, or refused."""


def plant(store: Path, *versions: tuple[bytes, NewObjects]) -> None:
    """Commit each version, an entry and its objects, under one key."""
    with Disk(store) as disk:
        repo = Repository(disk)
        root, parents = None, ()
        for entry, objects in versions:
            root, more, nodes = tree.update(repo.objects.node, root, {"bomb": entry})
            commit = repo.build_commit(root, parents, message="planted")
            expected = parents[0].oid if parents else None
            assert repo.publish(
                "main", [commit], {**objects, **more}, nodes, expected=expected, action="plant"
            )
            parents = (commit,)


QUICK = [
    *("lists", "a key of shared tuples", "colliding members", "one key of a taken hash, often"),
    *("paths of one tuple", "billion laughs of tuples", "an array that says to be long", "long paths"),
    "texts of long lines",
]
"""In the short run. Each other one is like one of these in how it is made or in the limit that stops it."""


# --- the costs


class Cost(NamedTuple):
    """Peak memory in megabytes besides the pickles; seconds for each step; and the outcome."""

    peak: float
    seconds: dict[str, float]
    outcome: str


class _Sink(io.TextIOBase):
    """An output that is thrown away, and is no terminal."""

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return False


class Found:
    """Stands for a Diff, and for the change of the one key in it."""

    key = ""

    def __init__(self, found: list[Detail]) -> None:
        self.found = found

    def details(self, key: str, *, limit: int, path: str = "") -> list[Detail]:
        return self.found[:limit]


class Clock:
    """The processor's seconds for each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start = time.process_time()

    def took(self, step: str) -> None:
        now = time.process_time()
        self.seconds[step] = round(now - self.start, 3)
        self.start = time.process_time()


class Meter(Clock):
    """The same, and the most memory since it was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.before = peak()
        super().__init__()

    def cost(self, outcome: str) -> Cost:
        return Cost(peak() - self.before, self.seconds, outcome)


def peak() -> float:
    """The megabytes that this process had resident at its worst, lately."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def apart(function: Callable[[], Any]) -> Any:
    """The result of the function in a process of its own, as JSON carries it."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        gc.freeze()  # or a collection would look at all objects of the parent, and count for the function
        try:
            found = {"result": function()}
        except BaseException as error:
            found = {"raised": f"{type(error).__name__}: {error}"[:1000]}
        with open(sender, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(sender)
    with open(receiver) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    found = json.loads(answer or '{"raised": "no answer"}')
    if "raised" in found:
        raise RuntimeError(f"{found['raised']}, status {status}")
    return found["result"]


def show(value: object, clock: Clock, out: Output) -> None:
    """Everything that shows one value."""
    preview(value)
    if isinstance(value, Instance):
        assert value == value
        assert hash(value) == hash(value)
        repr(value)
    clock.took("preview")
    values.write_value(value, out)
    clock.took("show")
    out.json({"value": plain(value)})
    clock.took("json")


def compare(before: object, after: object, clock: Clock, out: Output) -> None:
    """Everything that shows how two values differ."""
    found = details(before, after, limit=1001)
    clock.took("details")
    for detail in found:
        str(detail)
    diff: Any = Found(found)
    out.lines(changes.detail_lines(diff, "", out, 1000, 0))
    clock.took("diff")
    out.json_array([changes.detail_documents(diff, "", out)])
    clock.took("diff --json")


def cost_of(directory: Path) -> Cost:
    """Reading a pickle, everything that shows it, and that compares it with a second reading."""
    data = (directory / "old").read_bytes()
    buffers = [path.read_bytes() for path in sorted(directory.glob("buffer*"))]
    sys.stdout = _Sink()
    out = Output()
    clock = Meter()
    try:
        value = read(data, buffers)
        clock.took("read")
        show(value, clock, out)
        try:
            Condition("value == value && contains(to_string(value), 'x')").is_true(value)
        except InvalidInput:
            pass
        clock.took("condition")
        again = read((directory / "new").read_bytes(), [bytes(bytearray(buffer)) for buffer in buffers])
        clock.took("read again")
    except InertError as error:
        clock.took("refused")
        return clock.cost(error.reason)
    compare(value, again, clock, out)
    return clock.cost("read")


def measured(name: str) -> Cost:
    """The cost of showing and comparing the bomb."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)

        def build() -> None:
            made = BOMBS[name]()
            bomb = made if isinstance(made, Bomb) else Bomb(made, made)
            (directory / "old").write_bytes(bomb.old)
            (directory / "new").write_bytes(bomb.new)
            for number, buffer in enumerate(bomb.buffers):
                (directory / f"buffer{number}").write_bytes(buffer)

        def limited() -> Cost:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            return cost_of(directory)

        apart(build)
        return Cost(*apart(limited))


if __name__ == "__main__":
    for line in sys.argv[1:] or sys.stdin:
        print(json.dumps(measured(line.strip())), flush=True)
