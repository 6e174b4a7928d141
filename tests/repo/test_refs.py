"""Refs: their names, HEAD, branches, tags, and the log of their moves."""

from itertools import count

import pytest
from bundle_files import save
from hypothesis import given
from hypothesis import strategies as st

from vstate import Memory, Versioned
from vstate.errors import (
    AlreadyExists,
    CorruptStore,
    InvalidInput,
    NotFound,
    RefMoved,
    StoreUnavailable,
    UnsupportedFormat,
)
from vstate.objects.ids import ObjectId
from vstate.repo import Repository
from vstate.repo.core import STAMP
from vstate.repo.names.refs import Refs, check_ref_name, quote_ref, unquote_ref
from vstate.testing import Faulty

A, B, C = (ObjectId(bytes([i]) * 32) for i in (1, 2, 3))


@given(st.text(st.sampled_from("aA/.-@{}~^%:lockHEAD \n\0é\U0001f600"), max_size=12) | st.text(max_size=60))
def test_every_text_has_a_name_of_its_own(text: str) -> None:
    name = quote_ref(text)
    assert check_ref_name(name) == name
    assert unquote_ref(name) == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "%"),
        ("HEAD", "%48EAD"),
        ("a b", "a%20b"),
        ("..", "%2E%2E"),
        ("50%", "50%25"),
        ("x.lock", "x%2Elock"),
    ],
)
def test_texts_that_are_no_names_are_quoted_by_their_bytes(text: str, name: str) -> None:
    assert quote_ref(text) == name


def test_texts_that_are_not_quoted() -> None:
    """One text has one name: others are refused, and so are texts that no name can hold."""
    for name in ("a%2a", "%48", "%FF", "a%"):
        with pytest.raises(InvalidInput):
            unquote_ref(name)
    for text in ("x" * 201, "\ud800"):
        with pytest.raises(InvalidInput):
            quote_ref(text)


@pytest.mark.parametrize(
    "name",
    [
        "main", "a/b", "feature/x.y", "a@b", "é", "\U0001f600", "a.lock.b", "x-", "1", "a{b", "HEADS", "a/@",
        "#", "a,b", "@a", "x" * 200,
    ],
)  # fmt: skip
def test_names_that_git_takes(name: str) -> None:
    """Names that git check-ref-format accepts for a branch are valid, and stay as they are when quoted."""
    assert check_ref_name(name) == name == quote_ref(name)


RULES = {
    "is not empty": [""],
    "has no space in it": ["a b"],
    "has none of ~ ^ : ? * [ \\ in it": ["a~b", "a^", "a:b", "a?b", "a*", "a[b", "a\\b"],
    "has no '..' in it": ["a..b"],
    "has no '/' at its beginning or end": ["/a", "a/"],
    "has no '//' in it": ["a//b"],
    "has no part that begins with '.'": [".a", "a/.b"],
    "does not end in '.'": ["a.", "a/b."],
    "has no part that ends in '.lock'": ["a.lock", "a.lock/b"],
    "is not '@' or 'HEAD'": ["@", "HEAD"],
    "has no '@{' in it": ["a@{b"],
    "does not begin with '-'": ["-a"],
    "has no control character in it": ["a\x00", "a\n", "a\x7f", "a\t"],
    "has no half of a surrogate pair in it": ["\ud800"],
}


@pytest.mark.parametrize(("rule", "name"), [(rule, name) for rule, names in RULES.items() for name in names])
def test_names_that_git_refuses(rule: str, name: str) -> None:
    """Names that git check-ref-format refuses are refused everywhere, with the one rule that they break."""
    with pytest.raises(InvalidInput) as refused:
        check_ref_name(name)
    assert str(refused.value) == (
        f"{name!r} is not a branch name: as in git, a name {rule}; quote_ref(text) makes a name of any text"
    )
    state = Versioned()
    save(state, k=1)
    for act in (state.create_branch, state.fork, state.tag, lambda n: state.switch(n, create=True)):
        with pytest.raises(InvalidInput):
            act(name)
    with pytest.raises(InvalidInput):
        Versioned(branch=name)
    assert list(state.branches()) == ["main"]
    assert state.branch == "main"


def test_names_that_are_too_long_or_no_text() -> None:
    """The error gives the limit, and shows only the start of the name."""
    with pytest.raises(InvalidInput, match="it has 3,000 characters, and 200 are the most") as caught:
        check_ref_name("x" * 3000)
    assert len(str(caught.value)) < 200
    with pytest.raises(TypeError):
        check_ref_name(b"main")  # type: ignore[arg-type]


def test_compare_and_swap_and_reflog() -> None:
    """A ref moves only from its expected commit, and each move leaves a line, newest first."""
    refs = Refs(Memory())
    assert refs.compare_and_swap("heads/x", expected=None, new=A, action="one")
    assert not refs.compare_and_swap("heads/x", expected=None, new=B, action="lost")
    assert not refs.compare_and_swap("heads/x", expected=B, new=C, action="lost")
    assert refs.compare_and_swap("heads/x", expected=A, new=B, action="two")
    assert refs.compare_and_swap("heads/x", expected=B, new=None, action="three")
    assert refs.read("heads/x") is None
    log = list(refs.reflog("heads/x"))
    assert [(line.old, line.new, line.action) for line in log] == [
        (B, None, "three"),
        (A, B, "two"),
        (None, A, "one"),
    ]
    assert all(line.time.utcoffset() is not None for line in log)


