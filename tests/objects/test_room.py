"""Room for long data: a bytearray like any other."""

from __future__ import annotations

import pytest

from vstate.objects.room import LONG_BYTES, room_for


@pytest.mark.parametrize("length", [0, 1, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 4097])
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
