"""Room for long data: a bytearray like any other."""

from __future__ import annotations

import mmap
import sys

import pytest

from vstate.objects.room import room_for, take_pages

LONG = 16 * 1024 * 1024


@pytest.mark.parametrize("length", [0, 1, 4097, LONG + 4097])
def test_room_is_a_bytearray_of_this_length(length: int) -> None:
    """It holds the written bytes, grows, and takes no other object's memory."""
    one, other = room_for(length), room_for(length)
    assert type(one) is bytearray
    assert len(one) == length
    one[:] = b"1" * length
    other[:] = b"2" * length
    one += b"end"
    assert one == b"1" * length + b"end"
    assert other == b"2" * length


def resident() -> int:
    """The bytes of memory that this process has."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives many pages at once")
def test_pages_are_taken_where_the_caller_says() -> None:
    """A room has no memory before, gets it for these bytes alone, and keeps the bytes that are there."""
    before = resident()
    room = room_for(4 * LONG)
    room[LONG + 4 : LONG + 6] = b"ab"
    assert resident() - before < LONG // 4
    take_pages(room, LONG + 5, 2 * LONG)
    assert LONG // 2 < resident() - before < LONG + LONG // 2
    assert room[LONG + 4 : LONG + 6] == b"ab"
