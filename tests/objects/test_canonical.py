"""The canonical encoding: plain data in, one spelling out, anything else refused by its place."""

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate.errors import InvalidInput
from vstate.objects.canonical import MAX_DEPTH, decode, encode, plain

atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.binary(max_size=8)
)
plain_data = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain_data, st.randoms(use_true_random=False))
@settings(max_examples=60)
@pytest.mark.slow
def test_plain_data_round_trips(value: object, random) -> None:
    """Plain data comes back as it went in, and encodes the same again, in any order of its keys."""

    def shuffled(value: object) -> object:
        if isinstance(value, list):
            return [shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(item)) for key, item in value.items()]
        random.shuffle(items)
        return dict(items)

    data = encode(plain(value, "value"))
    assert decode(data) == value
    assert encode(decode(data)) == encode(plain(shuffled(value), "value")) == data


def test_tuples_become_lists() -> None:
    """A tuple is the list of its items."""
    assert plain((1, (2,)), "value") == [1, [2]]


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2**64, "info is an integer of more than 64 bits"),
        (-(2**63) - 1, "info is an integer of more than 64 bits"),
        ({"a": [0, {1}]}, "info['a'][1] is a builtins.set"),
        ({"a": {1: 2}}, "info['a'] has the key 1"),
        ({"a": {b"k": 2}}, "info['a'] has the key b'k'"),
        ([object()], "info[0] is a builtins.object"),
        (["a\ud800"], "info[0] holds a lone surrogate"),
        ({"\udfff": 1}, "info holds a lone surrogate"),
        ([1 + 2j], "info[0] is a builtins.complex"),
        ([bytearray()], "info[0] is a builtins.bytearray"),
        ([Text("x")], "info[0] is a "),
        ([datetime.date(2024, 1, 1)], "info[0] is a datetime.date"),
    ],
)
def test_refusals_name_the_place(value: object, said: str) -> None:
    """Anything but plain data is refused, with the path to it."""
    with pytest.raises(InvalidInput) as caught:
        plain(value, "info")
    assert str(caught.value).startswith(said)


def test_depth_is_limited() -> None:
    """Plain data may be nested 100 deep, and a list that holds itself is refused, not followed."""
    value: list = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert decode(encode(plain(value, "info"))) == value
    loop: list = []
    loop.append(loop)
    for deep in ([value], loop):
        with pytest.raises(InvalidInput, match="nested more than 100 deep"):
            plain(deep, "info")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x91", b"\xc0\xc0", b"\xc1", b"\xa1\xff", b"\xd9", b"\x81\x90\x01"]
    + [b"\x91" * depth + b"\xc0" for depth in (5000, 100_000)],
    ids=lambda data: repr(data[:4]),
)
def test_bytes_that_are_not_one_value_are_refused(data: bytes) -> None:
    """Truncated, doubled, malformed and bottomless msgpack raises ValueError."""
    with pytest.raises(ValueError):
        decode(data)
