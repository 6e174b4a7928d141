"""The exceptions: their base classes, their data and their texts."""

import copy
import pickle

import pytest

from vstate import errors
from vstate.errors import (
    AlreadyExists,
    CannotLoad,
    Conflict,
    CorruptObject,
    CorruptStore,
    DetachedHead,
    Diverged,
    IllegalTransition,
    InvalidInput,
    InvalidRecord,
    KeyNotFound,
    LeaseHeld,
    LeaseLost,
    MergeConflict,
    NotFound,
    NotVersioned,
    ReadOnly,
    RefMoved,
    StorageError,
    StoreFull,
    StoreUnavailable,
    UncommittedChanges,
    Unpicklable,
    UnsupportedFormat,
    UntrustedCommit,
    VStateError,
)

EXAMPLES = [
    InvalidRecord("users/ann", "age: Input should be a valid integer"),
    IllegalTransition("completed", "pause", allowed=["archive"]),
    IllegalTransition("archived", "pause"),
    NotFound("no revision 'x'", name="x", candidates=["y"]),
    KeyNotFound("k"),
    KeyNotFound("w", kind="workflow"),
    AlreadyExists("there is a branch 'x' already; choose another", name="x"),
    RefMoved("heads/main", expected="a" * 64, actual=None),
    Diverged("heads/main", ours="a" * 64, theirs="b" * 64),
    MergeConflict(["b", "a"], branch="main"),
    UncommittedChanges("switch"),
    LeaseHeld("nightly", holder="process 7 on somewhere", fence=3),
    LeaseLost("nightly", fence=3, reason="another has it"),
    ReadOnly("a snapshot cannot be changed"),
    DetachedHead("c" * 64),
    NotVersioned("log"),
    InvalidInput("malformed", candidates=["x"]),
    Unpicklable({"k": 'state["k"]: _thread.lock'}),
    Unpicklable({"result": "result: generator"}, staged=False),
    CannotLoad("mod.Class", "gone", key="k"),
    UntrustedCommit("e" * 64, signer="ed25519:" + "f" * 64),
    CorruptObject("d" * 64, "it is missing"),
    CorruptStore("/there", "no database"),
    UnsupportedFormat("9", 1),
    StoreFull("full"),
    StoreUnavailable("gone", outcome_unknown=True),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickles_and_copies_with_its_data(error: VStateError) -> None:
    """An error crosses a process boundary with its attributes and its message, which is one line."""
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)
    assert str(error) == error.message
    assert str(error)[0] not in "'\""
    assert "\n" not in str(error)


def test_every_public_error_has_an_example() -> None:
    """The examples above leave out only the classes that vstate never raises directly."""
    shown = {type(error).__name__ for error in EXAMPLES}
    abstract = {"VStateError", "Conflict", "StorageError"}
    assert set(errors.__all__) - shown == {*abstract, "UncommittedWarning"}


@pytest.mark.parametrize(
    ("base", "kinds"),
    [
        (KeyError, [NotFound]),
        (NotFound, [KeyNotFound]),
        (ValueError, [InvalidInput]),
        (TypeError, [Unpicklable]),
        (Conflict, [RefMoved, Diverged, MergeConflict, UncommittedChanges, LeaseHeld, LeaseLost]),
        (ReadOnly, [DetachedHead]),
        (StorageError, [CorruptObject, CorruptStore, UnsupportedFormat, StoreFull, StoreUnavailable]),
    ],
)
def test_is_caught_as(base: type[Exception], kinds: list[type[Exception]]) -> None:
    """A caller catches an error by its own reaction, and by the built-in class that fits."""
    assert all(issubclass(kind, base) and issubclass(kind, VStateError) for kind in kinds)


def test_candidates_are_shown() -> None:
    """An error about an unknown name lists similar names."""
    assert "did you mean: main, mine?" in str(NotFound("no branch 'mani'", candidates=["main", "mine"]))


def test_merge_conflict_names_its_keys() -> None:
    """A merge conflict names the keys, sorted, ten of them in its text and all in `keys`."""
    error = MergeConflict([f"k{i:02}" for i in range(12)][::-1], branch="b")
    assert error.keys == tuple(f"k{i:02}" for i in range(12))
    assert "'k09' and 2 more" in str(error)
