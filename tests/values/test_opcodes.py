"""Taking the frames out of a pickle, and putting one back."""

import io
import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate.values.opcodes import frameless, may_hold, pickle_file

_FRAME_TARGET = 64 * 1024

_sizes = st.integers(_FRAME_TARGET - 300, _FRAME_TARGET + 300)
_large = _sizes.flatmap(
    lambda size: st.sampled_from(
        [b"\x95" * size, bytearray(b"\x95" * size), "x" * size, "é" * (size // 2), "\x95" * (size // 2)]
    )
)
_atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0x95, 0x9595, 0x95959595, -0x6B, 2**2000]),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.binary().map(bytearray),
    st.integers(0, 300).map(lambda size: b"\x95" * size),
)
_values = st.recursive(
    st.one_of(_atoms, _atoms, _atoms, _large),
    lambda inner: st.one_of(
        st.lists(inner, max_size=8),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.frozensets(st.integers(), max_size=5),
    ),
    max_leaves=25,
)


def _python_dumps(value: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    pickle._Pickler(file, protocol).dump(value)
    return file.getvalue()


def _opcodes(data: bytes) -> list[tuple[str, Any]]:
    return [(op.name, arg) for op, arg, _ in pickletools.genops(data) if op.name != "FRAME"]


def _has_frames(data: bytes) -> bool:
    return any(op.name == "FRAME" for op, _, _ in pickletools.genops(data))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(_values, st.sampled_from([4, 5]), st.booleans())
def test_frameless_changes_nothing_but_the_frames(value: Any, protocol: int, in_python: bool) -> None:
    """The same value, the same opcodes and no frames, from both of CPython's picklers; idempotent."""
    data = _python_dumps(value, protocol) if in_python else pickle.dumps(value, protocol)
    bare = frameless(data)
    assert pickle.loads(bare) == value
    assert _opcodes(bare) == _opcodes(data)
    assert not _has_frames(bare)
    assert frameless(bare) == bare
    assert pickle.load(pickle_file(bare)) == value
    assert frameless(pickle_file(bare).read()) == bare


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
def test_protocols_without_frames_stay_as_they_are(protocol: int) -> None:
    """Before protocol 4 there are no frames, and both functions return their argument."""
    data = pickle.dumps({"a": [1, 2, b"\x95" * 300]}, protocol)
    assert frameless(data) is data
    assert pickle_file(data).read() == data


@given(st.binary(max_size=60).map(lambda tail: b"\x80\x05" + tail))
def test_what_is_no_pickle_comes_back(data: bytes) -> None:
    """Nothing raises, and the result is never longer."""
    assert len(frameless(data)) <= len(data)


EMPTY_SET, ALL_BYTES = 0x8F, bytes(range(256)) * 400


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (bytearray(ALL_BYTES), False),
        ({"image": ALL_BYTES, "text": "\u064f" * 100_000}, False),
        ({"image": ALL_BYTES, "seen": {1}}, True),
        ([*range(1_000), ALL_BYTES], True),  # not read so far
    ],
)
def test_bytes_inside_long_data_are_no_opcodes(value: Any, found: bool) -> None:
    """A long pickle without sets is known to have none, with any bytes in its texts and binary data."""
    data = frameless(pickle.dumps(value, protocol=5))
    assert EMPTY_SET in data
    assert may_hold(data, EMPTY_SET) is found
    assert may_hold(data[:-1] + b"\xff" + bytes([EMPTY_SET]), EMPTY_SET)  # \xff is no opcode
