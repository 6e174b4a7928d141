"""Revisions: ids, abbreviations, names, steps back, the reflog; unknown and ambiguous ones."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import count, pairwise
from types import SimpleNamespace

import pytest
from bundle_files import save
from graphs import built

from vstate import Memory, Versioned
from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import Commit
from vstate.repo import Repository, core
from vstate.repo.names import dates, refs


@pytest.fixture
def state() -> Versioned:
    """Commits c0 to c4 on main."""
    state = Versioned()
    for i in range(5):
        save(state, f"c{i}", k=i)
    return state


@pytest.mark.parametrize(
    ("rev", "message"),
    [
        ("HEAD", "c4"), ("HEAD~", "c3"), ("HEAD~0", "c4"), ("HEAD~4", "c0"), ("HEAD^", "c3"),
        ("HEAD^^", "c2"),
        ("HEAD^0", "c4"), ("HEAD~1^1~1", "c1"), ("main", "c4"), ("main~2", "c2"), ("heads/main^", "c3"),
        ("~1", "c3"),
    ],
)  # fmt: skip
def test_names_and_steps(state: Versioned, rev: str, message: str) -> None:
    """Names, each followed by ~n and ^n, lead to commits."""
    assert next(state.log(rev)).message == message


def test_ids(state: Versioned) -> None:
    """An id works in full, from 4 digits on, in capitals, and with steps."""
    head = state.head
    assert head is not None
    for rev in (head.id, head.id[:4], head.id[:9].upper(), head.short, head):
        assert next(state.log(rev)) == head
    assert next(state.log(f"{head.id[:6]}~2")).message == "c2"
    assert next(state.log(head.oid)) == head


def test_second_parents() -> None:
    """^2 is the second parent of a merge commit, and ^3 does not exist."""
    repo, _ = built([[], [0], [0], [1, 2]])
    assert [repo.resolve(f"b3^{n}").message for n in (1, 2)] == ["1", "2"]
    with pytest.raises(NotFound, match="has 2 parents"):
        repo.resolve("b3^3")


@pytest.mark.parametrize(
    ("rev", "candidates"),
    [
        *((rev, ()) for rev in ("", "\0", "0" * 64, "HEAD~5", "HEAD~99999999999", "HEAD^2", "ffff", "abc")),
        *((rev, ()) for rev in ("HEAD~-1", "heads/x", "main~x")),
        ("mian", ("main",)),
    ],
)
def test_unknown_revisions(state: Versioned, rev: str, candidates: tuple[str, ...]) -> None:
    """A revision that names no commit raises NotFound, or InvalidInput if malformed; with close names."""
    with pytest.raises((NotFound, InvalidInput)) as caught:
        state.checkout(rev)
    assert set(caught.value.candidates) >= set(candidates)
    assert ("at least 4 digits" in str(caught.value)) is (rev == "abc")
    with pytest.raises(TypeError):
        state.checkout(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("rev", ["HEAD", "main", "HEAD~1"])
def test_other_branches_of_a_store_without_a_commit_on_head(rev: str) -> None:
    """An adapter leaves main empty: the error names branches that have commits."""
    repo = Repository(Memory())
    repo.commit("threads/tea", set={"a": 1})
    with pytest.raises(NotFound, match="no commit yet on branch 'main'; the store has 1 branch, such as thr"):
        repo.resolve(rev)
    with pytest.raises(NotFound, match="no commit yet on branch 'main'"):
        repo.branch("main")


def test_a_branch_and_a_tag_of_one_name(state: Versioned) -> None:
    """A name of a branch and a tag is ambiguous unless both name one commit; full names are not."""
    state.create_branch("both", "HEAD~1")
    state.tag("both", "HEAD~1")
    assert next(state.log("both")).message == "c3"
    state.delete_tag("both")
    state.tag("both", "HEAD~2")
    with pytest.raises(InvalidInput) as caught:
        state.checkout("both")
    assert caught.value.candidates == ("heads/both", "tags/both")
    assert next(state.log("heads/both")).message == "c3"
    assert next(state.log("tags/both")).message == "c2"


@pytest.mark.parametrize("kind", ["heads", "tags"])
def test_a_name_that_a_remotes_branch_has_too(state: Versioned, kind: str) -> None:
    """A local and a tracking branch of one name are ambiguous, unless at one commit; full names are not."""
    refs, at = state.repo.refs, {made.message: made.oid for made in state.log()}

    def move(ref: str, *messages: str | None) -> None:
        for before, after in pairwise(messages):
            old, new = (None if message is None else at[message] for message in (before, after))
            assert refs.compare_and_swap(ref, expected=old, new=new, action="test")

    move("remotes/origin/main", None, "c0", "c3")
    move(f"{kind}/origin/main", None, "c1", "c3")
    assert state.checkout("origin/main").commit.message == "c3"
    move(f"{kind}/origin/main", "c3", "c2")
    with pytest.raises(InvalidInput, match=r"'origin/main' is both a .* and a branch of a remote") as caught:
        state.checkout("origin/main~1")
    assert caught.value.candidates == (f"{kind}/origin/main", "remotes/origin/main")
    assert state.checkout(f"{kind}/origin/main").commit.message == "c2"
    assert state.checkout("remotes/origin/main").commit.message == "c3"
    assert state.checkout("remotes/origin/main@{1}").commit.message == "c0"
    if kind == "heads":
        move(
            "heads/remotes/origin/main", None, "c1", "c2"
        )  # branches named like the full name of another ref
        move("remotes/heads/origin/main", None, "c1", "c0")
        assert state.checkout("remotes/origin/main@{1}").commit.message == "c0"
        assert state.checkout("heads/origin/main@{1}").commit.message == "c3"
        with pytest.raises(InvalidInput, match="is both") as caught:
            state.checkout("origin/main@{1}")
        assert caught.value.candidates == ("heads/origin/main", "remotes/origin/main")
        state.switch("origin/main")
        assert state.head is not None
        assert state.head.message == "c2"
        assert state.checkout("@{1}").commit.message == "c3"


def test_a_branch_whose_name_is_a_number(state: Versioned) -> None:
    """A branch takes precedence over an abbreviated id of the same digits."""
    assert state.head is not None
    name = state.head.id[:5]
    state.create_branch(name, "HEAD~3")
    assert next(state.log(name)).message == "c1"
    assert next(state.log(state.head.id[:6])).message == "c4"


def test_an_ambiguous_abbreviation() -> None:
    """Digits that begin two ids are refused with both; more digits work."""
    repo = Repository(Memory())
    seen: dict[str, Commit] = {}
    for number in count():
        commit = repo.build_commit(None, (), message=f"m{number}")
        other = seen.setdefault(commit.id[:4], commit)
        if other is not commit:
            break
    pair = (other, commit)
    for i, commit in enumerate(pair):
        assert repo.publish(f"b{i}", [commit], {}, [], expected=None, action="test")
    with pytest.raises(InvalidInput, match="ambiguous") as caught:
        repo.resolve(pair[0].id[:4])
    assert sorted(text.split()[1] for text in caught.value.candidates) == sorted(c.message for c in pair)
    digits = next(n for n in range(5, 64) if pair[0].id[:n] != pair[1].id[:n])
    for commit in pair:
        assert repo.resolve(commit.id[:digits]) == commit


# By the reflog


class Clock(datetime):
    """A clock that the test sets."""

    moment = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]  # datetime's gives Self
        return cls.moment if tz is None else cls.moment.astimezone(tz)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Versioned]:
    """A commit each hour from 9:00 to 12:00 UTC, and a reset to the first at 13:00; now it is 14:30."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for module in (core, dates):
        monkeypatch.setattr(module, "datetime", Clock)
    fixed = SimpleNamespace(time_ns=lambda: int(Clock.moment.timestamp()) * 10**9)
    monkeypatch.setattr(refs, "time", fixed)
    state = Versioned()
    for number in range(4):
        monkeypatch.setattr(Clock, "moment", datetime(2026, 11, 20, 9 + number, tzinfo=UTC))
        save(state, f"c{number}", k=number)
    monkeypatch.setattr(Clock, "moment", datetime(2026, 11, 20, 13, tzinfo=UTC))
    state.reset("HEAD~3")
    monkeypatch.setattr(Clock, "moment", datetime(2026, 11, 20, 14, 30, tzinfo=UTC))
    yield state
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("rev", "message"),
    [
        ("main@{0}", "c0"), ("main@{1}", "c3"), ("main@{2}", "c2"), ("main@{4}", "c0"),
        ("heads/main@{1}", "c3"),
        ("@{1}", "c3"), ("HEAD@{1}", "c3"), ("HEAD@{0}", "c0"), ("@{ 1 }", "c3"),
        ("main@{1}~1", "c2"), ("main@{1}^^", "c1"), ("main@{1}~1^0~1", "c1"),
        ("main@{2026-11-20 10:00}", "c1"), ("main@{2026-11-20T10:00:00Z}", "c1"),
        ("main@{2026-11-20 12:59}", "c3"),
        ("main@{2026-11-20 13:00+01:00}", "c3"), ("main@{now}", "c0"), ("main@{2 hours ago}", "c3"),
        ("main@{2h}", "c3"),
        ("@{3 hours ago}", "c2"), ("HEAD@{4.5h ago}~1", "c0"), ("main@{2099-01-01}", "c0"),
    ],
)  # fmt: skip
def test_where_a_branch_was(timed: Versioned, rev: str, message: str) -> None:
    """A number of moves ago, or at a time, by the reflog; steps after it go back from there."""
    assert timed.checkout(rev).commit.message == message
    assert timed.repo.resolve(rev).message == message


