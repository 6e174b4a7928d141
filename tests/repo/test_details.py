"""Details: the changes inside a value, by path."""

import datetime
import pickle
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate.repo.compare.details import details
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import part_at, parts_of
from vstate.values.arrays import Array
from vstate.values.inert import read
from vstate.values.instance import Global, Instance

nan = float("nan")


def _changes(old: object, new: object) -> list[tuple[str, str, object, object]]:
    return [(found.kind, found.path, found.old, found.new) for found in details(old, new)]


def _lines(old: object, new: object) -> list[str]:
    return [str(found) for found in details(old, new)]


def _two(**parts: Any) -> list[Instance]:
    """Two instances that share these parts."""
    return [Instance("a.A", **parts), Instance("a.A", **parts)]


UTC = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)

CHANGES: dict[str, tuple[object, object, list[str]]] = {
    "the value itself": ("a", "b", ["~ 'a' -> 'b'"]),
    "an identifier, an index": (
        {"messages": [{"content": "a"}]},
        {"messages": [{"content": "b"}]},
        ["~ messages[0].content: 'a' -> 'b'"],
    ),
    "other keys": (
        {"odd key": {"x": 1}, 7: 1},
        {"odd key": {"x": 2}, 7: 2},
        ['~ ["odd key"].x: 1 -> 2', "~ [7]: 1 -> 2"],
    ),
    "entries of one side": ({"a": 1, "b": 2}, {"b": 2, "c": None}, ["- a: 1", "+ c: None"]),
    "an item put in": (
        [{"id": n} for n in range(5)],
        [{"id": n} for n in (0, 1, 9, 2, 3, 4)],
        ["+ [2]: {'id': 9}"],
    ),
    "an item taken out": ([[n] for n in range(5)], [[n] for n in (0, 1, 3, 4)], ["- [2]: [2]"]),
    "members of a set": ({1, "a"}, {1, "b"}, ["- {'a'}: 'a'", "+ {'b'}: 'b'"]),
    "members by content": ({Instance("app.P", {"x": 1})}, {Instance("app.P", {"x": 1})}, []),
    "two keys of one content": (
        {Instance("a.A"): 1, Instance("a.A"): 2},
        {Instance("a.A"): 1, Instance("a.A"): 3},
        ["~ [a.A()]: 2 -> 3"],
    ),
    "keys by content": ({Instance("app.P"): 1}, {Instance("app.P"): 2}, ["~ [app.P()]: 1 -> 2"]),
    "all parts of a record": (
        Instance("app.P", {"a": 1, "b": 2}, args=(1, 2), items=[1], entries={"k": 1}, state=3),
        Instance("app.P", {"a": 1, "c": 2}, args=(1, 3), items=[1, 2], entries={"k": 2}, state=4),
        ["~ args[1]: 2 -> 3", "- b: 2", "+ c: 2", "+ [1]: 2", "~ k: 1 -> 2", "~ state: 3 -> 4"],
    ),
    "another class": (Instance("a.A"), Instance("a.B"), ["~ a.A() -> a.B()"]),
    "an only argument": (
        Instance("d.D", args=("1.5",)),
        Instance("d.D", args=("1.6",)),
        ["~ '1.5' -> '1.6'"],
    ),
    "no items and none": (Instance("a.A", items=None), Instance("a.A", items=[1]), ["+ [0]: 1"]),
    "no entries and none": (Instance("a.A", entries={1: 2}), Instance("a.A"), ["- [1]: 2"]),
    "items that two instances share": (
        _two(items=[1, 2]),
        _two(items=[1, 3]),
        ["~ [0][1]: 2 -> 3"],
    ),
    "an argument that two instances share": (
        _two(args=([1, 2], 1)),
        _two(args=([1, 3], 1)),
        ["~ [0].args[0][1]: 2 -> 3"],
    ),
    "one global": (Global("a.f"), Global("a.f"), []),
    "two globals": (Global("a.f"), Global("a.g"), ["~ <a.f> -> <a.g>"]),
    "control characters": ({"\x1b[2J": 1}, {"\x1b[2J": "\x1b[31m"}, ["~ [\"\\x1b[2J\"]: 1 -> '\\x1b[31m'"]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changes_are_told_by_path(case: str) -> None:
    """Identifiers stand behind a dot, indices and other keys in brackets; equal parts are left out."""
    old, new, lines = CHANGES[case]
    assert _lines(old, new) == lines


def test_the_moment_in_another_zone_is_another_value() -> None:
    """A datetime compares equal to that of another offset, and is a change all the same."""
    other = UTC.astimezone(datetime.timezone(datetime.timedelta(hours=1)))
    assert other == UTC
    assert len(details(UTC, other)) == 1


def test_edits_in_several_places_of_a_list() -> None:
    """Insertion, deletion and change are told apart, also within long lists."""
    old = [{"role": "user", "text": f"message {n}"} for n in range(3000)]
    new = [{**item} for item in old]
    new.append({"role": "user", "text": "last"})
    del new[2000]
    new[1000]["text"] = "changed"
    new.insert(0, {"role": "system", "text": "first"})
    assert _changes(old, new) == [
        ("added", "[0]", None, {"role": "system", "text": "first"}),
        ("modified", "[1001].text", "message 1000", "changed"),
        ("removed", "[2000]", {"role": "user", "text": "message 2000"}, None),
        ("added", "[3000]", None, {"role": "user", "text": "last"}),
    ]


def test_arrays_are_compared_by_element() -> None:
    """All elements are compared, not only those that are shown; dtype and shape by name."""
    array = np.arange(100_000.0).reshape(100, 1000)
    other = array.copy()
    other[50, 3] = other[99, 999] = -1
    old, new = read(pickle.dumps(array, 5)), read(pickle.dumps(other, 5))
    changes = details({"a": old}, {"a": new})
    assert [str(change) for change in changes] == [
        "~ a[50][3]: 50003.0 -> -1.0",
        "~ a[99][999]: 99999.0 -> -1.0",
    ]
    (found,) = details({"a": old}, {"a": read(pickle.dumps(array + 1, 5))})
    assert (found.path, found.note) == ("a", "100000 of 100000 elements differ")
    assert details(old, read(pickle.dumps(array.copy(), 4))) == []
    changes = details(read(pickle.dumps(np.zeros(3))), read(pickle.dumps(np.zeros(4, "f4"))))
    assert [found.path for found in changes] == ["dtype", "shape[0]", "data[3]"]


def test_rows_at_the_end_of_an_array_are_added_or_removed() -> None:
    """A longer array has more rows, and the rows before them are compared by element."""
    longer = np.arange(20).reshape(5, 4)
    shorter = longer[:3].copy()
    shorter[1, 2] = -1
    old, new = (read(pickle.dumps(array, 5)) for array in (longer, shorter))
    changed, rest = details({"a": old}, {"a": new})
    assert (changed.path, changed.kind, changed.old, changed.new) == ("a[1][2]", "modified", 6, -1)
    assert (rest.path, rest.kind, rest.new) == ("a[3:5]", "removed", None)
    _, rest = details({"a": new}, {"a": old})
    assert (rest.path, rest.kind, rest.old) == ("a[3:5]", "added", None)


LABELS: dict[str, list[Any]] = {
    "texts": ["a", "b", "c", "d"],
    "repeated": ["a", "b", "a", "d"],
    "all repeated": [3, 3, 3, 3],
    "equal in Python": [True, 1, 1.0, 2],
    "missing": [float("nan"), float("nan"), None, "x"],
    "long": ["x" * 200 + each for each in "abcd"],
    "odd": ["\0" * 30, "\0" * 31, "\0" * 32, -(10**80)],
    "levels": [("x", 1), ("x", 2), ("y", 1), ("y", 2)],
    "repeated levels": [("x", 1), ("x", 1), ("y", 1), ("y", 2)],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_each_path_into_a_table_finds_its_cell_and_row_again(labels: list[Any]) -> None:
    """Also where labels repeat: then a path has the number of the row."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    levels = isinstance(labels[0], tuple)
    index = pandas.MultiIndex.from_tuples(labels) if levels else pandas.Index(labels, dtype=object)
    frame = pandas.DataFrame({"a": range(4), "b": list("wxyz")}, index=index)
    changed = frame.copy()
    changed.iloc[[1, 2], 0] = [10, 20]
    found = 0
    for before, after in ((frame, changed), (frame, frame.iloc[:2]), (frame.iloc[1:], frame)):
        for whole in (lambda each: each, lambda each: each["a"]):
            old, new = (read(pickle.dumps(whole(each))) for each in (before, after))
            for change in details(old, new):
                if change.path == "rows" or "index" in change.path:
                    continue
                side, value = (old, change.old) if change.kind == "removed" else (new, change.new)
                assert part_at(side, change.path) == value, change.path
                found += 1
    assert found >= 8


@pytest.mark.parametrize("dtype", ["i8", "f4", "?", "c16", "M8[ns]", "S3", "O", "category", "string"])
def test_a_table_without_rows_is_compared(dtype: str) -> None:
    """Rows and the whole column came or went; its cells can be listed."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": pandas.Series(np.zeros(2)).astype(dtype)})
    for whole in (frame, frame["a"]):
        full, empty = read(pickle.dumps(whole)), read(pickle.dumps(whole[:0]))
        for old, new, kind in ((full, empty, "removed"), (empty, full, "added")):
            assert [(found.path, found.kind) for found in details(old, new)] == [
                ("rows[0]", kind),
                ("rows[1]", kind),
            ]
        assert details(empty, read(pickle.dumps(whole[:0]))) == []
        assert [part.group for part in parts_of(empty, Fingerprints())] in (["columns"], ["fields"])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["u1", "<i2", ">f4", "f8", "c16", "S3", "V17", "S100"]),
    st.binary(min_size=1, max_size=400),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 255)), max_size=6),
)
@pytest.mark.slow
def test_elements_that_differ_are_counted(code: str, raw: bytes, edits: list[tuple[int, int]]) -> None:
    """As many as differ in their bytes, whatever their size."""
    size = np.dtype(code).itemsize
    old = bytearray(raw * (300 * size))
    new = old.copy()
    for at, more in edits:
        new[at % len(new)] ^= more
    count = sum(old[at : at + size] != new[at : at + size] for at in range(0, len(old), size))
    arrays = [read(pickle.dumps(np.frombuffer(data, code))) for data in (old, new)]
    found = 0
    for detail in details(*arrays):
        if ":" not in detail.path:
            at = int(detail.path.strip("[]"))
            assert old[at * size : (at + 1) * size] != new[at * size : (at + 1) * size]
            found += 1
        else:
            assert detail.note.endswith(f" of {len(old) // size} elements differ")
            found += int(detail.note.split()[0])
    assert found == count


