"""Pickles that are made to cost much, and their cost: peak memory and seconds, each in its own process.

`python tests/values/bombs.py` prints the table of all of them, or of those whose names are given.
Without a terminal it reads names from standard input, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import gc
import io
import json
import os
import random
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
from vstate_cli.app import cli
from vstate_cli.condition import Condition
from vstate_cli.output import Output

from vstate import Disk, InvalidInput
from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.objects.ids import BLOB, INDEX, NewObjects, Object, ObjectId
from vstate.objects.stream import split
from vstate.repo.compare.details import Detail, details
from vstate.repo.repository import Repository
from vstate.values.entry import BYTES, PICKLE, TEXT
from vstate.values.inert import InertError, Instance, plain, preview, read

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
    return b"c" + function + b"\n\x94" + args + b"q\xff](" + (b"h\0h\xff" + opcode) * count + b"e."


def shared(value: bytes, count: int) -> bytes:
    """A list that holds one value many times."""
    return value + b"\x94](" + b"h\0" * count + b"e."


def pair(old: bytes, new: bytes, make: Callable[[bytes], bytes]) -> Bomb:
    return Bomb(make(old), make(new))


def along(bits: int, taken: int, count: int) -> list[int]:
    """Ints that take so many places of a dict's table of 2**bits, then others that pass most of these.

    Once the bits of a hash are used up, CPython's next place is always 5 times the last one plus 1. The first
    ints lie along that orbit, each in its own place. Each of the others comes to its beginning over places
    that are all taken: five bits of it at a time decide on the next.
    """
    mask = (1 << bits) - 1
    orbit = [1]
    while len(orbit) < taken:
        orbit.append((5 * orbit[-1] + 1) & mask)
    position = dict(zip(orbit, range(taken), strict=True))
    chance = random.Random(5)
    found: list[int] = []
    while len(found) < count:
        number = at = chance.choice(orbit)
        step = 0
        while number >> 5 * step:
            step += 1
            base = 5 * at + 1
            if 5 * step + bits <= 60:
                choices = [more << 5 * (step - 1) + bits | number for more in chance.sample(range(1, 32), 8)]
            else:
                choices = [number]
            for choice in choices:
                at = (base + (choice >> 5 * step)) & mask
                if at in position:
                    number = choice
                    break
            else:
                break
        else:
            if position[at] < taken // 2:
                found.append(number)
    return orbit + found


def often(numbers: Sequence[int]) -> bytes:
    """A dict of these keys, the last of which is set again and again."""
    entries = b"".join(long(n) + b"N" for n in numbers)
    return b"}(" + entries + b"u" + (long(numbers[-1]) + b"Ns") * 300_000 + b"."


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


READ: dict[str, Callable[[], bytes | Bomb]] = {
    "lists": lambda: b"]" * (4 * MILLION) + b".",
    "sets": lambda: b"\x8f" * (4 * MILLION) + b".",
    "marks": lambda: b"(" * (4 * MILLION) + b".",
    "extensions": lambda: listed(b"\x82\x07" * MILLION),
    "persistent ids": lambda: b"N" + b"Q" * MILLION + b".",
    "objects by OBJ": lambda: b"ca\nb\n\x94](" + b"(h\0o" * MILLION + b"e.",
    "nested lists": lambda: b"]" * MILLION + b"a" * (MILLION - 1) + b".",
    "nested tuples": lambda: b")" + b"\x85" * (4 * MILLION) + b".",
    "nested frozensets": lambda: b"(" * MILLION + b"\x91" * MILLION + b".",
    "nested records": lambda: b"ca\nb\n" + b")R" * MILLION + b".",
    "nested arguments": lambda: b"ca\nb\n\x94" + b"h\0" * MILLION + b")" + b"\x85R" * MILLION + b".",
    "nested states": lambda: b"ca\nb\n\x940" + b"h\0)\x81" * 100_000 + b"N" + b"b" * 100_000 + b".",
    "nested classes": lambda: b"ca\nb\n}\x8c\1x" * 100_000 + b"N" + b"sb" * 100_000 + b".",
    "states": lambda: b"ca\nb\n)\x81\x94" + b"}\x8c\x01xh\0s" * 300_000 + b".",
    "a nested key": lambda: b"})" + b"\x85" * 100_000 + b"Ns.",
    "a key of shared tuples": lambda: b"})" + b"2\x86" * 100 + b"Ns.",
    "shared frozensets": lambda: b"((K\x01\x91" + b"2\x85\x94(h\0h\0\x85\x91" * 60 + b"\x91.",
    "colliding ints": lambda: b"}(" + multiples(b"N") + b"u.",
    "colliding members": lambda: b"(" + multiples(b"") + b"\x91.",
    "colliding floats": lambda: (
        b"}("
        + b"".join(
            b"G" + struct.pack(">d", float((2 * m + 1) * 2 ** (61 * e))) + b"N"
            for e in range(16)
            for m in range(12_000)
        )
        + b"u."
    ),
    "keys along one path": lambda: b"}(" + b"".join(long(n) + b"N" for n in along(17, 80_000, 2000)) + b"u.",
    "one key along a path, often": lambda: often(along(17, 80_000, 1)),
    "equal long keys": lambda: b"}" + 2 * (text(b"k" * MILLION) + b"\x94") + b"s" + b"h\1Ns" * 500_000 + b".",
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
    "digits": lambda: (b"L" + b"9" * 4200 + b"L\n0") * 15_000 + b"N.",
    "escapes": lambda: b"S'" + b"\\x41" * (4 * MILLION) + b"'\n.",
    "a scattered memo": lambda: b"N" + b"".join(b"r" + le(7 * n + 5, 4) for n in range(MILLION)) + b".",
    "names": lambda: text(b"a" * 400) + b"\x94" + b"h\0h\0\x93" * 900_000 + b".",
    "long names": lambda: text(b"a" * MILLION) + b"\x94" + b"h\0h\0\x930" * 500_000 + b".",
    "a name of a megabyte": lambda: b"c" + b"\x1b[2J" * 250_000 + b"\n" + b"a." * 500_000 + b"\n.",
    "attributes": lambda: calls(b"builtins\ngetattr", b"ca\nb\n" + text(b"a" * 900) + b"\x86"),
    "calls of calls": lambda: b"ca\n" + b"b" * 900 + b"\n" + b")R" * MILLION + b".",
    "counters of one dict": lambda: calls(
        b"collections\nCounter", b"}(" + b"".join(b"M" + le(n, 2) + b"N" for n in range(65_536)) + b"u\x85"
    ),
    "new objects of one tuple": lambda: calls(b"copyreg\n__newobj__", b"(ca\nb\n" + NONES + b"t"),
    "paths of one tuple": lambda: calls(b"pathlib\nPath", b"(" + NONES + b"t"),
    "copies of bytes": lambda: calls(b"builtins\nbytearray", binary(bytes(MILLION)) + b"\x85"),
    "keywords of many": lambda: (
        b"ca\nb\n\x94}("
        + b"".join(b"\x8c\x06%06dN" % n for n in range(100_000))
        + b"u\x94]("
        + b"h\0)h\1\x92" * 300_000
        + b"e."
    ),
    "arrays of one buffer": lambda: calls(
        b"numpy.core.numeric\n_frombuffer",
        b"(" + binary(bytes(100_000)) + dtype("V1000") + b"M\x64\0\x85\x8c\x01Ct",
    ),
    "read-only buffers": lambda: Bomb(*2 * (b"](" + b"\x97" + b"\x982" * MILLION + b"e.",), [bytes(10)]),
}
"""Refused, or small when they are read."""

SHOWN: dict[str, Callable[[], bytes | Bomb]] = {
    "ints": lambda: listed(b"J\1\2\3\4" * 1_600_000),
    "short wide texts": lambda: listed((b"\x8c\x02" + "\u0100".encode()) * 600_000),
    "empty lists": lambda: listed(b"]" * 600_000),
    "a set of ints": lambda: b"\x8f(" + b"".join(map(int4, range(690_000))) + b"\x90.",
    "a dict of ints": lambda: b"}(" + b"".join(int4(n) + b"N" for n in range(400_000)) + b"u.",
    "a set of records": lambda: (
        b"ca\nb\n\x94\x8f(" + b"".join(b"h\0" + int4(n) + b"\x85R" for n in range(120_000)) + b"\x90."
    ),
    "objects of one tuple": lambda: calls(b"a\nb", b"(" + b"N" * 100_000 + b"t", b"\x81", 20_000),
    "lists inside of each other": lambda: b"]" * 9_900 + b"a" * 9_899 + b".",
    "billion laughs of lists": lambda: (
        b"]\x94" + b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(200)) + b"."
    ),
    "billion laughs of tuples": lambda: b"N\x85" + b"2\x86" * 9_900 + b".",
    "billion laughs of records": lambda: (
        b"ca\nb\n\x940]\x94"
        + b"".join(b"(h\0j%bj%bo\x94" % (2 * (le(n, 4),)) for n in range(1, 4_900))
        + b"."
    ),
    "a giant int": lambda: b"\x8b" + le(36 * MILLION, 4) + b"\x7f" * (36 * MILLION) + b".",
    "an int of a megabyte": lambda: shared(b"\x8b" + le(500_000, 4) + b"\x7f" * 500_000, 100_000),
    "a long text": lambda: text(b"a" * (64 * MILLION)) + b".",
    "a text of control characters": lambda: text(b"\1" * (64 * MILLION)) + b".",
    "a text of newlines": lambda: text(b"\n" * (64 * MILLION)) + b".",
    "long bytes": lambda: b"\x96" + le(64 * MILLION, 8) + b"a" * (64 * MILLION) + b".",
    "one text in many places": lambda: shared(text(b"\1" * 1023), 200_000),
    "bytes in many places": lambda: shared(binary(bytes(64 * 1024)), 100_000),
    "a long key": lambda: b"}" + text(b"\1" * (60 * MILLION)) + b"Ns.",
    "a class with a bomb in it": lambda: b"ca\nb\n}\x8c\1xN\x85" + b"2\x86" * 9_000 + b"sb.",
    "a zero-sized array": lambda: array(b"C\0", "S0", b"(" + long(2**61) * 63 + b"t") + b".",
    "an array that says to be long": lambda: array(b"C\0", "f8", b"(" + long(2**61) * 63 + b"t") + b".",
    "arrays of everything": lambda: listed(
        b"".join(
            array(
                b"\x8e" + le(size * 4, 8) + bytes(range(256))[: size * 4].ljust(size * 4, b"\xff"),
                code,
                b"K\4\x85",
            )
            for code, size in (
                ("U9", 36),
                ("M8", 8),
                ("m8", 8),
                ("c16", 16),
                ("f2", 2),
                ("S200", 200),
                ("b1", 1),
            )
        )
        * 1000
    ),
    "an array of itself": lambda: BARE_ARRAY + b"\x94(K\1K\1\x85" + dtype("O8") + b"\x89](h\0etb.",
    "a frame of many columns": lambda: frame(
        array_of("i1", 9000, 100, data=binary(bytes(900_000))),
        9000,
        axis(objects(b"".join(word(f"c{n}") for n in range(9000)), 9000)),
        row_numbers(100),
    ),
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
    "a frame of objects in objects": lambda: frame(
        called("numpy._core.multiarray._reconstruct", b"cnumpy\nndarray\n", b"K\0\x85", b"C\1b")
        + b"(K\1(K\1J"
        + le(300, 4)
        + b"t"
        + dtype("O8")
        + b"\x89]("
        + (b"]" * 90 + b"a" * 89) * 300
        + b"etb",
        1,
        axis(objects(word("a"), 1)),
        row_numbers(300),
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
    "a chat of many messages": lambda: listed(
        (b"}(" + word("role") + word("user") + word("content") + b"]" * 20 + b"a" * 19 + b"u") * 20_000
    ),
    "messages of one long text, in many blocks": lambda: (
        b"\x80\x05"
        + (word("text") + b"\x940}" + b"h\0" + text(b"a" * (20 * MILLION)) + b"s\x940")
        + (b"](" + b"h\1" * 50 + b"e\x940")
        + b"]("
        + (b"}(" + word("role") + word("user") + word("content") + b"h\2u") * 2000
        + b"e."
    ),
}
"""Read, then shown, and compared with a second reading."""

COMPARED: dict[str, Callable[[], bytes | Bomb]] = {
    "frames that differ everywhere": lambda: Bomb(
        frame(array_of("i1", 1, 30 * MILLION), 1, axis(objects(word("a"), 1)), row_numbers(30 * MILLION)),
        frame(
            array_of("i1", 1, 30 * MILLION, data=b"\x970\x97"),
            1,
            axis(objects(word("a"), 1)),
            row_numbers(30 * MILLION),
        ),
        [bytes(30 * MILLION), b"\1" * 30 * MILLION],
    ),
    "arrays of which every second element differs": lambda: Bomb(
        b"\x80\x05" + array_of("i1", 30 * MILLION) + b".",
        b"\x80\x05" + array_of("i1", 30 * MILLION, data=b"\x970\x97") + b".",
        [bytes(30 * MILLION), b"\0\1" * (15 * MILLION)],
    ),
    "lists of ints of one hash, in another order": lambda: Bomb(
        *(
            listed(b"".join(long(n * PRIME) for n in order))
            for order in (range(1, 60_000), range(60_000, 0, -1))
        )
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
    "bytes in many places, twice": lambda: shared(binary(bytes(10 * MILLION)), 100_000),
    "a text in many places, and one more": lambda: pair(
        b"", b"Na", lambda more: shared(text(b"q" * (10 * MILLION)), 100_000)[:-1] + more + b"."
    ),
    "one dict in many records": lambda: calls(
        b"collections\nCounter",
        b"}(" + b"".join(b"M" + le(n, 2) + b"N" for n in range(300)) + b"u\x85",
        count=5000,
    ),
    "one long tuple in many records": lambda: calls(b"a\nb", b"(" + b"N" * 100_000 + b"t", b"\x81", 20_000),
    "an array with a bomb for a shape": lambda: Bomb(
        *(BARE_ARRAY + b"}\x8c\5shapeN\x85" + b"2\x86" * 9_000 + b"sb.",) * 2
    ),
    "long paths": lambda: pair(
        b"K\1",
        b"K\2",
        lambda leaf: (
            text(b"\1" * 60) + b"\x94" + b"}h\0" * 9_000 + b"](" + leaf * 1000 + b"e" + b"s" * 9_000 + b"."
        ),
    ),
    "a long list in many places": lambda: Bomb(
        listed(NONES[:1000]), b"](" + NONES[:10_000] + b"e\x94](" + b"h\0" * 1000 + b"e."
    ),
    "a laugh in many places": lambda: Bomb(
        listed(NONES[:1000]), b"N\x85" + b"2\x86" * 9_000 + b"\x94](" + b"h\0" * 1000 + b"e."
    ),
    "items in another order": lambda: Bomb(
        listed(b"".join(b"](" + int4(n) + b"\x8c\2abe" for n in range(100_000))),
        listed(b"".join(b"](" + int4(n) + b"\x8c\2abe" for n in reversed(range(100_000)))),
    ),
    "lists against lists": lambda: Bomb(
        *(
            b"]\x94("
            + b"".join(b"](" + NONES[:40_000] + leaf + b"e\x94" for _ in range(20))
            + b"e0]("
            + order
            + b"e."
            for leaf, order in (
                (b"K\1", b"".join(b"h" + le(1 + a, 1) for a in range(20) for _ in range(20))),
                (b"K\2", b"".join(b"h" + le(1 + b, 1) for _ in range(20) for b in range(20))),
            )
        )
    ),
    "texts that differ at the end": lambda: pair(
        b"a", b"b", lambda letter: text(b"x" * (64 * MILLION - 10) + letter) + b"."
    ),
    "texts of long lines": lambda: pair(
        b"a", b"b", lambda letter: text((b"\1" * 30_000 + letter + b"\n") * 60) + b"."
    ),
    "many texts of many lines": lambda: pair(
        b"y", b"z", lambda last: shared(text((b"x\n" + last + b"\n") * 95), 1000)
    ),
    "texts of lines of three kinds": lambda: Bomb(
        *(
            text(b"".join(b"abc"[(seed * n * n >> 5) % 3 :][:1] + b"\n" for n in range(1, 1990))) + b"."
            for seed in (0x9E3779B97F4A7, 0xC2B2AE3D27D4F)
        )
    ),
}
"""The most expensive to compare."""


# --- stores that are made to cost much


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


def long_part(codec: int, data: bytes, name: str) -> tuple[bytes, NewObjects]:
    """A version that is one long part."""
    link, _, objects = split(data)
    return encode([codec, [link] if codec == PICKLE else link, len(data), name]), objects


def index(height: int, items: Sequence[tuple[ObjectId, int]]) -> tuple[ObjectId, Object]:
    body = encode([height, b"".join(oid for oid, _ in items), [size for _, size in items]])
    return ObjectId.of(INDEX, body), Object(INDEX, body)


def index_of_one_chunk() -> tuple[bytes, NewObjects]:
    """A stream whose index leads to one chunk of one byte 2**25 times."""
    blob = ObjectId.of(BLOB, b"x")
    objects: NewObjects = {blob: Object(BLOB, b"x")}
    item, size = blob, 1
    for height in range(1, 6):
        item, node = index(height, [(item, size)] * 32)
        objects[item] = node
        size *= 32
    return encode([BYTES, (item, size), size, "bytes"]), objects


def blobs_that_are_longer() -> tuple[bytes, NewObjects]:
    """A stream of 100 chunks of 20,000 bytes, so its index says; each has 60 MB."""
    objects: NewObjects = {}
    items = []
    for number in range(100):
        body = bytes([number]) * (60 * MILLION)
        oid = ObjectId.of(BLOB, body)
        if number < 6:  # that the others are missing is not found out before
            objects[oid] = Object(BLOB, body)
        items.append((oid, 20_000))
    root, node = index(1, items)
    objects[root] = node
    return encode([BYTES, (root, 2_000_000), 2_000_000, "bytes"]), objects


def numbers(count: int, last: int) -> bytes:
    return listed(b"".join(b"J" + struct.pack("<i", n) for n in range(count)) + int4(last))


STORED: dict[str, Callable[[], list[tuple[bytes, NewObjects]]]] = {
    "stored: a text of control characters": lambda: [
        long_part(TEXT, b"\1" * (64 * MILLION) + last, "str") for last in (b"a", b"b")
    ],
    "stored: a text of which one character is wide": lambda: [
        long_part(TEXT, b"a" * (64 * MILLION) + "\U0001f600".encode(), "str")
    ],
    "stored: a text that is no UTF-8": lambda: [long_part(TEXT, b"\xff" * (64 * MILLION), "str")],
    "stored: a text of lines": lambda: [
        long_part(TEXT, b"ab\n" * (21 * MILLION) + last, "str") for last in (b"a", b"b")
    ],
    "stored: long bytes in a pickle": lambda: [
        long_part(PICKLE, b"](" + binary(bytes(63 * MILLION) + last) + b"e.", "list") for last in (b"a", b"b")
    ],
    "stored: a pickle of which most is thrown away": lambda: [
        long_part(PICKLE, text(b"a" * (52 * MILLION)) + b"0" + numbers(1_000_000, last), "list")
        for last in (1, 2)
    ],
    "stored: numbers": lambda: [long_part(PICKLE, numbers(1_600_000, last), "list") for last in (1, 2)],
    "stored: random bytes": lambda: [
        long_part(BYTES, random.Random(last).randbytes(64 * MILLION), "bytes") for last in (1, 2)
    ],
    "stored: an index of one chunk": lambda: [index_of_one_chunk()],
    "stored: blobs that are longer than they should be": lambda: [blobs_that_are_longer()],
}
"""In a store, where the command shows and compares them."""


QUICK = (
    """
