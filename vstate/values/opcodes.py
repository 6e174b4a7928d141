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
from typing import IO, Any, Final, NamedTuple

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

_FRAME_HEADER: Final = 9  # the opcode and its eight bytes of length
_FIRST_FRAMED_PROTOCOL: Final = 4
_LONG: Final = 128 * 1024  # bytes; the C unpickler reads as many ahead


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


class _Memory(io.RawIOBase):
    """A file of bytes in memory, which are not copied before they are read."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._rest = memoryview(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def pickle_file(data: bytes | bytearray) -> IO[bytes]:
    """A file for an unpickler of `data`, a pickle without frames.

    The C unpickler reads a file opcode by opcode, but a frame at once. So a short pickle gets one frame. That
    would copy a long one, which is read in pieces.
    """
    if len(data) >= _LONG:
        return io.BufferedReader(_Memory(data), _LONG)
    if len(data) < 3 or data[0] != PROTO or data[1] < _FIRST_FRAMED_PROTOCOL or data[2] == FRAME:
        return io.BytesIO(data)
    length = (len(data) - 2).to_bytes(8, "little")
    return io.BytesIO(b"".join((data[:2], b"\x95", length, memoryview(data)[2:])))


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


_MALFORMED: Final = (
    pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, OverflowError,
)  # fmt: skip


def load_only_plain(data: bytes | bytearray) -> Any:
    """The value of any pickle of plain data. CannotLoad, and no code has run, if it names something else.

    It takes less time than a look for names: data may have the bytes of one.
    """
    if getattr(copyreg, "_inverted_registry", None) and may_hold(bytes(data), *_EXTENSIONS):
        found = tokens(bytes(data))
        if found is None or any(token[0] in _EXTENSIONS for token in found):
            raise CannotLoad("copyreg", "only plain data is loaded here")
    try:
        return _PlainUnpickler(pickle_file(data)).load()
    except _MALFORMED as error:
        raise CannotLoad("its pickle", f"{type(error).__name__}: {error}") from error