def test_a_long_path_is_cut_at_its_beginning() -> None:
    """Its last steps tell one change from the others."""
    old: Any = 1
    new: Any = 2
    for n in range(1000):
        old, new = {f"step{n}": old}, {f"step{n}": new}
    (found,) = details(old, new)
    assert found.path.startswith("…")
    assert found.path.endswith(".step2.step1.step0")
    assert len(found.path) <= 501
    (found,) = details({"k" * 600 + "é": 1}, {"k" * 600 + "é": 2})
    assert found.path.startswith('["kkk')


@pytest.mark.slow
def test_what_is_too_large_to_compare_is_one_change() -> None:
    """When the work is spent, the rest counts as too large, not as equal."""
    part = [b"x" * 4_000_000]
    old, new = part * 2_000, [bytes(bytearray(part[0]))] * 2_000
    (found,) = details(old, new)
    assert found.note == "too large to compare further"
    keys = [{(n, n, "x"): n for n in range(200_000)} for _ in range(2)]
    (found,) = details(*keys)
    assert (found.path, found.note) == ("", "too large to compare further")


def test_long_texts_are_shown_where_they_differ() -> None:
    """The common beginning is left out, so that the two sides look different."""
    (line,) = _lines({"t": "same " * 100 + "old end"}, {"t": "same " * 100 + "new end"})
    assert "old end" in line
    assert "new end" in line
    assert len(line) < 160


