"""The opcodes of pickle, protocols 0 to 5, and the frames around them.

A FRAME opcode only says how many bytes a reader may fetch at once. Its place depends on sizes, not on
content: one edit moves all frames behind it, and every chunk there becomes a new one. So `frameless`
removes the frames before a pickle is stored, and `framed` adds a single one before it is loaded.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import pickletools
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, Final, NamedTuple

from vstate.errors import CannotLoad

NAMES = 0x93
"""The opcode STACK_GLOBAL, which is before each class in a pickle of protocol 4 or later."""

EMPTY_SET, FROZENSET = 0x8F, 0x91
"""The opcodes before the items of a set, and behind those of a frozenset."""

_EXTENSIONS = 0x82, 0x83, 0x84
"""The opcodes for classes with a short code, which an unpickler remembers and does not look for again."""


class Opcode(NamedTuple):
    """An opcode and the encoding of its argument; at most one of the three numbers is not 0."""

    name: str
    fixed: int = 0
    """Bytes of an argument of fixed size."""
    prefix: int = 0
    """Bytes of the little-endian length in front of an argument of variable size."""
    lines: int = 0
    """Lines of an argument in text, each with a newline at its end."""


def _opcode(info: pickletools.OpcodeInfo) -> Opcode:
    size = 0 if info.arg is None else info.arg.n
    if size == pickletools.UP_TO_NEWLINE:
        return Opcode(info.name, lines=2 if info.name in ("GLOBAL", "INST") else 1)
    return Opcode(info.name, fixed=max(size, 0), prefix=_PREFIXES.get(size, 0))


_PREFIXES: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
OPCODES: Final = {ord(info.code): _opcode(info) for info in pickletools.opcodes if info.proto <= 5}

PROTO: Final = 0x80
FRAME: Final = 0x95
STOP: Final = 0x2E

_PROTO_BYTE: Final = b"\x80"
_MOST_UNFRAMED: Final = 3  # bytes of opcodes without a frame
_FRAME_HEADER: Final = 9  # the opcode and its eight bytes of length
_FIRST_FRAMED_PROTOCOL: Final = 4


def frameless(data: bytes) -> bytes:
    """`data`, a pickle as CPython writes it, without its FRAME opcodes; it loads to the same value.

    Idempotent. Returns a pickle of a protocol without frames, and data that is not a well-formed pickle,
    unchanged.
    """
    if len(data) < 11 or data[0] != PROTO or data[1] < _FIRST_FRAMED_PROTOCOL:
        return data
    if data[2] == FRAME and int.from_bytes(data[3:11], "little") == len(data) - 11:
        return data[:2] + data[11:]
    return _without_frames(data)


def join_pieces(pieces: Sequence[bytes | bytearray]) -> bytes:
    """The pickle that a pickler wrote in these pieces, without its FRAME opcodes, as from `frameless`.

    CPython writes each frame in one piece, and a large object in two: its opcode with the length, and its
    data. Such pieces are copied once. Joining all of them first would copy them twice.

    The data of a bytearray is the bytearray itself: RuntimeError if another thread changed its length.
    """
    if len(pieces) == 1:
        return frameless(bytes(pieces[0]))
    kept: list[bytes | bytearray | memoryview] = []
    size = 0
    data_length = -1  # of the next piece, if it is the data of a large object
    for i, piece in enumerate(pieces):
        at = 0 if i or piece[:1] != _PROTO_BYTE else 2
        code = piece[at] if len(piece) > at else -1
        if data_length >= 0:
            if len(piece) != data_length and type(piece) is not bytearray:
                break
            kept.append(piece)
            size += data_length
            data_length = -1
        elif code == FRAME:
            body = at + _FRAME_HEADER
            if int.from_bytes(piece[at + 1 : body], "little") != len(piece) - body:
                break
            kept += piece[:at], memoryview(piece)[body:]
            size += len(piece) - _FRAME_HEADER
        else:
            kept.append(piece)
            size += len(piece)
            opcode = OPCODES.get(code)
            if opcode is not None and opcode.prefix and len(piece) == at + 1 + opcode.prefix:
                data_length = int.from_bytes(piece[at + 1 :], "little")
            elif len(piece) - at > _MOST_UNFRAMED:
                break
    else:
        joined = b"".join(kept)
        if len(joined) != size:
            raise RuntimeError("bytearray changed size during iteration")  # as dicts say it
        return joined
    return frameless(b"".join(pieces))


def framed(data: bytes | bytearray) -> bytes:
    """`data`, a pickle without frames, as PROTO and one frame around the rest.

    Without frames, the C unpickler reads a file opcode by opcode. Returns data that starts with a frame, or
    whose protocol has none, unchanged.
    """
    if len(data) < 3 or data[0] != PROTO or data[1] < _FIRST_FRAMED_PROTOCOL or data[2] == FRAME:
        return bytes(data)
    length = (len(data) - 2).to_bytes(8, "little")
    return b"".join((data[:2], b"\x95", length, memoryview(data)[2:]))


def _without_frames(data: bytes) -> bytes:
    view = memoryview(data)
    size = len(data)
    kept: list[memoryview] = []
    start = 0
    at = 2
    while at < size:
        if data[at] != FRAME:
            # Between frames are only large objects and up to three bytes of small opcodes.
            at = _end_of_opcode(data, at)
            continue
        body = at + _FRAME_HEADER
        kept.append(view[start:at])
        start = body
        # The pickler never splits an opcode between frames, so a frame is kept unread.
        at = body + int.from_bytes(data[at + 1 : body], "little")
    if at != size or not kept:
        return data
    kept.append(view[start:])
    return b"".join(kept)


def tokens(data: bytes) -> list[bytes] | None:
    """The opcodes of a frameless pickle with their arguments; None for malformed data."""
    found, at = [], 0
    while at < len(data):
        end = _end_of_opcode(data, at)
        found.append(data[at:end])
        at = end
    return found if at == len(data) else None


def may_hold(data: bytes | bytearray, *opcodes: int) -> bool:
    """Whether one of the opcodes may be in a frameless pickle that has their bytes; False is certain.

    Numbers, texts and binary data have these bytes too. So the pickle is read as opcodes up to the last such
    byte, but only its first thousand: they take 0.3 ms.
    """
    at, size, last = 0, len(data), max(data.rfind(opcode) for opcode in opcodes)
    for _ in range(_MOST_WALKED):
        if at > last:
            return at > size  # past the end: malformed
        if data[at] in opcodes:
            return True
        at = _end_of_opcode(data, at)
    return any(data.find(opcode, at) >= 0 for opcode in opcodes)


_MOST_WALKED: Final = 1_000


def _end_of_opcode(data: bytes | bytearray, at: int) -> int:
    """The end of the opcode at `at`; past the end of `data` if the opcode is unknown or cut short."""
    opcode = OPCODES.get(data[at])
    if opcode is None:
        return len(data) + 1
    at += 1
    if opcode.prefix:
        body = at + opcode.prefix
        return body + int.from_bytes(data[at:body], "little")
    for _ in range(opcode.lines):
        newline = data.find(b"\n", at)
        if newline < 0:
            return len(data) + 1
        at = newline + 1
    return at + opcode.fixed


class _PlainUnpickler(pickle.Unpickler):
    """Loads nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        raise CannotLoad(f"{module}.{name}", "only plain data is loaded here")


