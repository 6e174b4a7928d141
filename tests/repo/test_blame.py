"""Blame: keys, parts of values by path, and every element of a value, also through merges."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import pickle
from typing import Any

import msgpack
import numpy as np
import pydantic
import pytest
from bundle_files import save
from counting import Counting
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Commit, Memory, Versioned
from vstate.errors import InvalidInput, KeyNotFound, MergeConflict, NotFound
from vstate.objects import tree
from vstate.repo import Repository
from vstate.repo.compare.details import details
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import find_part, parts_of
from vstate.repo.search import blame as blame_module
from vstate.repo.search.blame import align
from vstate.values.entry import encode_value
from vstate.values.inert import read
from vstate.values.instance import Global, Instance


class Model(pydantic.BaseModel, extra="allow"):
    goal: str
    steps: list[int] = []
    _private: int = pydantic.PrivateAttr(default=3)


def put(repo: Repository, parents: list[Commit], number: int, **values: Any) -> Commit:
    """A commit numbered so, with the values as its only keys, on a branch of its own."""
    encoded = {key: encode_value(value) for key, value in values.items()}
    objects = {oid: new for each in encoded.values() for oid, new in each.objects.items()}
    entries = {key: each.entry for key, each in encoded.items()}
    root, more, nodes = tree.update(repo.objects.node, None, entries)
    commit = repo.build_commit(root, parents, message=str(number))
    assert repo.publish(f"b{number}", [commit], objects | more, nodes, expected=None, action="test")
    return commit


def messages(repo: Repository, rev: Commit | str, key: str = "k") -> list[str]:
    return [blamed.commit.message for blamed in repo.blame_items(rev, key)]


def by_path(state: Versioned, key: str) -> dict[str, str]:
    return {blamed.path: blamed.commit.message for blamed in state.repo.blame_items("HEAD", key)}


@pytest.fixture
def state() -> Versioned:
    """A conversation of five messages, of which one was edited and one put in first; and other keys."""
    state = Versioned()
    for number in range(4):
        state.setdefault("messages", []).append({"role": "user", "content": f"message {number}"})
        save(state, f"add {number}", count=number)
    state["messages"][2]["content"] = "edited"
    state.commit("edit 2")
    state["messages"].insert(0, {"role": "system", "content": "be kind"})
    state.commit("insert")
    save(state, "elsewhere", other=1)
    return state


def test_the_last_change_of_a_key(state: Versioned) -> None:
    """Without a path it is the commit that changed the key, whatever came after it."""
    assert state.blame("messages").message == "insert"
    assert state.blame("count").message == "add 3"
    assert state.blame("other") == state.head
    assert state.repo.blame("HEAD~3", "messages").message == "add 3"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("[0]", "insert"),
        ("[1]", "add 0"),
        ("[1].content", "add 0"),
        ("[2]", "add 1"),
        ("[3]", "edit 2"),
        ("[3].content", "edit 2"),
        ("[3].role", "add 2"),
        ("[4]", "add 3"),
        ("", "insert"),
    ],
)
def test_items_keep_their_commit_when_others_come_in_front(state: Versioned, path: str, message: str) -> None:
    """If a list grew, at its end or in front, the newest commit changed only the new items."""
    assert state.blame("messages", path).message == message
    for blamed in state.repo.blame_items("HEAD", "messages"):
        assert blamed.line is None
        assert blamed.path != path or blamed.commit.message == message


def test_entries_of_a_dict_and_lines_of_a_text() -> None:
    """Entries are told apart by key, and lines aligned; the last line is another once its end changes."""
    state = Versioned()
    save(state, "first", d={"a": 1, 2: "two", "odd key": [1]}, t="one\n" + "two\n" * 60 + "last")
    state["d"]["a"] = True
    save(state, "second", t="zero\n" + state["t"].replace("two\n", "2\n", 1) + "\n")
    assert by_path(state, "d") == {"a": "second", "[2]": "first", '["odd key"]': "first"}
    lines = state.repo.blame_items("HEAD", "t")
    assert [line.line for line in lines] == list(range(1, len(lines) + 1))
    assert [line.value for line in lines[:4]] == ["zero", "one", "2", "two"]
    assert messages(state.repo, "HEAD", "t")[:4] == ["second", "first", "second", "first"]
    assert (lines[-1].value, lines[-1].commit.message) == ("last", "second")
    assert {line.commit.message for line in lines[3:-1]} == {"first"}


@dataclasses.dataclass
class Plan:
    """An object of the program."""

    goal: str
    steps: list[str]


def test_objects_sets_and_values_without_parts() -> None:
    """The fields of an object, the members of a set; a number or an empty list is one element."""
    state = Versioned()
    state["plan"], state["set"], state["number"], state["empty"] = Plan("win", ["look"]), {1, "a"}, 5, []
    state.commit("first")
    state["plan"].steps.append("think")
    save(state, "second", set={1, "b"})
    assert by_path(state, "plan") == {"goal": "first", "steps": "second"}
    assert state.blame("plan", "steps[0]").message == "first"
    assert state.blame("plan", "steps[1]").message == "second"
    assert by_path(state, "set") == {"{1}": "first", "{'b'}": "second"}
    assert state.blame("set", "{'b'}").message == "second"
    assert by_path(state, "number") == by_path(state, "empty") == {"": "first"}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([[1, 2], (1, 2)], [1, 1]), ([[1, 2], [1, 3], [1, 2]], [0, 2]), ([[1], {1}], [1])],
    ids=["another type", "taken back", "a set"],
)
def test_a_value_that_came_back_or_has_another_type_is_new(values: list[Any], wanted: list[int]) -> None:
    """A part was last changed when it came back, or when the value around it became another one."""
    repo, commits = Repository(Memory()), list[Commit]()
    for number, value in enumerate(values):
        commits.append(put(repo, commits[-1:], number, k=value))
    assert messages(repo, commits[-1]) == [str(number) for number in wanted]
    if isinstance(values[-1], list | tuple):
        for index, number in enumerate(wanted):
            assert repo.blame(commits[-1], "k", f"[{index}]") == commits[number]


def test_a_merge_that_took_a_part_over_did_not_change_it() -> None:
    """Through a merge the blame goes to the side with the same value; a new value is the merge's."""
    repo = Repository(Memory())
    base = put(repo, [], 0, k={"a": 1, "b": 1, "c": 1})
    ours = put(repo, [base], 1, k={"a": 2, "b": 1, "c": 1})
    theirs = put(repo, [base], 2, k={"a": 1, "b": 2, "c": 1})
    merge = put(repo, [ours, theirs], 3, k={"a": 2, "b": 2, "c": 1, "d": 1})
    found = {blamed.path: blamed.commit.message for blamed in repo.blame_items(merge, "k")}
    assert found == {"a": "1", "b": "2", "c": "0", "d": "3"}
    for path, message in found.items():
        assert repo.blame(merge, "k", path).message == message
    assert repo.blame(merge, "k") == merge
    same = put(repo, [ours, theirs], 4, k={"a": 1, "b": 2, "c": 1})
    assert repo.blame(same, "k") == theirs