def test_limit_bounds_the_number() -> None:
    """At most `limit` details, the first ones."""
    old, new = list(range(5000)), [-n for n in range(1, 5001)]
    assert len(details(old, new)) == 1000
    assert [found.path for found in details(old, new, limit=2)] == ["[0]", "[1]"]
    assert details(old, new, limit=0) == []


def _laughs(depth: int, leaf: Any) -> Any:
    value = [leaf]
    for _ in range(depth):
        value = [value, value]
    return value


def _chain(depth: int, leaf: Any) -> Any:
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


def _ring(size: int) -> Any:
    first: list[Any] = [0]
    last = first
    for n in range(1, size):
        last.append([n])
        last = last[-1]
    last.append(first)
    return first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        (_laughs(60, 1), _laughs(60, 1), 0),
        (_laughs(60, 1), _laughs(60, 2), 1),
        (_chain(9000, 1), _chain(9000, 2), 1),
        (_ring(5), _ring(5), 0),
        (_ring(7), _ring(7), 0),
        (["x"] * 50_000, ["x", "y"] * 50_000, 1000),
        ([str(n) for n in range(20_000)], [str(-n) for n in range(20_000)], 1000),
    ],
)
def test_cycles_sharing_and_size_are_bounded(old: Any, new: Any, count: int) -> None:
    """Values that a naive walk never leaves, and the worst ones for aligning, end soon."""
    start = time.process_time()
    assert len(details(old, new)) == count
    assert time.process_time() - start < 6