def _load_slowly(data: bytes | bytearray) -> Any:
    return _PlainUnpickler(io.BytesIO(framed(data))).load()


def _load(data: bytes | bytearray) -> Any:
    return pickle.loads(data)


def _import_nothing(module: str, *_: object) -> Any:
    raise CannotLoad(module, "only plain data is loaded here")


_load_quickly: Final = FunctionType(
    _load.__code__, {"__builtins__": {"__import__": _import_nothing}, "pickle": pickle}
)
"""Each name in a pickle is imported by `PyImport_Import`, which calls the `__import__` of these globals.

An unpickler of our own takes three times as long, to be made.
"""


def _find_plain_loader() -> Callable[[bytes | bytearray], Any]:
    for named in (b"cbuiltins\nint\n.", b"(ibuiltins\nint\n.", b"\x80\x04\x8c\x08builtins\x8c\x03int\x93."):
        with suppress(CannotLoad):
            _load_quickly(named)
            return _load_slowly  # another implementation of pickle
    return _load_quickly


_load_plain: Final = _find_plain_loader()
_MALFORMED: Final = (
    pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, OverflowError,
)  # fmt: skip


def load_only_plain(data: bytes | bytearray) -> Any:
    """The value of any pickle of plain data. CannotLoad, and no code has run, if it names something else.

    It takes as long as `pickle.loads`, and less than a look for names: data may have the bytes of one.
    """
    if getattr(copyreg, "_inverted_registry", None) and may_hold(bytes(data), *_EXTENSIONS):
        found = tokens(bytes(data))
        if found is None or any(token[0] in _EXTENSIONS for token in found):
            raise CannotLoad("copyreg", "only plain data is loaded here")
    try:
        return _load_plain(data)
    except _MALFORMED as error:
        raise CannotLoad("its pickle", f"{type(error).__name__}: {error}") from error
