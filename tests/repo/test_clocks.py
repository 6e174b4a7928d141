"""Clocks that are wrong: dates are as the clocks said, and the order of a history does not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from vstate import CorruptObject, InvalidInput, Memory, Versioned
from vstate.objects.commit import LATEST, Commit
from vstate.objects.ids import ObjectId
from vstate.objects.segment import Segment, encode_segment
from vstate.repo import Repository
from vstate.repo.rules.signing import SigningKey, check
from vstate.repo.search.selection import select

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
YEAR = timedelta(days=365)

At = Callable[[timedelta], None]


@pytest.fixture
def at() -> Iterator[At]:
    """Sets all clocks of this process to a time, given as its distance from NOW."""
    traveller: list[time_machine.travel] = []

    def go(distance: timedelta) -> None:
        if traveller:
            traveller.pop().stop()
        traveller.append(time_machine.travel(NOW + distance))
        traveller[0].start()

    go(timedelta())
    yield go
    traveller.pop().stop()


def commit(store: Memory, n: int) -> Commit:
    """A commit by a new process, so to speak: no clock of an older handle is remembered."""
    with Versioned(store) as state:
        state["n"] = n
        made = state.commit(str(n))
    assert made is not None
    return made


@pytest.fixture
def history(at: At) -> Memory:
    """Three commits, an hour apart. The clock of the first one is a year ahead."""
    store = Memory()
    for n in range(3):
        at(YEAR if n == 0 else timedelta(hours=n))
        commit(store, n)
    return store


def test_dates_are_as_the_clocks_said(history: Memory) -> None:
    """A clock that is ahead dates its own commit only, in the log, the reflog and a clone; order stays."""
    repo = Repository(history)
    log = list(repo.log())
    hours = [round((made.time - NOW).total_seconds() / 3600) for made in log]
    assert [made.message for made in log] == ["2", "1", "0"]
    assert hours == [2, 1, 365 * 24]
    assert all(older.order < newer.order for newer, older in pairwise(log))
    lines = list(repo.refs.reflog("heads/main"))
    assert all(
        abs(line.time - made.time) < timedelta(seconds=1) for line, made in zip(lines, log, strict=True)
    )
    assert [line.new for line in lines] == [made.oid for made in log]
    other = Repository(Memory())
    repo.push(other.store)
    assert [made.time for made in other.log("main")] == [made.time for made in log]


@pytest.mark.parametrize(
    ("where", "message"),
    [("now", "2"), ("90 minutes ago", "1"), ("2027-12-01", "2"), ("0 s ago", "2"), ("1", "1"), ("2", "0")],
)
def test_revisions_by_date(history: Memory, at: At, where: str, message: str) -> None:
    """`main@{now}` is the position now, and earlier times go back along the reflog."""
    at(timedelta(hours=2, minutes=45))
    assert Versioned(history).checkout(f"main@{{{where}}}").commit.message == message


@pytest.mark.parametrize("words", [["--since", "2026-11-25 13:30Z"], ["--until", "2026-11-25 13:30Z"]])
def test_a_log_by_date(history: Memory, words: list[str]) -> None:
    """`log --since` and `--until` go by the dates that the clocks said."""
    option = {words[0].removeprefix("--"): words[1]}
    shown = [made.message for made, is_shown in select(Repository(history), [], **option).walk() if is_shown]
    assert shown == (["2", "0"] if "since" in option else ["1"])


def test_fsck_tells(history: Memory, at: At) -> None:
    """fsck counts the commits whose place is in the future; they are no damage."""
    at(timedelta(hours=3))
    report = Repository(history).fsck()
    assert (report.ok, report.ahead) == (True, 3)
    assert "3 commits after a clock that was ahead" in str(report)
    at(2 * YEAR)
    assert Repository(history).fsck().ahead == 0


HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("clocks", "now", "age", "left"),
    [
        ([0 * HOUR, 1 * HOUR, 2 * HOUR], 3 * HOUR, 2.5 * HOUR, "21"),
        ([0 * HOUR, 1 * HOUR, 2 * HOUR], 3 * HOUR, "1s", "2"),
        ([YEAR, 1 * HOUR, 2 * HOUR], 40 * DAY, "30d", "2"),  # ahead: nobody is held up
        ([0 * HOUR, 1 * HOUR, -56 * YEAR, 3 * HOUR], 4 * HOUR, "2d", "3210"),  # behind: nothing gets old
        ([0 * DAY, 1 * DAY, 2 * DAY, 3 * DAY, -5 * YEAR], 4 * DAY, "30d", "43210"),
        ([0 * DAY, 1 * DAY, 2 * DAY, 3 * DAY, -5 * YEAR, -5 * YEAR], 4 * DAY, "30d", "543210"),
    ],
)
def test_what_is_old_by_any_clock(
    clocks: list[timedelta], now: timedelta, age: str | timedelta, left: str, at: At
) -> None:
    """`keep_since` keeps the commits of that time, and the newest one however old it is. A wrong clock dates
    its own commit only.
    """
    store = Memory()
    for n, clock in enumerate(clocks):
        at(clock)
        commit(store, n)
    at(now)
    repo = Repository(store)
    if -5 * YEAR in clocks:
        assert Versioned(store).checkout("main@{50 hours ago}").commit.message == "1"
    repo.gc(branch="main", keep_since=age, keep_reflog="2d", grace="0")
    assert [made.message for made in Repository(store).log()] == list(left)
    if len(left) == len(clocks) == 4:
        assert len(list(repo.refs.reflog("heads/main"))) == 4


@pytest.mark.slow
@given(clocks=st.lists(st.integers(-3, 3).map(lambda n: timedelta(seconds=n / 2)), min_size=1, max_size=12))
def test_any_clocks(clocks: list[timedelta]) -> None:
    """Whatever the clocks say, the log is in order, each date is right to a second, and merges find bases."""
    store = Memory()
    made = []
    for n, clock in enumerate(clocks):
        with time_machine.travel(NOW + clock * 10 ** n.bit_length(), tick=False):
            made.append(commit(store, n))
            assert abs((made[-1].time - datetime.now(UTC)).total_seconds()) <= 1
    repo = Repository(store)
    assert list(repo.log()) == made[::-1]
    assert repo.merge_base(made[0].id, made[-1].id) == made[0]
    assert repo.fsck().ok
    for n in range(len(made)):
        assert repo.resolve(f"main@{{{n}}}") == made[-1 - n]


def test_nothing_is_kept_without_days(history: Memory, at: At) -> None:
    """`gc --keep-reflog 0` drops the lines behind a clock that was ahead, too."""
    at(timedelta(hours=3))
    repo = Repository(history)
    Versioned(history).reset("HEAD~1")
    assert repo.gc(keep_reflog="0", grace="0").removed
    assert list(repo.refs.reflog("heads/main")) == []


@pytest.mark.parametrize("clock", [-5 * YEAR, timedelta(hours=9), YEAR, 2 * YEAR])
@pytest.mark.parametrize("ahead", [False, True])
def test_moves_by_other_clocks(clock: timedelta, ahead: bool, at: At) -> None:
    """After a reset, a commit and a merge by any clocks, undo and `main@{1}` go back move by move."""
    store = Memory()
    moves = []
    for n in range(4):
        at(YEAR if ahead and n == 2 else timedelta(hours=n))
        moves.append(commit(store, n))
    at(clock)
    state = Versioned(store)
    moves.append(state.reset("HEAD~2"))
    at(timedelta(hours=10))
    moves.append(commit(store, 9))
    at(clock)
    repo = Repository(store)
    repo.create_branch("side")
    side = repo.commit("side", set={"n": 10})
    assert side is not None
    repo.merge("main", "side")
    moves.append(side)
    at(timedelta(hours=11))
    for steps, made in enumerate(reversed(moves)):
        assert Versioned(store).checkout(f"main@{{{steps}}}").commit == made
    for made in moves[-2::-1]:
        with Versioned(store) as again:
            assert again.undo() == made


def test_an_order_out_of_range_is_refused(at: At) -> None:
    """A commit of the year 2600, or of a forged order, is refused: no commit could come after it."""
    store = Memory()
    made = commit(store, 0)
    for order in (LATEST + 1, 2**64 // 1000 + 1):
        forged = Commit(made.root, (made.oid,), NOW, "forged", order=order)
        copy = Memory()
        copy.set_many(dict(store.items()))
        copy.set(f"o/{forged.id}", b"c" + forged.body)
        copy.set("r/heads/main", forged.id.encode())
        with pytest.raises(CorruptObject):
            Repository(copy).push(Memory())
    at(datetime(2600, 1, 1, tzinfo=UTC) - NOW)
    with pytest.raises(InvalidInput, match="2600"):
        commit(store, 1)


def test_a_clock_in_the_bytes() -> None:
    """Only a clock that differs is stored; it is signed too, fits into a segment, and has one spelling."""
    plain = Commit(None, (), NOW)
    skewed = Commit(None, (), NOW, order=plain.order + 5_000_000)
    signed = SigningKey.generate().sign(skewed)
    assert len(skewed.body) == len(plain.body) + 9
    for made in (plain, skewed, signed):
        again = Commit.decode(made.oid, made.body)
        assert (again.time, again.order, again.signature) == (NOW, made.order, made.signature)
    assert check(signed) == "good"
    _, row = encode_segment([skewed, signed])
    assert [Segment(row).commit(place) for place in range(2)] == [skewed, signed]
    for clock in (skewed.order, skewed.order + 1):
        body = skewed.body[:-9] + b"\xcf" + clock.to_bytes(8)
        with pytest.raises(ValueError, match="clock"):
            Commit.decode(ObjectId(bytes(32)), body)
