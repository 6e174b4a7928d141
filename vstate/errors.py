"""Every error that vstate raises, by the caller's next step.

    VStateError
      NotFound            look at the name; also a KeyError
        KeyNotFound         no such key in the mapping
      AlreadyExists       choose another name
      Conflict            retry, or resolve and retry
        RefMoved            another writer moved the branch
        Diverged            the other store has commits that ours lacks: pull first
        MergeConflict       both sides changed the same keys
        UncommittedChanges  commit or discard first
        LeaseHeld           wait for its holder
        LeaseLost           stop: another may hold it by now; take it again
      ReadOnly            write elsewhere
        DetachedHead        switch to a branch first
      NotVersioned        use Versioned instead of Live
      InvalidInput        mend the argument; also a ValueError
        InvalidRecord       mend the record, or the migration that made it
        IllegalTransition   check the status: this event does not apply to it
      Unpicklable         change the value; also a TypeError
      CannotLoad          make the class importable again
      UntrustedCommit     find out who signed it before you read it
      EffectUnknown       find out whether the step was done, and tell the run
      RunChanged          undo the change of the program, or begin another run
      StorageError        look at the store
        CorruptObject       one object is damaged or missing
        CorruptStore        the store as a whole cannot be read
        UnsupportedFormat   written by a newer vstate
        StoreFull           make room, then retry
        StoreUnavailable    retry later

Each carries its data as attributes, and its message names the next step. There are two warnings, which are
UserWarnings: UncommittedWarning and ForkedRunWarning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from vstate.extras import UPGRADE

__all__ = [
    "AlreadyExists",
    "CannotLoad",
    "Conflict",
    "CorruptObject",
    "CorruptStore",
    "DetachedHead",
    "Diverged",
    "EffectUnknown",
    "ForkedRunWarning",
    "IllegalTransition",
    "InvalidInput",
    "InvalidRecord",
    "KeyNotFound",
    "LeaseHeld",
    "LeaseLost",
    "MergeConflict",
    "NotFound",
    "NotVersioned",
    "ReadOnly",
    "RefMoved",
    "RunChanged",
    "StorageError",
    "StoreFull",
    "StoreUnavailable",
    "UncommittedChanges",
    "UncommittedWarning",
    "Unpicklable",
    "UnsupportedFormat",
    "UntrustedCommit",
    "VStateError",
]


class VStateError(Exception):
    """The base class of every error that vstate raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        # KeyError.__str__ would print the message in quotes.
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call __init__ with the message alone, and the subclasses take other arguments.
        return _restore, (type(self), self.message, dict(self.__dict__))


def _restore(kind: type[VStateError], message: str, attributes: dict[str, object]) -> VStateError:
    error = kind.__new__(kind, message)
    error.__dict__.update(attributes)
    return error


def _with_candidates(message: str, candidates: Iterable[str]) -> str:
    names = ", ".join(candidates)
    return f"{message}; did you mean: {names}?" if names else message


class NotFound(VStateError, KeyError):
    """There is nothing of this `name`; `candidates` are similar names that exist."""

    def __init__(self, message: str, *, name: str = "", candidates: Sequence[str] = ()) -> None:
        super().__init__(_with_candidates(message, candidates))
        self.name = name
        self.candidates = tuple(candidates)


class KeyNotFound(NotFound):
    """The mapping has no such `key`; the message calls it a `kind`."""

    def __init__(self, key: str, *, kind: str = "key") -> None:
        super().__init__(f"no {kind} {key!r}", name=key)
        self.key = key


class AlreadyExists(VStateError):
    """A branch or tag of this `name`, or a record of this id, exists already."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class Conflict(VStateError):
    """Another writer's change, or an uncommitted one of your own, is in the way. Nothing was written."""


