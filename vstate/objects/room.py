"""Room: memory for long data, without most of the time that the system takes to give it."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_KEPT_BYTES = 4 * 1024 * 1024

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python's `mmap` does not name."""


@cache
def keep_freed_memory() -> None:
    """Let the process keep some freed memory, so that one batch of rows takes the memory of the last one.

    glibc gives freed memory back to the system at once, and the system clears each page that it gives anew.
    That doubles the time to read 200 MB. Once a block was freed, glibc keeps up to twice the length of that
    block. The block itself is never written, so it costs nothing.
    """
    bytes(_KEPT_BYTES)


def room_for(length: int) -> bytearray:
    """A bytearray of this length with arbitrary content: the caller writes every byte.

    `bytearray(length)` clears the memory first.
    """
    room: bytearray = _calls()[0](length)
    return room


def take_pages(room: bytearray, begin: int, end: int) -> None:
    """Have the system give the pages of these bytes in one call: a fault for each page takes longer.

    Only for bytes that are written next. The length of a forged value must not take memory by itself.
    """
    _calls()[1](room, begin, end)


def _no_pages(room: bytearray, begin: int, end: int) -> None:
    """The first write to each page takes it."""


@cache
def _calls() -> tuple[Callable[[int], bytearray], Callable[[bytearray, int, int], None]]:
    if not sys.platform.startswith("linux"):
        return bytearray, _no_pages
    try:
        import ctypes  # late: only long values need it, and some systems lack it

        new: Any = ctypes.pythonapi.PyByteArray_FromStringAndSize
        advise: Any = ctypes.CDLL(None).madvise
    except (ImportError, AttributeError, OSError):  # not CPython, or no C library to call
        return bytearray, _no_pages
    new.argtypes, new.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    letter = ctypes.c_char

    def take(room: bytearray, begin: int, end: int) -> None:
        address = ctypes.addressof(letter.from_buffer(room, begin))
        first = address // mmap.PAGESIZE * mmap.PAGESIZE
        # Not MADV_HUGEPAGE: the system may search long for huge pages, and a virtual machine for memory.
        # If an older kernel refuses the call, the first write to each page takes it.
        advise(first, address + end - begin - first, _POPULATE_WRITE)

    return (lambda length: new(None, length)), take
