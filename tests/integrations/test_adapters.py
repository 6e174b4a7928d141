"""What all adapters have in common: deletions that last, ids of any length, texts of any kind, copies."""

from __future__ import annotations

import copy
import enum
import pickle
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest
from adapters import ADAPTERS, Adapter
from clock import standing_still
from running import Fork
from stored import stored_bytes

from vstate import Disk, InvalidInput, Keep, Memory
from vstate.integrations.opening import AsyncOpened, Opened, OpenedModel
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo.clone import clone
from vstate.repo.repository import Repository
from vstate.repo.rules.keeps import find_rule
from vstate.repo.upkeep import beside
from vstate.state.snapshot import Snapshot
from vstate.testing import Faulty

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module", params=ADAPTERS, ids=lambda each: each.__name__)
def kind(request: pytest.FixtureRequest) -> Callable[[], Adapter]:
    """A row of the table. One import, for all of its tests, finds out that its framework is not installed."""
    request.param()
    return request.param


@pytest.fixture
def adapter(kind: Callable[[], Adapter]) -> Adapter:
    return kind()


def late(adapter: Adapter, write: Callable[[], None]) -> None:
    """A write that is refused, or that begins anew."""
    if not adapter.refuses:
        write()
        return
    with pytest.raises(Exception, match=r"\w") as refused:
        write()
    assert type(refused.value).__name__ in adapter.refuses


def evicted(adapter: Adapter, handle: Any) -> Any:
    """The handle, which has no journal of the id in memory any more."""
    if isinstance(handle, Opened | AsyncOpened) and hasattr(handle, "_journals"):
        handle._journals._most = 1
        adapter.write(handle, "bob", ["other"], 0)
    return handle


@pytest.mark.parametrize("keep_history", [True, False], ids=["kept", "forgotten"])
@pytest.mark.parametrize("case", ["another", "the same", "evicted", "trimmed"])
@pytest.mark.parametrize("again", [False, True], ids=["absent", "begun anew"])
def test_a_late_write_brings_no_deleted_text_back(
    adapter: Adapter, case: str, again: bool, keep_history: bool
) -> None:
    """A run that knows a deleted text writes on: the text stays deleted, also if the id begins anew first.

    The same or another handle deletes it. The run may have lost its cache, or find no reflog.
    """
    if adapter.replaces:
        pytest.skip("a write has what the program gives, and nothing else")
    store = Memory()
    first, second = adapter.open(store), adapter.open(store)
    handle = first if case == "the same" else second
    adapter.write(first, "ann", ["pin 1234"], 0)
    adapter.write(first, "ann", ["pin 1234", "two"], 1)
    assert "pin 1234" in str(adapter.read(second, "ann"))
    if case == "evicted":
        first = evicted(adapter, first)
    adapter.delete(handle, "ann", keep_history)
    if again:
        assert not adapter.read(handle, "ann")
        adapter.write(handle, "ann", ["new"], 0)
    if case == "trimmed":
        Repository(store).gc(keep_reflog="0s", grace="0s")
    if not again or case != "the same" or adapter.follows:
        late(adapter, lambda: adapter.write(first, "ann", ["pin 1234", "two", "late"], 2))
    for each in (first, second):
        found = str(adapter.read(each, "ann"))
        assert "pin 1234" not in found
        assert ("new" in found) == again
    if not again:
        adapter.write(first, "ann", ["new"], 0)
        assert "new" in str(adapter.read(second, "ann"))


@pytest.mark.parametrize("squashes", [False, True], ids=["trimmed", "squashed"])
def test_a_write_is_taken_where_nothing_was_deleted(adapter: Adapter, squashes: bool) -> None:
    """Another program writes, squashes the history and drops the reflog: the run goes on."""
    if squashes and "StaleSessionError" in adapter.refuses:
        pytest.skip("a squash is a change of another writer there")
    store = Memory()
    first, second = adapter.open(store), adapter.open(store)
    adapter.write(first, "ann", ["one"], 0)
    assert "one" in str(adapter.read(second, "ann"))
    adapter.write(second, "ann", ["one", "two"], 1)
    repo = Repository(store)
    for branch in repo.branch_names() if squashes else ():
        repo.squash(branch)
    repo.gc(keep_reflog="0s", grace="0s")
    adapter.write(first, "ann", ["one", "two", "three"], 2)
    assert "three" in str(adapter.read(second, "ann"))


