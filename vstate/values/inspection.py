"""Inspection: the value of an entry as plain data, without running any of it."""

from __future__ import annotations

from vstate.errors import InvalidInput
from vstate.values.budget import Limits
from vstate.values.entry import ATOM, FILE, PICKLE, TEXT, Entry, Reader, read_parts
from vstate.values.file import File

_WIDEST_TEXT = 80 * 1024 * 1024
_NARROW = bytes(range(0xC4))  # bytes of UTF-8 that occur only in characters below U+0100
_NOT_WIDEST = bytes(range(0xF0))  # and below U+10000
_CONTINUATION = bytes(range(0x80, 0xC0))

INSPECT_BYTES = 64 * 1024 * 1024
"""Values up to this long are read for display; a longer one is only described."""


def inspect_value(entry: Entry, reader: Reader, *, limit: int = INSPECT_BYTES) -> object:
    """The entry's value as `inert.read` returns it: nothing that the value names is imported or called.

    Raises InvalidInput for a value of more than `limit` bytes and for malformed UTF-8, and InertError for a
    malformed pickle.
    """
    if entry.codec == ATOM:
        value: object = entry.value
        return value
    if entry.size > limit:
        raise InvalidInput(f"a value of {entry.size} bytes is too long to show: the limit is {limit} bytes")
    parts, _ = read_parts(entry, reader)
    if entry.codec == PICKLE:
        from vstate.values import inert  # late, for a quick `import vstate`

        data = bytes(parts.pop(0))
        # Arrays keep their buffers, and two values must fit into memory to be compared.
        most = Limits().bytes + max(limit - INSPECT_BYTES, 0)
        left = min(most - sum(map(len, parts)), Limits().bytes)
        return inert.read(data, parts, limits=Limits(bytes=left))
    if entry.codec == TEXT:
        return _text(parts[0], max(limit, _WIDEST_TEXT))
    if entry.codec == FILE:
        return File(bytes(parts[0]), entry.type)
    return bytes(parts[0])


def shown_value(entry: Entry, reader: Reader, *, limit: int = INSPECT_BYTES) -> object:
    """As `inspect_value`, but a File is its text, or its bytes if it is no text.

    So every surface shows a file as it shows a text or bytes. The type of the entry tells the kind of file.
    """
    value = inspect_value(entry, reader, limit=limit)
    if not isinstance(value, File):
        return value
    try:
        return value.data if b"\0" in value.data else _text(value.data, max(limit, _WIDEST_TEXT))
    except InvalidInput:
        return value.data


def named_in(entry: Entry, reader: Reader) -> dict[str, bytes]:
    """The full names of the classes and functions that a pickled value names.

    Each has the magic number of the Python that compiled it, if it is a class that is stored by value, else
    no bytes. Raises InvalidInput for a value of more than 64 MB, and InertError for a malformed pickle.
    """
    if entry.size > INSPECT_BYTES:
        raise InvalidInput(f"a value of {entry.size} bytes is too long: the limit is {INSPECT_BYTES} bytes")
    from vstate.values import inert  # late, for a quick `import vstate`

    parts, _ = read_parts(entry, reader)
    machine = inert.Machine(bytes(parts[0]), parts[1:], Limits())
    machine.result()
    return machine.budget.names


def _text(data: bytes | bytearray, widest: int) -> str:
    if not data.isascii():
        # In Python, one wide character makes all characters of a text as wide.
        wide = data.translate(None, _NARROW)
        width = 4 if wide.translate(None, _NOT_WIDEST) else 2 if wide else 1
        size = width * len(data.translate(None, _CONTINUATION))
        if size > widest:
            raise InvalidInput(f"a text of {size} bytes in memory is too long to show")
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"this text is not UTF-8: {error.reason} at byte {error.start}") from None


def type_text(entry: Entry) -> str:
    """The type of an entry's value, for people; of a short link, with its target: `link -> v2.csv`."""
    if entry.codec == FILE and entry.type == "link" and isinstance(entry.parts[0], bytes):
        return f"link -> {entry.parts[0].decode(errors='replace')}"
    return entry.type


def describe(entry: Entry) -> str:
    """The type and size of an entry's value, for people: `list, 4.1 kB`; and its expiry, if it has one."""
    text = f"{type_text(entry)}, {size_text(entry.size)}"
    return text if entry.expiry is None else f"{text}, expires {entry.expiry}"


def size_text(size: int) -> str:
    """A number of bytes for people, in decimal units: `4.1 kB`."""
    if size < 1000:
        return f"{size} B"
    power = 1
    while size >= 999_950 * 1000 ** (power - 1) and power < 4:
        power += 1
    return f"{size / 1000**power:.1f} {_UNITS[power]}"


_UNITS = ("B", "kB", "MB", "GB", "TB")