def test_the_commit_that_removed_a_key_is_named(state: Versioned) -> None:
    """A key that is gone raises KeyNotFound with the commit that removed it, one that never was without."""
    del state["count"]
    removing = state.commit("remove")
    assert removing is not None
    save(state, "more", x=1)
    with pytest.raises(KeyNotFound, match=f"no key 'count' at .*: {removing.short} removed it") as caught:
        state.blame("count")
    assert caught.value.key == "count"
    assert state.repo.blame(f"{removing.short}~1", "count").message == "add 3"
    with pytest.raises(KeyNotFound) as caught:
        state.blame("never")
    assert "removed" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("[9]", NotFound, r"no \[9\] in the value, which is a list of 5 items"),
        ("[3][0]", NotFound, r"no \[0\] in \[3\], which is a dict"),
        (3, TypeError, "path is a str, not int"),
        ("[3].contnet", NotFound, r"no \.contnet in \[3\], which is a dict; did you mean: \.content\?"),
        ("[3].content[0]", NotFound, "a text: a path ends there"),
        ("[-1]", NotFound, "list of 5 items"),
        ("[01]", NotFound, "list of 5 items"),
        ("x", NotFound, r"no \.x in the value"),
        ("[3", InvalidInput, "is no path"),
        ("[3]..role", InvalidInput, r"is no path at '\.\.role'"),
        ("[3] .role", InvalidInput, "is no path"),
        ("[3].", InvalidInput, "is no path"),
        ("a b", InvalidInput, "is no path"),
    ],
)
def test_paths_that_lead_nowhere(state: Versioned, path: str, error: type[Exception], message: str) -> None:
    """The error names the step that fails, and the kind of value there."""
    with pytest.raises(error, match=message):
        state.blame("messages", path)
    with pytest.raises(NotFound, match=r"no \.x in the value, which is an int without parts"):
        state.blame("count", "x")