lists; marks; nested records; a key of shared tuples; a key of many giant ints
colliding members; one key along a path, often; names
a name of a megabyte; calls of calls; paths of one tuple; keywords of many; lists inside of each other
billion laughs of tuples; a text of newlines; bytes in many places; an array that says to be long
Arrow texts that are one text, often; frames that differ everywhere; frames with labels of one hash
a text in many places, and one more; one long tuple in many records; long paths; a laugh in many places
texts of long lines; texts of lines of three kinds; stored: an index of one chunk
""".strip()
    .replace("\n", "; ")
    .split("; ")
)
"""In the short run. Each other one is like one of these in how it is made or in the limit that stops it."""

COMMANDS: dict[str, list[str]] = {
    "show": ["show", "HEAD", "bomb"],
    "show --json": ["show", "HEAD", "bomb", "--json"],
    "diff": ["diff"],
    "diff --json": ["diff", "--json"],
    "log": ["log"],
}


# --- the costs


class Cost(NamedTuple):
    """Peak memory in megabytes besides the pickles; seconds for each step; and the outcome."""

    peak: float
    seconds: dict[str, float]
    outcome: str


class _Sink(io.TextIOBase):
    """An output that counts."""

    written = 0

    def write(self, text: str) -> int:
        self.written += len(text)
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
        forget_peak()
        self.before = peak()
        super().__init__()

    def cost(self, outcome: str) -> Cost:
        return Cost(peak() - self.before, self.seconds, outcome)


def peak() -> float:
    """The megabytes that this process had resident at its worst, lately."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


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
    if not answer:
        raise RuntimeError(f"the process ended with status {status}")
    found = json.loads(answer)
    if "raised" in found:
        raise RuntimeError(found["raised"])
    return found["result"]