@pytest.mark.parametrize("call", ["newest", "branches"])
def test_a_read_beside_a_deletion_finds_nothing(
    adapter: Adapter, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process deletes the branch after a reader, or a list, has its newest commit."""
    store = Memory()
    adapter.write(adapter.open(store), "ann", ["one"], 0)
    reader = adapter.open(store)
    repo = (reader if isinstance(reader, Opened | AsyncOpened) else reader("ann")).repo
    find = getattr(repo, call)

    def late(*arguments: Any) -> Any:
        found = find(*arguments)
        other = Repository(store)
        for branch in other.branch_names():
            other.delete_branch(branch, forget=True)
        return found

    monkeypatch.setattr(repo, call, late)
    if call == "newest":
        assert not adapter.read(reader, "ann")
    else:
        assert adapter.ids(reader) in (None, [], ["ann"])


def test_a_branch_that_is_back_by_the_reflog_is_listed_again(adapter: Adapter) -> None:
    """It has lost its labels, and the next write of a program that reads it sets them again.

    A run that knew the branch before goes on, too.
    """
    if {*adapter.refuses} & {"ConversationConflict", "StaleSessionError"}:
        pytest.skip("each write names the state of its branch")
    id, store = "x" * 300, Memory()
    first, repo = adapter.open(store), Repository(store)
    adapter.write(first, id, ["one"], 0)
    (branch,) = repo.branch_names()
    adapter.delete(adapter.open(store), id, True)
    if branch in repo.branch_names():
        pytest.skip("it deletes a part of a branch")
    repo.create_branch(branch, f"{branch}@{{1}}")
    new = adapter.open(store)
    assert "one" in str(adapter.read(new, id))
    for number, handle in enumerate((new, first), 1):
        adapter.write(handle, id, ["one", "two", "three"][: number + 1], number)
        listed = adapter.ids(handle)
        assert listed is None or {*listed} == {id}


def test_what_a_deletion_leaves_and_for_how_long(adapter: Adapter) -> None:
    """It leaves nothing. With `keep_history`, gc keeps it as long as the reflog has lines about it."""
    store = Memory()
    handle, repo = adapter.open(store), Repository(store)
    for keep_history in (False, True):
        adapter.write(handle, "ann", ["first"], 0)
        adapter.write(handle, "ann", ["first", "pin 1234"], 1)
        (branch,) = repo.branch_names()
        adapter.delete(handle, "ann", keep_history)
        if branch in repo.branch_names():
            return  # it deletes a part of a branch, whose history keeps it
        if keep_history:
            repo.gc(grace="0s")
            kept = [Snapshot(repo, repo.resolve(f"{branch}@{{{back}}}")) for back in (1, 2)]
            assert "pin 1234" in str([{key: found[key] for key in found} for found in kept])
            repo.gc(keep_reflog="0s", grace="0s")
        assert not list(repo.view.keys(OBJECT_PREFIX))
        assert not adapter.read(handle, "ann")


def test_keep_is_the_rule_of_all_branches(adapter: Adapter) -> None:
    """It lies in the store as `repo.keep` sets it. Opening without it, or with the same, writes nothing.

    An age is `idle`, and a Keep without limits removes the rule.
    """
    store = Faulty(Memory())
    repo = Repository(store)
    for keep, rule in (("30d", Keep(idle="30d")), (Keep(since="7d", last=3), Keep(since="7d", last=3))):
        handle = adapter.open(store, keep=keep)
        for id in ("ann", "x" * 300):
            adapter.write(handle, id, [f"{rule} {id}"], 0)
        names = repo.branch_names()
        assert len(names) == 2
        assert {find_rule(repo.keeps(), name) for name in names} == {rule}
        before, calls = {*store.items()}, len(store.calls)
        for options in ({}, {"keep": rule}):
            again = adapter.open(store, **options)
            assert "ann" in str(adapter.read(again, "ann"))
        assert {*store.items()} == before
        assert "compare_and_swap" not in store.calls[calls:]
        for name in names:
            repo.delete_branch(name)
    adapter.read(adapter.open(store, keep=Keep()), "ann")
    assert repo.keeps() == {}


@pytest.mark.parametrize("by", ["gc", "the adapter itself"])
def test_an_idle_one_goes_and_begins_anew(adapter: Adapter, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader finds nothing, and the next run begins with its own texts, whatever the adapter remembers."""
    monkeypatch.setattr(beside, "_SHARE", 1.0)
    with standing_still() as time:
        store = Memory()
        handle, repo = adapter.open(store, keep="30d"), Repository(store)
        for number in (0, 1):
            adapter.write(handle, "ann", ["pin 1234", "two"][: number + 1], number)
        time.pass_(29 * 86_400)
        repo.gc()
        assert "two" in str(adapter.read(handle, "ann"))
        time.pass_(2 * 86_400)
        if by == "gc":
            repo.gc()
        texts: list[str] = []
        while by != "gc" and (not texts or len(repo.branch_names()) > 1):
            assert len(texts) < 500
            texts.append(f"text {len(texts)}")
            adapter.write(handle, "ben", texts, len(texts) - 1)
        assert not adapter.read(handle, "ann")
        adapter.write(handle, "ann", ["new"], 0)
        assert "pin 1234" not in str(adapter.read(handle, "ann"))
        assert "new" in str(adapter.read(adapter.open(store), "ann"))
    assert repo.fsck().ok


def test_a_thinned_history_has_the_newest_texts_and_goes_on(adapter: Adapter) -> None:
    """What the newest commit holds does not depend on the commits that went; also in a copy of the store."""
    with standing_still() as time:
        store = Memory()
        handle, repo = adapter.open(store, keep=Keep(last=2, hourly=2)), Repository(store)
        id = "x" * 300  # which only a label of the branch has
        texts: list[str] = []
        for number in range(9):
            time.pass_(1200)
            texts.append(f"text {number}")
            adapter.write(handle, id, texts, number)
            if number in (4, 6):
                repo.gc(keep_reflog="0s", grace="0s")
        repo.gc(keep_reflog="0s", grace="0s")
        (branch,) = repo.branch_names()
        assert 2 <= len([*repo.log(branch)]) <= 4
        assert repo.fsck().ok
        clone(store, copied := Memory())
        for each in (handle, adapter.open(store), adapter.open(copied)):
            found = str(adapter.read(each, id))
            assert all(text in found for text in texts)
            assert {*(adapter.ids(each) or [id])} == {id}


IDS = {
    "odd": ["a", "a/b", "a%2Fb", "a%2fb", "a/main", "%", "é x", "HEAD", "main"],
    **{
        str(length): [f"29:1-Xq9k/{'é' * 9}{'x' * (length - 20)}{end}" for end in ("x", "y")]
        for length in (201, 900)
    },
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_any_id_is_taken(adapter: Adapter, ids: list[str]) -> None:
    """Each id has a branch of its own, whatever its length. A list has the ids as they are."""
    store = Memory()
    handle = adapter.open(store)
    for number, id in enumerate(ids):
        adapter.write(handle, id, [f"text {number}"], 0)
        adapter.write(handle, id, [f"text {number}", f"more {number}"], 1)
    listed = adapter.ids(handle)
    assert listed is None or {*listed} == {*ids}
    for gone in (0, 1):
        for number, id in enumerate(ids[gone:], gone):
            assert "".join(map(str, adapter.read(handle, id))).endswith(f"more {number}")
        adapter.delete(handle, ids[gone], False)
        assert not adapter.read(handle, ids[gone])
        if not Repository(store).branch_names():
            break  # the deletion of this adapter is one of all branches


def test_texts_that_stay_are_stored_once(adapter: Adapter, tmp_path: Path) -> None:
    """A run that writes all of its texts at each step takes little more room than its texts."""
    if not adapter.once:
        pytest.skip("it stores a part of the state once that does not change")
    texts: list[str] = []
    random = Random(1)  # other texts have other chunks, which take some 15 KB more or less
    with Disk(tmp_path / "s", durability="process") as store:
        handle = adapter.open(store)
        for number in range(30):
            texts.append(random.randbytes(2000).hex())
            adapter.write(handle, "ann", texts, number)
    assert stored_bytes(tmp_path / "s") < 230_000  # a copy for each step takes 930 KB


def test_an_id_that_no_label_takes_is_refused(adapter: Adapter) -> None:
    """The error says how long an id may be."""
    if adapter.replaces:
        pytest.skip("it shortens long keys")
    with pytest.raises(InvalidInput, match="1,024"):
        adapter.write(adapter.open(Memory()), "x" * 1100, ["text"], 0)


def test_half_a_surrogate_pair_is_stored(adapter: Adapter) -> None:
    """A text that UTF-8 cannot encode comes back as it is, and the message of its commit can be stored."""
    handle = adapter.open(Memory())
    for number, text in enumerate(["cut \ud83d", "\udc00 at the begin", "é" * 79 + "\ud83d\ude00" * 9]):
        adapter.write(handle, f"ann {number}", [text], 0)
        assert adapter.read(handle, f"ann {number}") == [adapter.given_back(text)]


@pytest.mark.slow
def test_a_killed_process_loses_no_acknowledged_text(adapter: Adapter, tmp_path: Path) -> None:
    """After SIGKILL each acknowledged text is there, whole and in order, and at most one more."""
    if "write" not in vars(type(adapter)):
        pytest.skip("it writes as another one of the table")

    def write() -> None:
        warnings.simplefilter("ignore")
        handle, texts = adapter.open(tmp_path), list[str]()
        for number in count():
            texts.append(f"{number} " + "a" * (number * 97 % 3000))
            adapter.write(handle, "ann", texts, number)
            print(number, flush=True)

    with Fork(write) as process:
        printed = process.killed_after(4)
    found = adapter.read(adapter.open(tmp_path), "ann")
    assert found == [f"{number} " + "a" * (number * 97 % 3000) for number in range(len(found))]
    assert int(printed[-1]) + 1 <= len(found) <= int(printed[-1]) + 2
    assert Repository(Disk(tmp_path)).fsck().ok


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda handle: pickle.loads(pickle.dumps(handle)),
    "model_copy": lambda handle: handle.model_copy(deep=True),
    "model_dump": lambda handle: type(handle).model_validate(handle.model_dump()),
    "model_dump_json": lambda handle: type(handle).model_validate_json(handle.model_dump_json()),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_opens_the_store_again(adapter: Adapter, way: str, tmp_path: Path) -> None:
    """A copy of an adapter on a path reads the stored threads and adds to them; few can be pickled."""
    handle = adapter.open(tmp_path / "s")
    adapter.write(handle, "ann", ["one"], 0)
    one = handle if isinstance(handle, Opened | AsyncOpened) else handle("ann")
    if ("model" in way or way == "pickle") and not isinstance(one, OpenedModel):
        pytest.skip("it is no model of pydantic")
    copied = COPIES[way]
    again = copied(handle) if one is handle else adapter.same(copied(one))
    assert "one" in str(adapter.read(again, "ann"))
    if not adapter.follows:
        adapter.write(again, "ann", ["one", "two"], 1)
        assert "two" in str(adapter.read(handle, "ann"))


def test_a_copy_that_could_not_find_its_store_is_refused(adapter: Adapter) -> None:
    """An adapter in memory, and one on a URL, which may hold a password, have no pickle."""
    for store in (None, "memory:"):
        handle = adapter.open(store)
        one = handle if isinstance(handle, Opened | AsyncOpened) else handle("ann")
        # A part of the framework's own may be refused first.
        with pytest.raises((TypeError, AttributeError), match=r"path|ext_hook|RLock"):
            pickle.dumps(one)


class Level(enum.Enum):
    LOW = "low"


class Text(enum.StrEnum):
    SHORT = "short"


def cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


VALUES: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"abc",
    "other bytes": lambda: b"%PDF\xff\xfe",
    "tuple": lambda: (1, ("two",)),
    "tuple keys": lambda: {(1, 2): "a"},
    "int keys": lambda: {1: "a", "1": "b"},
    "set": lambda: {"a", 2},
    "decimal": lambda: Decimal("1.10"),
    "datetime": lambda: datetime(2026, 1, 2, 3, tzinfo=UTC),
    "timedelta": lambda: timedelta(days=2, microseconds=3),
    "enum": lambda: Level.LOW,
    "text enum": lambda: Text.SHORT,
    "nan": lambda: float("nan"),
    "big": lambda: 2**70,
    "surrogates": lambda: "\ud83d\ude00",
    "counter": lambda: Counter("aab"),
    "default": lambda: defaultdict(list, a=[1]),
    "ordered": lambda: OrderedDict(b=1, a=2),
    "bytearray": lambda: bytearray(b"abc"),
    "view": lambda: memoryview(b"abc"),
    "deque": lambda: deque([1]),
    "numpy": lambda: numpy.arange(3),
    "object": lambda: Fraction(1, 3),
    "cycle": cycle,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_equal_or_is_refused(adapter: Adapter, value: Callable[[], Any]) -> None:
    """No value comes back as another one; the error has the path to it, unless a framework made the error."""
    if not adapter.exact:
        pytest.skip("it stores the JSON of its framework")
    handle, given = adapter.open(Memory()), {"inside": [0, value()]}
    refused = None
    try:
        adapter.write(handle, "ann", [given], 0)
    except (TypeError, ValueError, RecursionError) as error:
        refused = str(error)
    if refused is None:
        (found,) = adapter.read(handle, "ann")
        assert repr(found) == repr(given) or found == given
    else:
        assert "inside" in refused or "recursion" in refused
        assert not adapter.read(handle, "ann")
