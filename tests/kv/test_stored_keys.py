"""The stored form of keys where keys are bytes in order."""

import enum
import re

from hypothesis import given
from hypothesis import strategies as st

from vstate.kv.base import is_object, room_prefix, split_room
from vstate.kv.stored_keys import OBJECT_MARK, is_stored_object, key_of, ranges, stored_key

KEY = "o/" + "ab" * 32
ROOM = "room/00ff00ffabcdef12/"

_digits = st.text("0123456789abcdefAF g", min_size=62, max_size=66).map("o/".__add__)
_keys = st.one_of(_digits, st.binary(min_size=32, max_size=32).map(lambda oid: f"o/{oid.hex()}"))
_plain = st.one_of(_keys, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
_rooms = st.one_of(
    st.integers(0, 2**64 - 1).map(room_prefix),
    st.sampled_from([ROOM, ROOM + ROOM, room_prefix(0), room_prefix(2**64 - 1)]),
    st.sampled_from([ROOM[:-1], ROOM[:-2] + "/", ROOM.upper(), "room/", "room/é"]),  # they only look so
)
_any = st.one_of(_plain, st.tuples(_rooms, _plain).map("".join))


class Named(enum.StrEnum):
    """A key that is not a plain str."""

    OBJECT = KEY


@given(_any)
def test_a_stored_key_leads_back_to_its_key(key: str) -> None:
    """Every key comes back, and an object's takes 33 bytes."""
    stored = stored_key(key)
    assert key_of(stored) == key
    assert len(stored_key(KEY)) == 33
    assert len(stored_key(ROOM + KEY)) == 42
    assert is_stored_object(stored) is bool(re.fullmatch("(room/[0-9a-f]{16}/)?o/[0-9a-f]{64}", key))
    assert is_object(key) is bool(re.match("(room/[0-9a-f]{16}/)?o/", key))


@given(st.integers(0, 2**64 - 1), _plain)
def test_the_keys_of_a_room_lie_together(number: int, key: str) -> None:
    """Each begins with the mark and the number, and goes on as it would outside. Rooms do not nest."""
    room, mark = room_prefix(number), b"\xfe" + number.to_bytes(8, "big")
    assert split_room(room + key) == (room, key)
    assert stored_key(room + key) == mark + stored_key(key)
    assert stored_key(room + room + key) == mark + (room + key).encode()


@given(_any, _any, st.integers(0, 95))
def test_ranges_hold_the_keys_with_a_prefix(key: str, other: str, length: int) -> None:
    """All keys with the prefix lie in them, and no others."""
    prefix = key[:length]
    for some in (key, other):
        holding = [first for first, last in ranges(prefix) if first <= stored_key(some) <= last]
        assert len(holding) == some.startswith(prefix)


def test_a_subclass_of_str_is_the_same_key() -> None:
    """A key is stored as its text, so an enum's member equals the plain string."""
    assert stored_key(Named.OBJECT) == stored_key(KEY)
    assert stored_key(Named.OBJECT).startswith(OBJECT_MARK)
