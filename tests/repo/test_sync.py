"""Sync: push, fetch and clone bring whole commits, at a cost in proportion to the difference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from bundle_files import chain, equal, refs_of, save, whole
from histories import opened
from sync_stores import cloned, push, statuses

from vstate import Commit, Disk, KVStore, Memory, SigningKey, Versioned
from vstate.errors import (
    AlreadyExists,
    Diverged,
    InvalidInput,
    MergeConflict,
    NotFound,
    StoreUnavailable,
    UncommittedChanges,
    UntrustedCommit,
)
from vstate.kv import ReadOnly
from vstate.repo import Repository
from vstate.repo.clone import clone
from vstate.testing import Faulty


@pytest.fixture(params=["memory", "disk"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    """An empty store to write to."""
    with opened(request.param, tmp_path) as store:
        yield store


# There and back


def test_a_push_out_of_a_store_that_cannot_be_written_to(target: KVStore) -> None:
    """The push succeeds, and the report says that no tracking ref was written; also after an interruption."""
    store = Memory()
    chain(store, 2)
    repo = Repository(ReadOnly(store))
    report = repo.push(target, remote="origin")
    equal(store, target)
    assert statuses(report) == {"heads/main": "created"}
    assert "opened to be read only" in report.not_noted
    assert str(report).endswith(f"not noted here: {report.not_noted}")
    with pytest.raises(Diverged):
        chain(target, 1, start=5)
        chain(store, 1, start=9)
        repo.push(target, remote="origin")
    assert not list(store.keys("r/remotes/"))
    report = Repository(store).push(target, remote="origin", force=True)
    assert report.not_noted == ""
    assert "noted" not in str(report)
    assert refs_of(store)["remotes/origin/main"] == refs_of(target)["heads/main"]


@pytest.mark.slow
def test_a_push_out_of_a_store_that_fails_at_any_call(target: KVStore) -> None:
    """A push that raises has moved no ref; one that has moved the ref reports that."""
    store = Memory()
    chain(store, 2)
    raised, reasons = 0, list[str]()
    while reasons[-1:] != [""]:  # until there are not so many calls
        Repository(store).push(target, remote="origin")
        chain(store, 1, start=raised + len(reasons) + 2)
        before, number = refs_of(target), raised + len(reasons) + 1
        try:
            report = Repository(Faulty(store, number)).push(target, remote="origin")
        except StoreUnavailable:
            raised += 1
            assert refs_of(target) == before
        else:
            assert statuses(report) == {"heads/main": "moved"}
            assert refs_of(target)["heads/main"] == refs_of(store)["heads/main"] != before["heads/main"]
            reasons.append(report.not_noted)
    assert raised
    assert "made to fail" in reasons[0]


def test_a_fetch_moves_no_branch(target: KVStore) -> None:
    """Tracking refs, and revisions with the name of the remote, name the fetched commits."""
    store = Memory()
    chain(store, 3)
    chain(store, 2, "side")
    chain(target, 1, "mine")
    repo, there = Repository(target), refs_of(store)
    for status in ("created", "unchanged"):
        fetched = statuses(repo.fetch(store, remote="origin"))
        assert fetched == dict.fromkeys(("remotes/origin/main", "remotes/origin/side"), status)
    assert set(repo.branches()) == {"mine"}
    assert repo.resolve("origin/main").id == there["heads/main"] == repo.resolve("remotes/origin/main").id
    assert repo.resolve("origin/side~1").message == "c0"
    Repository(store).move_branch("main", "main~1")
    assert statuses(repo.fetch(store, "main", remote="origin")) == {"remotes/origin/main": "forced"}
    assert repo.resolve("origin/main@{1}").id == there["heads/main"]
    whole(target)


def test_a_clone_is_a_copy(target: KVStore) -> None:
    """A clone has the branches with their merge policies, the tags, and HEAD."""
    store = Memory()
    state = chain(store, 3)
    state.set_policy("count/", "counter")
    state.tag("v1", "HEAD~1")
    chain(store, 1, "side")
    Repository(store).checkout("side")
    assert str(clone(store, target)).count(": created") == 3
    equal(store, target)
    whole(target)
    assert Repository(target).refs.head().branch == "side"
    assert Versioned(target, branch="main").policies() == {"count/": "counter"}
    with pytest.raises(AlreadyExists, match="in use"):
        clone(store, target)


def test_a_clone_of_a_path_has_a_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push, pull and fetch go to the original by default, from any directory."""
    with Disk(tmp_path / "there") as store:
        chain(store, 1)
    monkeypatch.chdir(tmp_path)
    clone("there", "here")
    monkeypatch.chdir("/")
    with Versioned(tmp_path / "here") as here, Versioned(tmp_path / "there") as there:
        assert here.repo.remotes.list() == {"origin": str(tmp_path / "there")}
        head = save(here, "two", b=2)
        assert statuses(here.push()) == {"heads/main": "moved"}
        assert here.repo.resolve("origin/main") == head
        there.refresh()
        assert there["b"] == 2
        save(there, "three", c=3)
        assert here.pull().strategy == "fast-forward"
        assert here["c"] == 3
        assert here.repo.fetch().refs[0].status == "unchanged"
    with pytest.raises(AlreadyExists):
        clone(tmp_path / "there", tmp_path / "here")
    with pytest.raises(NotFound):
        clone(tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "nowhere").exists()


