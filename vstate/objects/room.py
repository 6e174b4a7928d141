"""Room: memory for long data, without most of the time that the system takes to give it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import cache
from typing import Any

LONG_BYTES = 4 * 1024 * 1024
"""From how many bytes on huge pages save time: below, Python's own way is as quick."""

_KEPT_BYTES = 4 * 1024 * 1024


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

    `bytearray(100_000_000)` takes 50 ms: it clears the memory, and the system gives it in pages of 4 KB. In
    huge pages, where the system has them, filling it takes 20 ms in all.
    """
    make = _maker() if length >= LONG_BYTES else bytearray
    return make(length)


@cache
def _maker() -> Callable[[int], bytearray]:
    try:
        import ctypes  # late: only long values need it, and some systems lack it

        new: Any = ctypes.pythonapi.PyByteArray_FromStringAndSize
        advise: Any = ctypes.CDLL(None).madvise
        huge = mmap.MADV_HUGEPAGE
    except (ImportError, AttributeError, OSError):  # not Linux, or not CPython
        return bytearray
    new.argtypes, new.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    letter = ctypes.c_char

    def make(length: int) -> bytearray:
        data: bytearray = new(None, length)
        begin = ctypes.addressof(letter.from_buffer(data))
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        # A hint: if the system refuses it, the pages are small.
        advise(first, begin + length - first, huge)
        return data

    return make
