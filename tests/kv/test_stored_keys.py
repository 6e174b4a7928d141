"""The stored form of keys where keys are bytes in order."""

import enum

from hypothesis import given
from hypothesis import strategies as st

from vstate.kv.stored_keys import OBJECT_MARK, key_of, ranges, stored_key

KEY = "o/" + "ab" * 32

_digits = st.text("0123456789abcdefAF g", min_size=62, max_size=66).map("o/".__add__)
_keys = st.one_of(_digits, st.binary(min_size=32, max_size=32).map(lambda oid: f"o/{oid.hex()}"))
_any = st.one_of(_keys, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))


class Named(enum.StrEnum):
    """A key that is not a plain str."""

    OBJECT = KEY


@given(_any)
def test_a_stored_key_leads_back_to_its_key(key: str) -> None:
    """Every key comes back, and an object's takes 33 bytes."""
    assert key_of(stored_key(key)) == key
    assert len(stored_key(KEY)) == 33


@given(_any, _any, st.integers(0, 70))
def test_ranges_hold_the_keys_with_a_prefix(key: str, other: str, length: int) -> None:
    """All keys with the prefix lie in them, and no others."""
    prefix = key[:length]
    for some in (key, other):
        assert any(first <= stored_key(some) <= last for first, last in ranges(prefix)) == some.startswith(
            prefix
        )


def test_a_subclass_of_str_is_the_same_key() -> None:
    """A key is stored as its text, so an enum's member equals the plain string."""
    assert stored_key(Named.OBJECT) == stored_key(KEY)
    assert stored_key(Named.OBJECT).startswith(OBJECT_MARK)