def test_an_older_version_that_cannot_be_read_counts_as_different() -> None:
    """A pickle that makes no sense ends the walk, at the first commit that can be read."""
    repo = Repository(Memory())
    base = put(repo, [], 0, k=[1, 2])
    entry = encode_value([1, 2]).entry
    for number, data in ((1, entry.replace(b"K\x01", b"\xff\x01")), (2, entry)):
        root, objects, nodes = tree.update(repo.objects.node, None, {"k": data})
        commit = repo.build_commit(root, [base], message=str(number))
        assert repo.publish(f"b{number}", [commit], objects, nodes, expected=None, action="test")
        base = commit
    assert messages(repo, base) == ["2", "2"]
    assert repo.blame(base, "k", "[0]") == base


# --- any history


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Parents of each commit, and its items: each new item is a new number, and items keep their order."""
    parents: list[list[int]] = []
    values: list[list[int]] = []
    places: dict[int, int] = {}  # of each item, in one order for all commits
    for number in range(draw(st.integers(1, 10))):
        before = (
            sorted({draw(st.integers(0, number - 1)) for _ in range(draw(st.integers(1, 2)))})
            if number
            else []
        )
        items = {item for parent in before for item in values[parent]}
        items = {item for item in items if draw(st.integers(0, 5))}
        for _ in range(draw(st.integers(0, 3))):
            item = len(places)
            places[item] = draw(st.integers(0, 10**9))
            items.add(item)
        parents.append(before)
        values.append(sorted(items, key=lambda item: (places[item], item)))
    return parents, values


SHAPES = {
    "list": lambda items: [{"item": item, "text": "x" * (item % 3)} for item in items],
    "numbers": list,
    "tuple": tuple,
    "dict": lambda items: {f"k{item % 4}/{item}": item for item in items},
    "set": set,
    "text": lambda items: "".join(f"line {item}\n" for item in items),
}


@pytest.mark.slow
@settings(max_examples=100)
@given(histories(), st.sampled_from(sorted(SHAPES)))
def test_every_item_is_blamed_on_the_commit_that_made_it(
    history: tuple[list[list[int]], list[list[int]]], shape: str
) -> None:
    """In any history in which an item never comes twice, all at once and each by its path."""
    parents, values = history
    repo = Repository(Memory())
    commits: list[Commit] = []
    made: dict[int, int] = {}
    for number, (before, items) in enumerate(zip(parents, values, strict=True)):
        value = SHAPES[shape](items)
        deep = [0, {"in": value}] if number % 2 else ["first", 0, {"in": value}]
        commits.append(put(repo, [commits[p] for p in before], number, k=value, deep=deep))
        for item in items:
            made.setdefault(item, number)
    last = commits[-1]
    found = repo.blame_items(last, "k")
    if not values[-1]:
        assert [blamed.path for blamed in found] == [""]
        return
    wanted = [made[item] for item in (SHAPES["set"](values[-1]) if shape == "set" else values[-1])]
    assert sorted(int(blamed.commit.message) for blamed in found) == sorted(wanted)
    if shape != "set":
        assert [int(blamed.commit.message) for blamed in found] == wanted
    path = f"[{1 if len(values) % 2 == 0 else 2}].in"
    inside = repo.blame_items(last, "deep", path)
    assert [(each.commit, each.value, each.line) for each in inside] == [
        (each.commit, each.value, each.line) for each in found
    ]
    if shape != "text":
        for blamed in found:
            assert repo.blame(last, "k", blamed.path) == blamed.commit
        assert repo.blame(last, "deep", inside[0].path) == inside[0].commit


def test_long_lists_are_aligned() -> None:
    """Insertions and deletions in a long list are found, also where items repeat."""
    old = [number % 7 if number % 3 else number for number in range(30_000)]
    new = [-1, *old[:9_000], *old[9_003:], -2]
    assert align(old, new) == [None, *range(9_000), *range(9_003, 30_000), None]


# --- paths


def _objects() -> list[object]:
    when = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
    wrapped = Instance("decimal.Decimal", args=("1.5",))
    return [
        {
            "messages": [{"content": "a"}],
            "odd key": {"x": 1},
            7: 1,
            (1, 2): 2,
            None: 3,
            True: 4,
            "": 5,
            "7": 6,
        },
        {
            'quote "': 1,
            "back\\slash\\": 2,
            "new\nline": 3,
            "é": 4,
            "a.b": 5,
            "[x]": [6],
            "x" * 70: 7,
            "\x1b[1m": 8,
        },
        Instance(
            "app.P", {"a": 1, "b c": [2]}, args=(1, [2]), kwargs={"k": 1}, items=[1, {"z": 2}], state=(3, [4])
        ),
        Instance("app.E", {"f": 1}, entries={"e": [1], 2: 3}),
        {"price": wrapped, "when": when, b"raw": when},
        [[[1, (2, {3: {"deep": [4]}})]]],
        {1, "a", (2, "b"), frozenset({3})},
        {"class": Global("app.f", {"doc": "x", "line": [1]})},
        read(pickle.dumps({"array": np.arange(4), "list": [np.float64(1.5)]})),
    ]


def _everything(value: object, prints: Fingerprints, path: str = "") -> list[tuple[str, object]]:
    """All parts inside a value; not the only argument of an object, whose path is the object's."""
    found = [(path, value)]
    for part in parts_of(value, prints):
        inside = _everything(part.value, prints, path + part.step)
        found += inside if part.step else inside[1:]
    return found


