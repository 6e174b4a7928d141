"""Inspection: what an entry holds, read as plain data, without running any of it."""

from __future__ import annotations

from vstate.errors import InvalidInput
from vstate.values.entry import ATOM, PICKLE, TEXT, Entry, Reader, read_parts

INSPECT_BYTES = 64 * 1024 * 1024
"""Values up to this long are read for display; a longer one is only described."""


def inspect_value(entry: Entry, reader: Reader, *, limit: int = INSPECT_BYTES) -> object:
    """The entry's value as plain data and records. Imports nothing and calls nothing that it names.

    Raises InvalidInput over `limit` bytes, InertError for a pickle that makes no sense.
    """
    if entry.codec == ATOM:
        value: object = entry.value
        return value
    if entry.size > limit:
        raise InvalidInput(f"a value of {entry.size} bytes is too long to show: the limit is {limit}")
    parts, _ = read_parts(entry, reader)
    if entry.codec == PICKLE:
        from vstate.values import inert  # late, for a quick `import vstate`

        return inert.read(bytes(parts[0]), parts[1:])  # type: ignore[arg-type]
    if entry.codec == TEXT:
        return str(parts[0], "utf-8", "backslashreplace")
    return bytes(parts[0])


def describe(entry: Entry) -> str:
    """The type and size of an entry's value, to be read: `list, 4.1 kB`."""
    return f"{entry.type}, {size_text(entry.size)}"


def size_text(size: int) -> str:
    """A number of bytes to be read, in decimal units: `4.1 kB`."""
    if size < 1000:
        return f"{size} B"
    power = 1
    while size >= 999_950 * 1000 ** (power - 1) and power < 4:
        power += 1
    return f"{size / 1000**power:.1f} {_UNITS[power]}"


_UNITS = ("B", "kB", "MB", "GB", "TB")