class RefMoved(Conflict):
    """Another writer moved the ref since it was read; read it again and retry.

    `rewritten` is True if the commit `expected` is no longer in the history of the branch: a reset, a squash
    or gc has removed it there.
    """

    def __init__(
        self,
        ref: str,
        *,
        expected: str | None,
        actual: str | None,
        rewritten: bool = False,
        staged: bool = True,
    ) -> None:
        found = f"found {_short(actual)}; refresh() and try again"
        if rewritten and actual is not None:
            found = (
                f"found {_short(actual)}, whose history no longer holds it; nothing was committed, and "
                "everything is still staged: refresh(), which puts the uncommitted changes on the branch as "
                "it is now, and commit() again"
                if staged
                else f"found {_short(actual)}, whose history no longer holds it; nothing was committed: "
                "make the changes again on the branch as it is now"
            )
        if actual is None and expected is not None:
            found = (
                "and it is gone: deleted, by gc perhaps; open the state again to begin a new one"
                + ", or, as long as gc has left its commits, keep the uncommitted changes on another branch, "
                "with switch(name, create=True)" * staged
            )
        super().__init__(f"{ref} moved: expected {_short(expected)}, {found}")
        self.ref = ref
        self.expected = expected
        self.actual = actual
        self.rewritten = rewritten


class Diverged(Conflict):
    """A push would lose a commit of the other store, or a pull would bring back history that it dropped.

    `ref` is the ref of the other store, `theirs` the commit that the ref is at, and `ours` the commit here.
    After a pull, `fetched` is a revision here that leads to `theirs`; after a push it is None. If `ours` was
    erased in the store at `erased_in`, `theirs` is the commit that took its place there.
    """

    def __init__(
        self,
        ref: str,
        *,
        ours: str,
        theirs: str,
        fetched: str | None = None,
        dropped: str | None = None,
        erased_in: str | None = None,
    ) -> None:
        if erased_in is not None:
            message = (
                f"{ref or 'the history'} has commit {_short(ours)}, which `erase` replaced by "
                f"{_short(theirs)} in {erased_in}, and an old commit never comes back; erase the same keys "
                "in the other store, or delete the branch there and push the new history to it"
            )
        elif fetched is not None:
            history = "has no history in common with"
            if dropped is not None:
                history = f"no longer holds {_short(dropped)} of"
            message = (
                f"{ref} is at {_short(theirs)} there, which {history} {_short(ours)} here: a merge would "
                f"bring deleted keys back. To take theirs, reset to {fetched} (`vstate reset {fetched}`); to "
                f"merge all the same, merge it (`vstate merge {fetched}`)"
            )
        elif ref.startswith("tags/"):
            message = (
                f"{ref} is at {_short(theirs)} there, not at {_short(ours)}, and tags do not move; delete it "
                "there first, or push with force=True"
            )
        else:
            message = (
                f"{ref} is at {_short(theirs)} there, which {_short(ours)} does not follow; pull first, "
                "or push with force=True: the reflog there keeps the old commit"
            )
        super().__init__(message)
        self.ref = ref
        self.ours = ours
        self.theirs = theirs
        self.fetched = fetched
        self.erased_in = erased_in