@pytest.mark.parametrize(
    ("rev", "error", "what"),
    [
        ("main@{5}", NotFound, "main was nowhere before 'commit: c0'"),
        ("main@{6}", NotFound, "its reflog has 5 moves of main, since 2026-11-20 09:00:00"),
        ("main@{999999999}", NotFound, "its reflog has 5 moves"),
        ("main@{yesterday}", NotFound, r"main goes back to 2026-11-20 09:00:00 \+0000"),
        ("main@{1}~9", NotFound, "is the first commit"),
        ("mian@{1}", NotFound, r"no branch 'mian'; did you mean: main\?"),
        ("main@{", InvalidInput, r"one move ago, or main@\{2026-11-20 10:00\}"),
        ("main@{}", InvalidInput, "one move ago"),
        ("main@{1}x", InvalidInput, "one move ago"),
        ("main@{1}@{1}", InvalidInput, "one move ago"),
        ("main~1@{1}", NotFound, "no branch 'main~1'"),
        ("main@{~1}", InvalidInput, "'~1' is not a time: write 2026-11-20"),
        ("main@{-1}", InvalidInput, "'-1' is not a time"),
        ("main@{some day}", InvalidInput, "'some day' is not a time"),
        ("v1@{1}", InvalidInput, "'v1' is a tag, which does not move"),
    ],
)
def test_positions_that_do_not_exist(timed: Versioned, rev: str, error: type[Exception], what: str) -> None:
    """The error gives the start of the reflog, or shows the syntax."""
    timed.tag("v1")
    with pytest.raises(error, match=what):
        timed.checkout(rev)


