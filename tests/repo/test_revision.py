"""Revisions: ids and their abbreviations, names, steps back; unknown and ambiguous ones."""

import pytest

from vstate import Memory, Versioned
from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import Commit
from vstate.repo import Repository


@pytest.fixture
def state() -> Versioned:
    """Commits c0 to c4 on main."""
    state = Versioned()
    for i in range(5):
        state["k"] = i
        state.commit(f"c{i}")
    return state


@pytest.mark.parametrize(
    ("rev", "message"),
    [
        ("HEAD", "c4"), ("HEAD~", "c3"), ("HEAD~0", "c4"), ("HEAD~4", "c0"), ("HEAD^", "c3"), ("HEAD^^", "c2"),
        ("HEAD^0", "c4"), ("HEAD~1^1~1", "c1"), ("main", "c4"), ("main~2", "c2"), ("heads/main^", "c3"), ("~1", "c3"),
    ],
)  # fmt: skip
def test_names_and_steps(state: Versioned, rev: str, message: str) -> None:
    """Names, each with ~n and ^n behind it, lead to commits."""
    assert next(state.log(rev)).message == message


def test_ids(state: Versioned) -> None:
    """An id works whole, from 4 digits on, in capitals, and with steps."""
    head = state.head
    assert head is not None
    for rev in (head.id, head.id[:4], head.id[:9].upper(), head.short, head):
        assert next(state.log(rev)) == head
    assert next(state.log(f"{head.id[:6]}~2")).message == "c2"
    assert next(state.log(head.oid)) == head


def test_second_parents() -> None:
    """^2 is the second parent of a merge commit, ^3 is not there."""
    store = Memory()
    a, b = Versioned(store), Versioned(store)
    a["a"] = 1
    a.commit("a")
    b["b"] = 1
    merged = b.commit("b")
    assert merged is not None
    assert next(b.log("HEAD^1")).message == "a"
    assert next(b.log("HEAD^2")).message == "b"
    with pytest.raises(NotFound, match="has 2 parents"):
        b.log("HEAD^3")


@pytest.mark.parametrize(
    "rev",
    [
        "HEAD~5",
        "HEAD~99999999999",
        "HEAD^2",
        "mian",
        "ffff",
        "0" * 64,
        "abc",
        "HEAD~-1",
        "heads/x",
        "main~x",
        "\0",
    ],
)
def test_unknown_revisions(state: Versioned, rev: str) -> None:
    """A revision that leads nowhere raises NotFound, or InvalidInput for no name at all."""
    with pytest.raises((NotFound, InvalidInput)):
        state.checkout(rev)


def test_unknown_names_come_with_close_ones(state: Versioned) -> None:
    """A misspelt name is answered with the close ones, a short id with the rule."""
    with pytest.raises(NotFound) as caught:
        state.checkout("mian")
    assert caught.value.candidates == ("main",)
    with pytest.raises(NotFound, match="at least 4 digits"):
        state.checkout(state.head.id[:3] if state.head else "")


def test_an_empty_revision(state: Versioned) -> None:
    """An empty revision is malformed."""
    with pytest.raises(InvalidInput):
        state.checkout("")


def test_a_revision_is_a_str() -> None:
    """Anything else than a str, a Commit or an id is a TypeError."""
    with pytest.raises(TypeError):
        Versioned().checkout(5)  # type: ignore[arg-type]


def test_head_before_the_first_commit() -> None:
    """HEAD of an empty branch is not found, and says which branch that is."""
    with pytest.raises(NotFound, match="no commit yet on branch 'main'"):
        Versioned().checkout("HEAD")


def test_a_branch_and_a_tag_of_one_name(state: Versioned) -> None:
    """A name of both a branch and a tag is ambiguous unless they agree; the long forms are not."""
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


def test_a_branch_whose_name_is_a_number(state: Versioned) -> None:
    """A branch goes before an abbreviated id of the same digits."""
    assert state.head is not None
    name = state.head.id[:5]
    state.create_branch(name, "HEAD~3")
    assert next(state.log(name)).message == "c1"
    assert next(state.log(state.head.id[:6])).message == "c4"


def test_an_ambiguous_abbreviation() -> None:
    """Digits that begin the ids of two commits are refused with both, and a longer form works."""
    store = Memory()
    repo = Repository(store)
    seen: dict[str, Commit] = {}
    pair: tuple[Commit, Commit] | None = None
    number = 0
    while pair is None:
        commit = repo.build_commit(None, (), message=f"m{number}")
        number += 1
        other = seen.setdefault(commit.id[:4], commit)
        if other is not commit:
            pair = (other, commit)
    for i, commit in enumerate(pair):
        assert repo.publish(f"b{i}", [commit], {}, [], expected=None, action="test")
    short = pair[0].id[:4]
    with pytest.raises(InvalidInput, match="ambiguous") as caught:
        repo.resolve(short)
    assert sorted(text.split()[1] for text in caught.value.candidates) == sorted(c.message for c in pair)
    for commit in pair:
        digits = next(n for n in range(5, 64) if pair[0].id[:n] != pair[1].id[:n])
        assert repo.resolve(commit.id[:digits]) == commit


def test_only_commits_have_revisions(state: Versioned) -> None:
    """The id of a tree or a blob is no revision."""
    assert state.head is not None
    for rev in (str(state.head.tree), str(state.head.tree)[:12]):
        with pytest.raises(NotFound):
            state.checkout(rev)