# Refusals


def test_commits_of_others_are_not_pushed_away() -> None:
    """An error gives advice, and nothing has been sent; with force the old head stays in the reflog.

    A branch that is behind is refused too, though all commits there are known here.
    """
    store = Memory()
    chain(store, 2)
    target = cloned(store)
    chain(target, 1, start=10)
    chain(store, 1, start=20)
    chain(store, 1, "fine")
    before, ours, theirs = dict(target.items()), refs_of(store), refs_of(target)
    with pytest.raises(Diverged, match=r"pull first, or push with force=True:") as caught:
        push(store, target, "fine", "main")
    assert dict(target.items()) == before
    assert (caught.value.ours, caught.value.theirs) == (ours["heads/main"], theirs["heads/main"])
    report = push(store, target, "fine", "main", force=True)
    assert statuses(report) == {"heads/fine": "created", "heads/main": "forced"}
    Repository(target).gc()
    assert Repository(target).resolve("main@{1}").id == theirs["heads/main"]
    assert refs_of(target) == ours
    assert Repository(target).fsck().ok
    Versioned(store, branch="main").reset("HEAD~1")
    with pytest.raises(Diverged):
        push(store, target, "main")
    assert statuses(push(store, target, "main", force=True)) == {"heads/main": "forced"}


def test_tags_are_brought_and_do_not_move() -> None:
    """A push moves a tag only by force; a fetch leaves existing tags."""
    store = Memory()
    state = chain(store, 3)
    state.tag("v1", "HEAD~1")
    target = Memory()
    assert statuses(push(store, target, tags=True)) == {"heads/main": "created", "tags/v1": "created"}
    equal(store, target)
    state.delete_tag("v1")
    state.tag("v1")
    with pytest.raises(Diverged, match="tags do not move"):
        push(store, target, tags=True)
    state.tag("v2")
    report = Repository(target).fetch(store, "main", remote="o", tags=True)
    assert statuses(report) == {"remotes/o/main": "created", "tags/v1": "left", "tags/v2": "created"}
    assert push(store, target, tags=True, force=True).refs[1].status == "forced"
    assert refs_of(target)["tags/v1"] == refs_of(store)["tags/v1"]
    whole(target)


