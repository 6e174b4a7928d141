"""sign, trust and allow on a state: the commits that are unpickled and built upon."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from vstate import CannotLoad, Memory, MergeConflict, ReadOnly, UntrustedCommit, Versioned
from vstate.repo.repository import Repository
from vstate.repo.rules.signing import SigningKey, check, signer_of

ran: list[str] = []


class Loud:
    """Reports when it is unpickled."""

    def __reduce__(self) -> Any:
        return _shout, ()


def _shout() -> str:
    ran.append("unpickled")
    return "value"


@pytest.fixture
def key() -> SigningKey:
    ran.clear()
    return SigningKey.generate()


def signed(key: SigningKey, store: Memory) -> Versioned:
    """A state with one signed commit."""
    state = Versioned(store, sign=key)
    state["k"] = Loud()
    state.commit("mine")
    return state


def test_every_commit_is_signed(key: SigningKey, tmp_path: Path) -> None:
    """Commits, merges, rollbacks, picks and transactions are signed by the key, which may come from a
    file.
    """
    key.save(tmp_path / "key")
    store = Memory()
    state = Versioned(store, sign=tmp_path / "key")
    state["a"] = 1
    state.commit()
    side = state.fork("side")
    side["b"] = 1
    side.commit()
    state["c"] = 1
    state.commit()
    state.merge("side")
    state.revert("side")
    state.cherry_pick("side")
    state.rollback()
    other = Versioned(store, branch="main", sign=key)
    other["x"] = 1
    state["y"] = 1
    other.commit()
    state.commit()
    commits = list(Versioned(store).log())
    assert len(commits) == 10
    assert {signer_of(commit) for commit in commits} == {key.public}
    assert store.get("format") == b"vstate 1"


STRANGERS: dict[str, Callable[[Memory], Versioned]] = {
    "unsigned": lambda store: Versioned(store),
    "another key": lambda store: Versioned(store, sign=SigningKey.generate()),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize(
    "operation",
    ["open", "refresh", "switch", "checkout", "diff", "reset", "rollback"]
    + ["merge", "pick", "revert", "fork", "commit", "update"],
)
def test_nothing_of_a_stranger_is_unpickled_or_built_upon(
    stranger: str, operation: str, key: SigningKey
) -> None:
    """Each way to come to another's commit raises UntrustedCommit, runs nothing, and moves nothing."""
    store = Memory()
    signed(key, store)
    state = Versioned(store, trust=[key.public], sign=key, branch="main")
    own = state.head
    evil = STRANGERS[stranger](store)
    if operation in ("open", "refresh", "commit", "update"):
        evil.switch("main")
    else:
        evil.switch("evil", create=True)
    evil["bad"] = Loud()
    bad = evil.commit("evil")
    assert bad is not None
    ran.clear()  # the writer's own commit loads the first value of a class
    state["mine"] = 1
    if operation not in ("commit", "rollback"):
        state.discard()
    operations: dict[str, Callable[[], Any]] = {
        "open": lambda: Versioned(store, trust=[key.public]),
        "refresh": state.refresh,
        "switch": lambda: state.switch("evil"),
        "checkout": lambda: state.checkout("evil"),
        "diff": lambda: state.diff("evil", "main"),
        "reset": lambda: state.reset("evil"),
        "rollback": lambda: state.rollback("evil"),
        "merge": lambda: state.merge("evil"),
        "pick": lambda: state.cherry_pick("evil"),
        "revert": lambda: state.revert("evil"),
        "fork": lambda: state.fork("mine", at="evil"),
        "commit": state.commit,
        "update": lambda: state.apply(lambda now: now.__setitem__("x", 1)),
    }
    with pytest.raises(UntrustedCommit) as raised:
        operations[operation]()
    assert raised.value.commit == bad.id
    assert ran == []
    assert state.head == own
    if operation in ("commit", "rollback"):
        assert state["mine"] == 1
        assert state.has_uncommitted


@pytest.mark.parametrize("stranger", STRANGERS)
def test_the_run_of_a_stranger_is_not_entered(stranger: str, key: SigningKey) -> None:
    """Its records are on a branch of the name that the run has: none is unpickled."""
    store = Memory()
    signed(key, store)
    with STRANGERS[stranger](store).run("r", of="main") as run:
        run.step(Loud)
    ran.clear()
    state = Versioned(store, trust=[key.public], sign=key, branch="main")
    with pytest.raises(UntrustedCommit), state.run("r") as run:
        run.step(Loud)
    assert ran == []


def test_who_trusts_and_does_not_sign_cannot_commit(key: SigningKey) -> None:
    """Its commit would be one that it does not trust itself."""
    store = Memory()
    signed(key, store)
    state = Versioned(store, trust=[key.public])
    state["x"] = 1
    with pytest.raises(ReadOnly, match="sign=KEY"):
        state.commit()
    assert state["x"] == 1


def test_a_signature_moved_to_another_commit_is_bad(key: SigningKey) -> None:
    """It covers all that the commit is."""
    from dataclasses import replace

    state = signed(key, Memory())
    assert state.head is not None
    forged = replace(state.head, message="other")
    assert check(forged) == "bad"
    repo = Repository(state.store)
    assert repo.publish("main", [forged], {}, [], expected=state.head.oid, action="forge")
    with pytest.raises(UntrustedCommit, match="not valid"):
        Versioned(state.store, trust=[key.public])


def test_a_stored_policy_function_is_not_imported_under_trust(key: SigningKey) -> None:
    """The store could name anything; a function that this program has set itself is used."""
    store = Memory()
    state = Versioned(store, sign=key, trust=[key.public])
    state["k"] = 1
    state.set_policy("k", take_theirs)
    state.commit()
    side = state.fork("side")
    for each, value in ((state, 2), (side, 3)):
        each["k"] = value
        each.commit()
    with pytest.raises(MergeConflict, match="set_policy"):
        Versioned(store, branch="main", sign=key, trust=[key.public]).merge("side")
    state.merge("side")
    assert state["k"] == 3


def take_theirs(base: Any, ours: Any, theirs: Any) -> Any:
    return theirs


def test_allow_narrows_what_is_imported(key: SigningKey) -> None:
    """Plain data loads; anything else raises CannotLoad with the key, unless a pattern names it."""
    store = Memory()
    state = Versioned(store)
    state["plain"] = {"a": [1, Decimal("1.5")]}
    state["loud"] = Loud()
    state.commit()
    ran.clear()  # as above
    narrow = Versioned(store, allow=[])
    assert narrow["plain"] == {"a": [1, Decimal("1.5")]}
    for read in (
        lambda: narrow["loud"],
        lambda: narrow.checkout("HEAD")["loud"],
        lambda: narrow.fork("f")["loud"],
    ):
        with pytest.raises(CannotLoad) as raised:
            read()
        assert raised.value.key == "loud"
    assert ran == []
    assert Versioned(store, allow=[f"{__name__}.*"])["loud"] == "value"


def test_an_interrupted_merge_under_an_untrusted_commit(key: SigningKey) -> None:
    """The handle stays where it is, and can be used: the untrusted commit is one that somebody else made."""
    store = Memory()
    state = Versioned(store, sign=key, trust=[str(key.public)])
    state["a"] = 1
    state.commit()
    side = state.fork("side")
    side["b"] = 2
    side.commit()

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "transact", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.merge("side")
    other = Versioned(store, branch="main", sign=SigningKey.generate())
    other["c"] = 3
    other.commit()
    assert state["a"] == 1
    state["mine"] = 1
    with pytest.raises(UntrustedCommit):
        state.commit()
    assert dict(state) == {"a": 1, "mine": 1}