def test_the_reflog_of_a_name_is_its_own() -> None:
    """The log of "a" contains no line of "a/b" or "ab"."""
    refs = Refs(Memory())
    for name in ("a", "a/b", "ab"):
        refs.compare_and_swap(f"heads/{name}", expected=None, new=A, action=name)
    assert [line.action for line in refs.reflog("heads/a")] == ["a"]


@pytest.mark.parametrize(
    ("key", "row", "error", "message"),
    [
        ("r/heads/main", b"nonsense", CorruptStore, "heads/main"),
        ("format", b"next", CorruptStore, "format"),
        ("format", b"", CorruptStore, "format"),
        ("format", b"\xff", CorruptStore, "format"),
        ("format", b"1", UnsupportedFormat, "before the first release"),
        ("format", b"5", UnsupportedFormat, "before the first release"),
        ("format", b"vstate 2", UnsupportedFormat, "upgrade"),
        ("format", b"vstate 99", UnsupportedFormat, "upgrade"),
        ("format", b"vstate 01", CorruptStore, "format"),
        ("format", b"vstate " + b"9" * 5000, CorruptStore, "format"),
        ("format", b"vstate 1\n", CorruptStore, "format"),
    ],
)
def test_stores_that_are_damaged_or_of_another_format(
    key: str, row: bytes, error: type[Exception], message: str
) -> None:
    """Damage leads to no advice to upgrade. The program of an older format exports its store."""
    store = Memory()
    store.set(key, row)
    with pytest.raises(error, match=message):
        Versioned(store)


def test_a_store_says_its_format_from_the_first_commit_on() -> None:
    """A program of another format then refuses it, whatever it holds."""
    state = Versioned()
    assert state.store.get("format") is None
    save(state, k=1)
    assert state.store.get("format") == STAMP


def make() -> tuple[Versioned, Repository]:
    state = Versioned()
    for i in range(3):
        save(state, f"c{i}", k=i)
    return state, state.repo


def test_branches() -> None:
    """Branches are created, listed, renamed, moved and deleted, and each error gives its reason."""
    state, repo = make()
    state.create_branch("b", "HEAD~1")
    assert {name: commit.message for name, commit in state.branches().items()} == {"b": "c1", "main": "c2"}
    with pytest.raises(AlreadyExists) as exists:
        state.create_branch("b")
    assert exists.value.name == "b"
    with pytest.raises(NotFound) as missing:
        repo.branch("c")
    assert missing.value.candidates == ()
    assert repo.move_branch("b", "main").message == "c2"
    repo.rename_branch("b", "d")
    assert list(state.branches()) == ["d", "main"]
    with pytest.raises(AlreadyExists):
        repo.rename_branch("d", "main")
    with pytest.raises(InvalidInput):
        state.delete_branch("main")
    state.delete_branch("d")
    assert list(state.branches()) == ["main"]
    assert next(line.action for line in repo.refs.reflog("heads/d")) == "branch: deleted"


def test_tags() -> None:
    """A tag names a commit for good."""
    state, _ = make()
    assert state.tag("v1", "HEAD~2").message == "c0"
    with pytest.raises(AlreadyExists):
        state.tag("v1")
    assert state.checkout("v1")["k"] == 0
    assert list(state.tags()) == ["v1"]
    assert state.delete_tag("v1").message == "c0"
    with pytest.raises(NotFound):
        state.delete_tag("v1")


def test_head_moves_to_branches_and_commits() -> None:
    """checkout puts HEAD on a branch by name, and detaches it for any other revision."""
    state, repo = make()
    state.create_branch("b", "HEAD~1")
    assert repo.checkout("b").branch == "b"
    head = repo.checkout("HEAD~1")
    assert head.branch is None
    assert repo.objects.commit(head.commit).message == "c0"  # type: ignore[arg-type]
    assert repo.checkout("main").branch == "main"
    with pytest.raises(NotFound):
        repo.checkout("nowhere")
    assert [line.action[:9] for line in repo.refs.reflog("HEAD")] == ["checkout:"] * 3


def test_opening_writes_nothing() -> None:
    """Opening a store, new or old, writes nothing to it."""
    store = Memory()
    state = Versioned(store)
    assert (list(state), list(state.log()), len(state.status())) == ([], [], 0)
    assert list(store.keys()) == []


def test_moving_a_branch_that_another_moved() -> None:
    """A branch that moves between read and swap raises RefMoved and stays where it is."""
    state, repo = make()
    here = state.head
    assert here is not None
    with pytest.raises(RefMoved) as moved:
        repo.rollback("main", "HEAD", seen=repo.objects.commit(here.parent_ids[0]))
    assert moved.value.actual == here.id
    assert repo.branch("main") == here


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "in steps"])
def test_a_rename_that_failed_goes_on_when_it_is_called_again(after: bool, atomic: bool) -> None:
    """If any call of the store fails, a repeated rename leaves one branch: the new name, with HEAD on it."""
    for fail_at in count(1):
        memory = Memory()
        commit = save(memory, a=1)
        faulty = Faulty(memory, fail_at, after=after, atomic=atomic)
        raised = False
        try:
            Repository(faulty).rename_branch("main", "trunk")
        except StoreUnavailable:
            raised = True
        repo = Repository(memory)
        if raised and "main" in repo.branches():
            repo.rename_branch("main", "trunk")
        assert repo.branches() == {"trunk": commit}, fail_at
        assert repo.refs.head().branch == "trunk", fail_at
        if not raised and len(faulty.calls) < fail_at:
            break