def test_a_branch_is_deleted_there() -> None:
    """Its reflog there keeps the commits; HEAD's branch is not deleted; nothing else is pushed."""
    store = Memory()
    chain(store, 2)
    chain(store, 1, "side")
    target = cloned(store)
    repo = Repository(store)
    repo.push(target, "side", remote="t")
    assert "remotes/t/side" in refs_of(store)
    (ref,) = repo.push(target, delete="side", remote="t").refs
    assert (ref.name, ref.status, ref.new) == ("heads/side", "deleted", None)
    assert set(refs_of(target)) == {"heads/main"}
    assert "remotes/t/side" not in refs_of(store)
    assert Repository(target).gc().removed == 0
    chain(store, 1)
    before = refs_of(target)
    for name, error, message in (
        ("side", NotFound, f"{target.location} has no branch 'side'"),
        ("main", InvalidInput, f"HEAD of {target.location} is on branch 'main'; switch"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            repo.push(target, "main", delete=[name])
        assert refs_of(target) == before


@pytest.mark.parametrize(
    ("sync", "error", "message"),
    [
        (lambda repo: repo.push(Memory(), "mian"), NotFound, "mian"),
        (lambda repo: Repository(Memory()).fetch(repo.store, "side"), NotFound, "no branch 'side'"),
        (lambda repo: repo.push(), NotFound, "no remote; add one with `vstate remote add"),
        (lambda repo: repo.push("main"), NotFound, "`vstate push origin main`"),
        (lambda repo: repo.push(Memory()), InvalidInput, "on no branch"),
        (lambda repo: repo.push("memory:", "main", create=True), InvalidInput, "memory: is gone"),
    ],
)
def test_what_is_not_there_is_named(
    sync: Callable[[Repository], object], error: type[Exception], message: str
) -> None:
    """A branch here, a branch there, and a branch that stands where a remote should."""
    store = Memory()
    chain(store, 1)
    repo = Repository(store)
    if "on no branch" in message:
        repo.checkout(refs_of(store)["heads/main"])
    with pytest.raises(error, match=message):
        sync(repo)


# Pull


def test_a_pull_merges_by_the_policies_of_the_branch() -> None:
    """Two counters add up; without a policy the keys are in conflict, and the fetched commits stay."""
    store = Memory()
    state = Versioned(store)
    state.set_policy("n", "counter")
    save(state, "ten", n=10, free=0)
    other = Versioned(cloned(store))
    save(state, "five", n=15)
    save(other, "seven", n=17)
    other["staged"] = 1
    with pytest.raises(UncommittedChanges):
        other.pull(store)
    other.discard()
    assert (other.pull(store).strategy, other["n"]) == ("merge", 22)
    assert other.push(store).refs[0].status == "moved"
    assert state.pull(other.store).strategy == "up-to-date"
    assert state["n"] == 22
    save(state, "mine", free=1)
    save(other, "theirs", free=2)
    before = refs_of(store)
    with pytest.raises(MergeConflict) as caught:
        state.pull(other.store)
    assert caught.value.conflicts["free"].theirs == 2
    assert refs_of(store) == before
    assert state.pull(other.store, policy="theirs").conflicts == {"free": "theirs"}
    whole(store)


def rewrite(state: Versioned, onto: Sequence[Commit]) -> None:
    """Put the branch on a commit without the key `secret`, whose only history is `onto`."""
    del state["secret"]
    state.commit("delete")
    head, repo = state.head, state.repo
    assert head is not None
    alone = repo.build_commit(head.root, tuple(onto), message="squash")
    assert repo.publish("main", [alone], {}, [], expected=head.oid, action="squash", needs=[head.oid])
    state.refresh()


@pytest.mark.parametrize(("side", "keeps"), [("there", 0), ("there", 1), ("here", 0)])
@pytest.mark.slow
def test_a_pull_brings_nothing_back(keeps: int, side: str, tmp_path: Path) -> None:
    """A branch that dropped history is not merged, also at the next pull; reset and merge are the ways on."""
    there = Versioned(tmp_path / "there")
    first = save(there, "first", a=1)
    save(there, "second", secret="s")
    clone(tmp_path / "there", tmp_path / "here")
    here = Versioned(tmp_path / "here")
    save(here, "mine", mine=1)
    rewrite(here if side == "here" else there, [first][:keeps] if first else [])
    before = here.head
    for _ in range(2):
        with pytest.raises(Diverged, match=r"vstate reset origin/main.*vstate merge origin/main") as caught:
            here.pull()
        assert (here.head, caught.value.fetched) == (before, "origin/main")
    assert there.head is not None
    assert caught.value.theirs == there.head.id
    for go_on, strategy in ((here.merge, "merge"), (here.reset, "fast-forward")):
        go_on("origin/main")
        save(there, "more", more=strategy)
        assert here.pull().strategy == strategy
    assert ("secret" in here) is (side == "here")
    there.close()
    here.close()


def test_a_pull_makes_a_branch_that_is_not_here() -> None:
    """The new branch has its policies; one that is there keeps those that it has."""
    store = Memory()
    there = chain(store, 2)
    there.set_policy("", "newest")
    state = Versioned()
    result = state.pull(store)
    assert result.strategy == "fast-forward"
    assert set(result.merged_keys) == set(state) == {"own/0", "own/1", "shared", "small"}
    assert state.policies() == {"": "newest"}
    there.set_policy("a/", "ours")
    chain(store, 1, start=2)
    push(store, state.store)
    assert state.policies() == {"": "newest"}
    with pytest.raises(NotFound, match="no branch 'other'"):
        Versioned(branch="other").pull(store)


def test_a_pull_builds_on_no_commit_that_is_not_trusted() -> None:
    """A pull neither merges an untrusted commit nor creates a branch at it."""
    store = Memory()
    chain(store, 1)
    mine = SigningKey.generate()
    state = Versioned(sign=mine, trust=[mine.public])
    with pytest.raises(UntrustedCommit):
        state.pull(store)
    assert refs_of(state.store) == {}
    save(state, "signed", a=1)
    with pytest.raises(UntrustedCommit):
        state.pull(store)


# Shallow histories


def test_a_history_that_was_cut_off_there_comes_back_with_a_branch() -> None:
    """Commits that no ref there leads to any more are pushed with all that is before them."""
    store = Memory()
    chain(store, 6)
    target = cloned(store)
    other = Repository(target)
    other.gc(branch="main", keep_last=2, keep_reflog="0")
    other.create_branch("other", "main~1")
    other.checkout("other")
    other.delete_branch("main")
    other.move_branch("other", "other")
    chain(store, 1, start=6)
    push(store, target)
    assert refs_of(target)["heads/main"] == refs_of(store)["heads/main"]
    assert other.fsck().ok
    other.commit("empty", set={"x": 1})
    other.checkout("empty")
    for name in ("main", "other"):
        other.delete_branch(name)
    push(store, target)
    assert len(list(Versioned(target, branch="main").log())) == 7
    assert not list(target.keys("shallow/"))
    other.gc(keep_reflog="0")
    whole(target)


def test_what_was_cut_off_there_is_sent_again_when_it_is_needed() -> None:
    """A branch at a commit before the end of the target's history brings that commit again."""
    store = Memory()
    state = chain(store, 6)
    target = cloned(store)
    Repository(target).gc(branch="main", keep_last=2, keep_reflog="0")
    state.create_branch("old", "HEAD~3")
    report = push(store, target, "old")
    assert report.objects > 5
    assert len(list(Versioned(target, branch="old").log())) == 3
    assert len(list(Versioned(target, branch="main").log())) == 2
    whole(target)