class MergeConflict(Conflict):
    """Both sides changed the same keys, and no policy resolved them. Nothing was merged.

    `keys` names them. `conflicts` has a `KeyConflict` for each key whose conflict is known: its `base`,
    `ours`, `theirs` and `reason`. Reading a value may have changed it: see `vstate.compare`.
    """

    def __init__(
        self,
        keys: Iterable[str],
        *,
        branch: str | None = None,
        conflicts: Mapping[str, Any] | None = None,
        operation: str = "commit",
    ) -> None:
        self.keys = tuple(sorted(keys))
        self.branch = branch
        self.conflicts = dict(conflicts or {})
        shown = _first(self.keys)
        where = f" on branch {branch!r}" if branch else ""
        reasons = {conflict.reason for conflict in self.conflicts.values()}
        why = f" ({'; '.join(sorted(reasons)[:3])})" if reasons else ""
        if operation == "commit":
            message = (
                f"another writer{where} changed {shown} too{why}; your changes are still staged: "
                "discard() those keys, then refresh() and redo them, or give them a merge policy with "
                "set_policy(prefix, policy); if you only read them, see vstate.compare"
            )
        elif operation in ("task", "run"):
            again = "call the task again" if operation == "task" else "enter the run again"
            message = (
                f"another writer{where} changed {shown} too{why}; nothing was committed, and nothing "
                f"is staged: {again}, or give these keys a merge policy with set_policy(prefix, policy)"
            )
        elif operation == "update":
            message = (
                f"update lost the race for {shown}{where} in each attempt; nothing was committed, and "
                "nothing is staged: call it again, or with more attempts="
            )
        else:
            message = (
                f"{operation}{where} is in conflict on {shown}{why}; nothing has changed: give these "
                "keys a policy, with set_policy(prefix, policy) or policy=, or change one side first"
            )
        super().__init__(message)


def mark_lost(error: VStateError, operation: str) -> None:
    """Have the error of a commit no longer say that its changes stay staged."""
    if isinstance(error, Unpicklable):
        Unpicklable.__init__(error, error.culprits, staged=False)
    elif isinstance(error, MergeConflict):
        conflicts, branch = error.conflicts, error.branch
        MergeConflict.__init__(error, error.keys, branch=branch, conflicts=conflicts, operation=operation)
    elif isinstance(error, RefMoved):
        expected, actual, rewritten = error.expected, error.actual, error.rewritten
        RefMoved.__init__(
            error, error.ref, expected=expected, actual=actual, rewritten=rewritten, staged=False
        )


class UncommittedChanges(Conflict):
    """The operation would lose staged changes, of the `keys` if they are known."""

    def __init__(
        self, operation: str, keys: Iterable[str] = (), *, advice: str = "commit() or discard() them first"
    ) -> None:
        self.operation = operation
        self.keys = sorted(keys)
        of = f" of {_first(self.keys)}" if self.keys else ""
        super().__init__(f"{operation} would lose uncommitted changes{of}; {advice}")


class UncommittedWarning(UserWarning):
    """A state was closed or dropped, or its program ended, with uncommitted changes. They are lost."""


class LeaseHeld(Conflict):
    """Another `holder` has the lease, with this fencing token, its `fence`."""

    def __init__(self, name: str, *, holder: str, fence: int) -> None:
        super().__init__(
            f"lease {name!r} is held by {holder} (fence {fence}); wait for it, with wait=None or "
            "wait=SECONDS, or try again later"
        )
        self.name = name
        self.holder = holder
        self.fence = fence


class LeaseLost(Conflict):
    """The lease with this `fence` is over, for this `reason`, and another may hold it by now."""

    def __init__(self, name: str, *, fence: int, reason: str) -> None:
        super().__init__(
            f"lease {name!r} (fence {fence}) is lost: {reason}; nothing was committed and everything is "
            "still staged: stop the work under it, discard() and refresh(), and take it again"
        )
        self.name = name
        self.fence = fence
        self.reason = reason


class ReadOnly(VStateError):
    """The state is read-only."""


class DetachedHead(ReadOnly):
    """HEAD is at a commit, not at a branch, so there is no branch that a commit could move."""

    def __init__(self, commit: str | None = None) -> None:
        super().__init__(
            f"HEAD is detached at {_short(commit)}, so no branch can take a commit; go on from here on a new "
            f"branch, with `vstate checkout {_short(commit)} -b NAME` or state.switch(name, create=True), or "
            "go back to a branch, with `vstate checkout BRANCH`"
        )
        self.commit = commit