def test_before_the_reflog_begins_the_commits_say_when(timed: Versioned) -> None:
    """Before the reflog begins, or without one, first parents decide."""
    timed.create_branch("young", "main@{1}")
    assert timed.checkout("young@{2026-11-20 10:30}").commit.message == "c1"
    assert timed.checkout("young@{1h}").commit.message == "c3"
    for key in list(timed.store.keys("reflog/")):
        timed.store.delete(key)
    assert timed.checkout("young@{2026-11-20 11:00}").commit.message == "c2"
    assert timed.checkout("young@{0}").commit.message == "c3"
    with pytest.raises(NotFound, match="no move of young is on record"):
        timed.checkout("young@{1}")
    with pytest.raises(NotFound, match="young goes back to 2026-11-20 09:00:00"):
        timed.checkout("young@{2026-11-20 08:59:59}")


def test_a_branch_that_was_deleted(timed: Versioned) -> None:
    """The reflog of a deleted branch gives its commits, so the branch can be created again."""
    timed.create_branch("gone", "main@{2}")
    timed.delete_branch("gone")
    assert timed.checkout("gone@{1}").commit.message == "c2"
    for rev in ("gone@{0}", "gone@{now}"):
        with pytest.raises(NotFound, match="gone was nowhere after 'branch: deleted'"):
            timed.checkout(rev)
    assert timed.create_branch("gone", "gone@{1}").message == "c2"


def test_head_that_is_detached_has_a_reflog_of_its_own(timed: Versioned) -> None:
    """HEAD@{1} is about the branch that HEAD is on, or about a detached HEAD itself."""
    repo = timed.repo
    repo.checkout("main@{2}")
    repo.checkout("main@{1}")
    assert repo.resolve("HEAD@{0}").message == "c3"
    assert repo.resolve("HEAD@{1}").message == repo.resolve("@{1}").message == "c2"
    repo.checkout("main")
    assert repo.resolve("HEAD@{1}").message == "c3"
    # A handle stays where it is when the HEAD of the store moves.
    repo.checkout("main@{2}")
    assert timed.checkout("HEAD@{1}").commit.message == "c3"


def test_a_position_that_gc_removed(timed: Versioned) -> None:
    """A reflog line may name a commit that gc removed: the error says so, and it is no damage."""
    third = timed.checkout("main@{1}").commit
    timed.store.delete(f"o/{third.id}")
    with pytest.raises(NotFound, match=f"{third.short}, where main was, is gone: gc has removed it"):
        Repository(timed.store).resolve("main@{1}")