def output() -> Output:
    sys.stdout = _Sink()
    return Output()


def limit_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))


def cost_of_showing(directory: Path) -> Cost:
    """Reading a pickle, and everything that shows one value."""
    limit_process()
    data = (directory / "old").read_bytes()
    buffers = [path.read_bytes() for path in sorted(directory.glob("buffer*"))]
    out = output()
    clock = Meter()
    value, outcome = None, "read"
    try:
        value = read(data, buffers)
    except InertError as error:
        outcome = error.reason
    clock.took("read")
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
    try:
        Condition("value == value && contains(to_string(value), 'x')").is_true(value)
    except InvalidInput:
        pass
    clock.took("condition")
    del value
    clock.took("free")
    return clock.cost(outcome)


def cost_of_comparing(directory: Path) -> Cost:
    """Reading two pickles, and everything that shows how they differ."""
    limit_process()
    old, new = (directory / "old").read_bytes(), (directory / "new").read_bytes()
    buffers = [path.read_bytes() for path in sorted(directory.glob("buffer*"))]
    others = [bytes(bytearray(buffer)) for buffer in buffers]
    out = output()
    clock = Meter()
    try:
        before = read(old, buffers)
        clock.took("read")
        after = read(new, others)
        clock.took("read again")
    except InertError as error:
        clock.took("read")
        return clock.cost(error.reason)
    found = details(before, after, limit=1001)
    clock.took("details")
    for detail in found:
        str(detail)
    clock.took("str")
    diff: Any = Found(found)
    out.lines(changes.detail_lines(diff, "", out, 1000, 0))
    clock.took("diff")
    out.json_array([changes.detail_documents(diff, "", out)])
    clock.took("diff --json")
    return clock.cost(f"{len(found)} details")