class NotVersioned(VStateError, AttributeError):
    """A `Live` state has no history. So `hasattr` and `getattr` with a default find none either."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"Live keeps no history, so it has no {operation}; use Versioned()")
        self.operation = operation


class InvalidInput(VStateError, ValueError):
    """An argument is malformed or ambiguous; `candidates` are its possible meanings."""

    def __init__(self, message: str, *, candidates: Sequence[str] = ()) -> None:
        super().__init__(_with_candidates(message, candidates))
        self.candidates = tuple(candidates)


class InvalidRecord(InvalidInput):
    """A record does not fit its model, in a write or a read. `key` is its key in the state."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the record {key!r} is not valid: {reason}")
        self.key = key
        self.reason = reason


class IllegalTransition(InvalidInput):
    """The event is not allowed in this status. Nothing has changed."""

    def __init__(self, status: str, event: str, *, allowed: Sequence[str] = ()) -> None:
        possible = f"possible are: {', '.join(allowed)}" if allowed else "nothing is possible from there"
        super().__init__(f"in the status {quoted(status)} {quoted(event)} is not possible; {possible}")
        self.status = status
        self.event = event
        self.allowed = tuple(allowed)


def quoted(given: object) -> str:
    """A value for a message: its repr, cut if long; a member of a str enum is its text."""
    if isinstance(given, str):
        given = str.__str__(given)
        return repr(given) if len(given) <= _SHOWN else f"{given[:_SHOWN]!r}..."
    shown = repr(given)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _first(keys: Sequence[str]) -> str:
    """The first ten keys for a message, and how many more there are."""
    more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
    return ", ".join(map(repr, keys[:10])) + more


_SHOWN = 200  # characters, which is a line or two


class Unpicklable(VStateError, TypeError):
    """Some values cannot be pickled. Nothing was committed, and staged changes stay staged.

    `culprits` maps each key to the place in its value that fails, such as
    `'state["job"]["conn"]: sqlite3.Connection'`.
    """

    def __init__(self, culprits: Mapping[str, str], *, staged: bool = True) -> None:
        self.culprits = dict(culprits)
        self.keys = tuple(self.culprits)
        remedy = (
            "Nothing was committed, everything is still staged: delete or replace these values"
            if staged
            else "Nothing was stored: replace these values"
        )
        super().__init__(
            f"cannot pickle {'; '.join(self.culprits.values())}. {remedy}, or give their class a __getstate__"
            " or a __reduce__"
        )


class CannotLoad(VStateError):
    """A stored value is intact, but this program cannot load the `name` that it needs. `key` is its key.

    `called` says that the program has the name, and that its code raised an error.
    """

    def __init__(self, name: str, reason: str, *, key: str | None = None, called: bool = False) -> None:
        self.name = name
        self.reason = reason
        self.key = key
        self.called = called
        value = f"the value of {key!r}" if key is not None else "a value"
        happened, remedy = f"which needs {name}", "make that name importable, and allow it if you pass allow="
        if called:
            happened = f"because {name} fails"
            remedy = (
                "correct the code of that name, or, if its fields or members have changed since, change the "
                "stored ones with `vstate.upgrade`"
            )
        super().__init__(
            f"cannot load {value}, {happened}: {reason}. The stored bytes are intact: {remedy}, or look at "
            "the value with `vstate show`"
        )


class UntrustedCommit(VStateError):
    """No trusted key signed the `commit`, so no value of it was read.

    `signer` is the key that signed it, as text; None if the signature is bad or missing, and then `reason`
    says which.
    """

    def __init__(self, commit: str, *, signer: str | None = None, reason: str = "it is not signed") -> None:
        self.commit = commit
        self.signer = signer
        self.reason = f"it is signed by {signer}" if signer is not None else reason
        super().__init__(
            f"commit {commit} is not trusted: {self.reason}; `vstate verify` shows every signer: add the "
            "signer's key to those that you trust, or go back to a commit that one of them signed"
        )