@pytest.mark.slow
def test_a_long_part_in_many_places_costs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long text, number or buffer in many places is hashed once, or the comparison ends."""
    monkeypatch.setattr("vstate.repo.compare.details._MOST_WORK", 1_000_000)
    start = time.process_time()
    for one, other in [("x" * 1_000_000, "y" * 1_000_000), (1 << 2_000_000, 3 << 2_000_000)]:
        assert len(details([1, [one] * 100_000, 3], [[other] * 100_000, 2, 4, 5])) == 4
    arrays = []
    for raw in (bytes(10_000_000), b"x" * 10_000_000):
        fields = {"dtype": "u1", "shape": (len(raw),)}
        arrays.append([Array("numpy.ndarray", fields, raw=memoryview(raw), itemsize=1) for _ in range(2000)])
    assert details(*arrays)[-1].note == "too large to compare further"
    assert time.process_time() - start < 5


def test_cycles_of_different_length_differ() -> None:
    """Two rings are compared until they first come back to where they were."""
    assert details(_ring(3), _ring(4)) != []


_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.floats(), st.text("ab", max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner),
        st.dictionaries(st.one_of(st.text("abc", max_size=1), st.integers(0, 2)), inner, max_size=4),
        st.sets(st.integers(0, 4), max_size=3),
    ),
    max_leaves=15,
)


@settings(max_examples=80, deadline=None)
@given(_values, _values)
@pytest.mark.slow
def test_details_are_empty_exactly_for_equal_values(old: Any, new: Any) -> None:
    """Nothing is found between copies, something between values that pickle says differ, both ways."""
    assert details(old, pickle.loads(pickle.dumps(old))) == []
    assert details(old, _backwards(old)) == []
    same = _typed(old) == _typed(new)
    assert (details(old, new) == []) == same
    assert (details(new, old) == []) == same
    for found in details(old, new):
        assert str(found)


def _backwards(value: Any) -> Any:
    """A copy with the entries of each dict in the other order."""
    if isinstance(value, dict):
        return {key: _backwards(item) for key, item in reversed(value.items())}
    return type(value)(map(_backwards, value)) if isinstance(value, list | tuple) else value


def _typed(value: Any) -> Any:
    """An independent form that equals only that of equal values of equal types."""
    if isinstance(value, list | tuple):
        return (type(value), [_typed(item) for item in value])
    if isinstance(value, dict):
        return (dict, sorted((repr(key), repr(_typed(item))) for key, item in value.items()))
    if isinstance(value, set):
        return (set, sorted(map(repr, value)))
    return repr(0.0 if value == 0 and isinstance(value, float) else value)