def cost_of_command(store: Path, name: str) -> Cost:
    """Running the command in this process, its output thrown away."""
    limit_process()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # the process ends with it
    errors = sys.stderr = io.StringIO()
    clock = Meter()
    try:
        cli(["-s", str(store), *COMMANDS[name]], prog_name="vstate")
    except SystemExit as end:
        clock.took(name)
        return clock.cost(f"{end.code}, {errors.getvalue()}" if end.code else "shown")


def measured(name: str) -> list[Cost]:
    """The cost of showing the bomb, and of comparing it, if it can be read."""
    if name in STORED:
        with tempfile.TemporaryDirectory() as place:
            store = Path(place, "store")
            apart(lambda: plant(store, *STORED[name]()))
            return [Cost(*apart(lambda: cost_of_command(store, command))) for command in COMMANDS]  # noqa: B023
    bombs = {**READ, **SHOWN, **COMPARED}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)

        def build() -> None:
            made = bombs[name]()
            bomb = made if isinstance(made, Bomb) else Bomb(made, made)
            (directory / "old").write_bytes(bomb.old)
            (directory / "new").write_bytes(bomb.new)
            for number, buffer in enumerate(bomb.buffers):
                (directory / f"buffer{number}").write_bytes(buffer)

        apart(build)
        costs = []
        if name not in COMPARED:
            costs.append(Cost(*apart(lambda: cost_of_showing(directory))))
        if name not in READ:
            costs.append(Cost(*apart(lambda: cost_of_comparing(directory))))
        return costs


def main() -> None:
    if not sys.stdin.isatty() and len(sys.argv) < 2:
        for line in sys.stdin:
            print(json.dumps(measured(line.strip())), flush=True)
        return
    print("| bomb | outcome | peak MB | seconds, each step |")
    print("|---|---|--:|---|")
    for name in sys.argv[1:] or [*READ, *SHOWN, *COMPARED, *STORED]:
        for cost in measured(name):
            steps = ", ".join(
                f"{step} {seconds:.2f}" for step, seconds in cost.seconds.items() if seconds >= 0.005
            )
            print(f"| {name} | {cost.outcome} | {cost.peak:.0f} | {steps} |", flush=True)


if __name__ == "__main__":
    main()
