"""The exceptions: their base classes, their data and their texts."""

import copy
import pickle
from datetime import datetime

import pytest

from vstate import errors

EXAMPLES = [
    errors.InvalidRecord("users/ann", "age: Input should be a valid integer"),
    errors.IllegalTransition("completed", "pause", allowed=["archive"]),
    errors.IllegalTransition("archived", "pause"),
    errors.NotFound("no revision 'x'", name="x", candidates=["y"]),
    errors.KeyNotFound("k"),
    errors.KeyNotFound("w", kind="workflow"),
    errors.AlreadyExists("there is a branch 'x' already; choose another", name="x"),
    errors.RefMoved("heads/main", expected="a" * 64, actual=None),
    errors.Diverged("heads/main", ours="a" * 64, theirs="b" * 64),
    errors.MergeConflict(["b", "a"], branch="main"),
    errors.UncommittedChanges("switch"),
    errors.LeaseHeld("nightly", holder="process 7 on somewhere", fence=3),
    errors.LeaseLost("nightly", fence=3, reason="another has it"),
    errors.ReadOnly("a snapshot cannot be changed"),
    errors.DetachedHead("c" * 64),
    errors.NotVersioned("log"),
    errors.InvalidInput("malformed", candidates=["x"]),
    errors.Unpicklable({"k": 'state["k"]: _thread.lock'}),
    errors.Unpicklable({"result": "result: generator"}, staged=False),
    errors.CannotLoad("mod.Class", "gone", key="k"),
    errors.UntrustedCommit("e" * 64, signer="ed25519:" + "f" * 64),
    errors.EffectUnknown("order-17", "charge#1", "a" * 32, ((5,), {}), datetime(2026, 1, 2), reason="x"),
    errors.RunChanged("order-17", "f#1", recorded=("m.f", (1,), {"k": "a\nb"}), now=("m.f", (2,), {})),
    errors.CorruptObject("d" * 64, "it is missing"),
    errors.CorruptStore("/there", "no database"),
    errors.UnsupportedFormat("9", 1),
    errors.StoreFull("full"),
    errors.StoreUnavailable("gone", outcome_unknown=True),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickles_and_copies_with_its_data(error: errors.VStateError) -> None:
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
    assert set(errors.__all__) - shown == {*abstract, "UncommittedWarning", "ForkedRunWarning"}


def test_merge_conflict_names_its_keys() -> None:
    """A merge conflict names the keys, sorted, ten of them in its text and all in `keys`."""
    error = errors.MergeConflict([f"k{i:02}" for i in range(12)][::-1], branch="b")
    assert error.keys == tuple(f"k{i:02}" for i in range(12))
    assert "'k09' and 2 more" in str(error)


@pytest.mark.parametrize(
    ("base", "kinds"),
    [
        (KeyError, [errors.NotFound]),
        (errors.NotFound, [errors.KeyNotFound]),
        (ValueError, [errors.InvalidInput]),
        (TypeError, [errors.Unpicklable]),
        (
            errors.Conflict,
            [
                errors.RefMoved,
                errors.Diverged,
                errors.MergeConflict,
                errors.UncommittedChanges,
                errors.LeaseHeld,
                errors.LeaseLost,
            ],
        ),
        (errors.ReadOnly, [errors.DetachedHead]),
        (
            errors.StorageError,
            [
                errors.CorruptObject,
                errors.CorruptStore,
                errors.UnsupportedFormat,
                errors.StoreFull,
                errors.StoreUnavailable,
            ],
        ),
    ],
)
def test_is_caught_as(base: type[Exception], kinds: list[type[Exception]]) -> None:
    """A caller catches an error by its own reaction, and by the built-in class that fits."""
    assert all(issubclass(kind, base) and issubclass(kind, errors.VStateError) for kind in kinds)