class EffectUnknown(VStateError):
    """A step was begun that has to be done once, and nobody knows whether it was done.

    `run` and `step` are their ids, `key` the idempotency key, `arguments` (args, kwargs), `time` when the
    step was begun. `reason` says how the call ended, empty if the program was killed.
    """

    def __init__(
        self,
        run: str,
        step: str,
        key: str,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        time: datetime,
        *,
        reason: str = "",
    ) -> None:
        super().__init__(
            f"step {step!r} of run {run!r} was begun at {time:%Y-%m-%d %H:%M:%S} UTC, and nobody knows "
            f"whether it was done: {reason or 'it did not end'}. Find out, by its idempotency key {key}, "
            f"enter the run again, and call run.resolve({step!r}, RESULT) if it was done, or "
            f"run.retry({step!r}) if it was not; or give the step check=, a function that finds out"
        )
        self.run = run
        self.step = step
        self.key = key
        self.arguments = arguments
        self.time = time
        self.reason = reason


class RunChanged(VStateError):
    """The record of a step is of another call, so the step does not return its result.

    `recorded` and `now` are (function, args, kwargs) of both calls; functions are named. They are empty if
    the steps alone come in another order than recorded, with edits of the state between them: nobody can tell
    whether the state has these edits.
    """

    def __init__(self, run: str, step: str, *, recorded: Sequence[Any] = (), now: Sequence[Any] = ()) -> None:
        if recorded:
            told = (
                f"step {step!r} of run {run!r} is recorded as {_called(*recorded)}, and is called as "
                f"{_called(*now)} now: undo the change of the program, give the step another name= or key=, "
                "or begin another run"
            )
        else:
            told = (
                f"the state was edited before {step} of run {run!r}, which follows another step than "
                "recorded, or a step that had failed then, or comes where the run had ended: the state may "
                "have these edits already. Roll the state back to before the run, and all edits between "
                "steps are made again; or make them in the function of a step, go back to the recorded "
                "order, or begin another run"
            )
        super().__init__(told)
        self.run = run
        self.step = step
        self.recorded = tuple(recorded)
        self.now = tuple(now)


class ForkedRunWarning(UserWarning):
    """A run of this name began on another branch, so this is another run."""


def _called(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    given = [*map(quoted, args), *(f"{name}={quoted(value)}" for name, value in kwargs.items())]
    return " ".join(f"{function}({', '.join(given)})".split())


class StorageError(VStateError):
    """The store failed, or its content is damaged."""


class CorruptObject(StorageError):
    """An object is missing, damaged or malformed. `id` is its id in hex."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(
            f"object {id} is corrupt: {reason}; `vstate fsck` shows the commits and keys that need it; "
            "restore them from a copy of the store"
        )
        self.id = id
        self.reason = reason


class CorruptStore(StorageError):
    """The store at this `location` cannot be read, or one of its rows.

    `repairable` is True for a row that `vstate fsck --repair` mends.
    """

    def __init__(self, location: str, reason: str, *, repairable: bool = False, advice: str = "") -> None:
        advice = advice or ("`vstate fsck --repair` mends it" if repairable else "restore it from a copy")
        super().__init__(f"the store at {location} is damaged: {reason}; {advice}")
        self.repairable = repairable
        self.location = location
        self.reason = reason


class UnsupportedFormat(StorageError):
    """The store was written by a newer vstate, or by one of before the first release."""

    def __init__(self, found: str, supported: int, *, is_released: bool = True) -> None:
        super().__init__(
            f"the store has format {found}, this vstate reads up to {supported}; upgrade it: {UPGRADE}"
            if is_released
            else f"the store has format {found} of before the first release: only the vstate that wrote it "
            "can read it"
        )
        self.found = found
        self.supported = supported


class StoreFull(StorageError):
    """A quota or the disk is full. Nothing was written, and nothing was evicted."""


class StoreUnavailable(StorageError):
    """The store cannot be reached or used at the moment.

    `outcome_unknown` is True if a write was under way, which may have happened or not.
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


def _short(id: str | None) -> str:
    return id[:10] if id else "nothing"