@pytest.mark.parametrize("value", _objects(), ids=lambda value: type(value).__name__)
def test_every_printed_path_leads_back(value: object) -> None:
    """Whatever is inside a value is found by the steps that lead to it."""
    prints = Fingerprints()
    for path, part in _everything(value, prints)[1:]:
        trail = find_part(value, path.removeprefix("."), prints)
        assert prints.of(trail[-1].value) == prints.of(part)


KEYS = st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.none(), st.tuples(st.integers()))
VALUES = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


def test_paths_into_odd_values() -> None:
    """Keys that print alike are refused. A cycle is walked no further than the path says."""
    prints = Fingerprints()
    with pytest.raises(InvalidInput, match="several keys print as"):
        find_part({"x" * 70 + "a": 1, "x" * 70 + "b": 2}, f'["{"x" * 60}…"]', prints)
    value: dict[str, Any] = {"a": 1}
    value["self"] = value
    assert find_part(value, "self.self.self.a", prints)[-1].value == 1
    record = Instance("app.W")
    record.args = (record,)
    for odd, path in ((value, "self.self.b"), (record, "x.y")):
        with pytest.raises(NotFound):
            find_part(odd, path, prints)


# --- fingerprints


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0, None),
        (0, False),
        ({1: "x"}, {True: "x"}),
        ({1}, {1.0}),
        ("1", 1),
        (b"a", "a"),
        (b"a", bytearray(b"a")),
        ([1], (1,)),
        ({1}, frozenset({1})),
        (["ab", "c"], ["a", "bc"]),
        ([[1], 2], [[1, 2]]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ([], {}),
        (Instance("a.A"), Instance("a.B")),
        (Instance("a.A", called=True), Instance("a.A")),
        (Instance("a.A", {"x": 1}), Instance("a.A", kwargs={"x": 1})),
        (Instance("a.A", items=[]), Instance("a.A")),
        (Instance("a.A", items=[1]), Instance("a.A", args=(1,))),
        (Global("a.f"), Global("a.g")),
        (decimal.Decimal(1), decimal.Decimal(2)),
        (datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1)),
    ],
)
def test_different_values_have_different_fingerprints(one: object, other: object) -> None:
    """Also where Python's == sees no difference."""
    prints = Fingerprints()
    assert prints.of(one) != prints.of(other)
    assert prints.of([one]) != prints.of([other])


def test_fingerprints_of_values_that_are_gone() -> None:
    """A value that nobody else holds leaves its identity to no other one."""
    prints = Fingerprints()
    assert len({prints.of([number]) for number in range(100)}) == 100
    assert len({prints.of("x" * 2000 + str(number)) for number in range(100)}) == 100


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=5))
def test_a_list_that_grew_is_blamed_turn_by_turn(turns: list[list[object]]) -> None:
    """Each item belongs to the commit that appended it, however many a commit appends."""
    state = Versioned()
    state["k"] = []
    wanted = []
    for number, items in enumerate(turns):
        state["k"].extend(items)
        state.commit(str(number))
        wanted += [str(number)] * len(items)
    assert messages(state.repo, "HEAD") == wanted
    for index in (0, len(wanted) - 1):
        assert state.blame("k", f"[{index}]").message == wanted[index]


@pytest.mark.slow
def test_a_list_that_grew_by_many_items() -> None:
    """The pickle of a longer list begins with that of the shorter one. (pickle appends 1,000 at a time.)"""
    state, sizes = Versioned(), (1000, 1, 1001)
    state["k"] = []
    for number, size in enumerate(sizes):
        state["k"].extend({"n": n, "deep": [[n], (n, [n])]} for n in range(size))
        state.commit(str(number))
    assert messages(state.repo, "HEAD") == [str(number) for number in range(3) for _ in range(sizes[number])]
    assert state.blame("k", "[1000].deep[1]").message == "1"


def test_a_list_that_grew_is_read_once() -> None:
    """The versions of a long list share chunks and index nodes: the walk reads each of them once or twice."""
    counted = Counting(Memory())
    state = Versioned(counted)
    state["k"] = [f"{number} " * 20 for number in range(1000)]
    for number in range(50):
        state["k"].append(str(number))
        state.commit(str(number))
    counted.rows.clear()
    assert messages(Repository(counted), "HEAD")[1000:] == [str(number) for number in range(50)]
    assert counted.rows.most_common(1)[0][1] <= 2


def test_messages_that_versions_share() -> None:
    """A serialized list whose items are the same in each version is blamed item by item."""
    state, chat = Versioned(), [msgpack.ExtType(5, msgpack.packb(["m", "Human", {"content": "0"}]))]
    for number in range(40):
        save(state, str(number), k=("msgpack", msgpack.packb(chat)))
        chat.append(msgpack.ExtType(5, msgpack.packb(["m", "Human", {"content": str(number + 1)}])))
    assert messages(state.repo, "HEAD") == [str(number) for number in range(40)]


@pytest.mark.parametrize("path", ["", "p"])
def test_too_many_elements_are_not_blamed_one_by_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is refused as a table, and elements of too many parts are not compared.

    A version that had them counts as different; the other questions are answered.
    """
    monkeypatch.setattr(blame_module, "_MOST_ELEMENTS", 100)
    state = Versioned()
    for text, message in (("\n" * 101, "long"), ("\n", "short")):
        save(state, message, k={"p": text} if path else text, parts=[[0] * 60, [1] * 60])
    assert [each.commit.message for each in state.repo.blame_items("HEAD", "k", path)] == ["short"]
    with pytest.raises(InvalidInput, match="too many to blame"):
        state.repo.blame_items("HEAD~1", "k", path)
    monkeypatch.setattr(blame_module, "_MOST_PARTS", 100)
    with pytest.raises(InvalidInput, match="too large to compare"):
        state.repo.blame_items("HEAD", "parts")
    for key in ("k", "parts"):
        assert state.repo.blame("HEAD~1", key, "").message == "long"


def test_a_model_has_its_fields_everywhere() -> None:
    """Reading, diff, blame and merges name the fields of a model of pydantic, and no dict that holds them."""
    state = Versioned()
    state.set_policy("model", "deep")
    first = save(state, "first", model=Model(goal="a", more=1))
    assert state.inert("model").fields == {"goal": "a", "steps": [], "more": 1, "_private": 3}
    state["model"].steps.append(1)
    state["model"].more = 2
    state["model"]._private = 4
    second = state.commit("second")
    changes = {change.path: change.kind for change in state.diff(first, "HEAD").details("model")}
    assert changes == {"steps[0]": "added", "more": "modified", "_private": "modified"}
    blamed = {each.path: each.commit for each in state._handle.repo.blame_items("HEAD", "model")}
    assert blamed == {"goal": first, "steps": second, "more": second, "_private": second}
    assert state.blame("model", "goal") == first
    with state.fork("other", at=first) as other:
        other["model"].more = 3
        other.commit()
        with pytest.raises(MergeConflict) as caught:
            state.merge("other")
    assert "more" in str(caught.value)
    given = Model(goal="a", steps=[], more=1)
    assert given == Model(goal="a", more=1)
    assert details(read(pickle.dumps(Model(goal="a", more=1))), read(pickle.dumps(given))) == []


def test_long_columns_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long column of numbered rows is read as its array; one with labels, or many columns, are refused."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.setattr("vstate.repo.compare.paths._MOST_CELLS", 1_000)
    state = Versioned()
    frame = pandas.DataFrame({"a": np.zeros(2_000), "b": np.ones(2_000)})
    state["df"], state["series"] = frame, frame["a"].copy()
    state["labels"] = frame.set_index("b")
    state["wide"] = pandas.DataFrame(np.zeros((20, 100)), index=[f"row {i}" for i in range(20)])
    first = state.commit("first")
    state["df"].loc[1_500, "a"] = 5
    state["series"][1_500] = 5
    state["wide"].loc["row 3", 7] = 5
    second = state.commit("second")
    for key, path in (("df", "a[{}]"), ("series", "[{}]"), ("df", "rows[{}]")):
        assert [state.blame(key, path.format(row)) for row in (1_499, 1_500)] == [first, second]
    assert [state.blame("wide", f'[7]["row {row}"]') for row in (2, 3)] == [first, second]
    assert [each.commit for each in state.repo.blame_items("HEAD", "df")] == [second, first]
    for path in ("rows[1.0]", "a[1.0]"):
        with pytest.raises(InvalidInput, match="at most 1,000 cells"):
            state.blame("labels", path)
    with pytest.raises(InvalidInput, match="name one column by its path"):
        state.repo.blame_items("HEAD", "wide")
    with pytest.raises(NotFound, match=r"did you mean: \.a"):
        state.blame("df", "aa")
