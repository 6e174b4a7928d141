"""VstatePersister and AsyncVstatePersister: the states of Burr's applications, each one a branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vstate.aio.workers import awaited, in_thread
from vstate.errors import AlreadyExists, InvalidInput
from vstate.integrations import framework_of
from vstate.integrations.opening import AsyncOpened, Changes, KeepLike, Opened, Opening, StoreLike, summary
from vstate.patterns.fields import STEP, Fields, Packed
from vstate.state.base import ReadableState
from vstate.state.snapshot import Snapshot

with framework_of("burr"):
    from burr.core import State
    from burr.core.persistence import AsyncBaseStatePersister, BaseStatePersister, PersistedStateData
    from burr.core.state import FIELD_SERIALIZATION

_PREFIX: Final = "burr"
_STATE: Final = "state"


class _Steps:
    """The steps of applications, one commit each. Its tree is the state after the step: `step` has the id,
    action and status of the step, and the names of the fields. The last commit of a branch has its greatest
    sequence id.
    """

    _opening: Opening

    def __init__(
        self,
        store: StoreLike = None,
        *,
        serde_kwargs: Mapping[str, Any] | None = None,
        keep: KeepLike = None,
    ) -> None:
        self._opening = Opening(store, "burr", keep=keep, prefix=("burr",))
        self._serde_kwargs = dict(serde_kwargs or {})
        self._fields = Fields(_STATE)

    def set_serde_kwargs(self, serde_kwargs: Mapping[str, Any]) -> None:
        """Give Burr's serializers these arguments from now on."""
        self._serde_kwargs = dict(serde_kwargs)

    def _load(
        self, /, partition_key: str | None, app_id: str | None, sequence_id: int | None = None, **kwargs: Any
    ) -> PersistedStateData | None:
        """The state after the step, by default the last one, or None.

        Without `app_id` it is the state of the application of the partition that was saved last.
        """
        if app_id is None:
            app_id = next(iter(self._list(partition_key)), None)
            if app_id is None:
                return None

        def look(newest: Snapshot) -> PersistedStateData | None:
            repo, head = newest.repo, newest.commit
            for commit in [head] if sequence_id is None else repo.log(head, first_parent=True):
                state = Snapshot(repo, commit)
                step = state[STEP]
                if sequence_id in (None, step["sequence_id"]):
                    return {
                        "partition_key": partition_key or "",
                        "app_id": app_id,
                        "sequence_id": step["sequence_id"],
                        "position": step["position"],
                        "state": State.deserialize(self._fields.load(state), **self._serde_kwargs),
                        "created_at": commit.time.isoformat(),
                        "status": step["status"],
                    }
            return None

        return self._opening.read(self._opening.branch(partition_key or "", app_id), look)

    def _list(self, /, partition_key: str | None, **kwargs: Any) -> list[str]:
        """The applications of the partition. The one that was saved last is first."""
        found = self._opening.sessions(partition_key or "")
        return [app for _, app in sorted(found, key=lambda ids: found[ids].time, reverse=True)]

    def _delete(self, partition_key: str | None, app_id: str, *, keep_history: bool = False) -> bool:
        """Delete an application, and return whether there was one.

        The store has nothing of it afterwards. With `keep_history`, the reflog keeps it for 30 days.
        """
        branch = self._opening.branch(partition_key or "", app_id)
        return self._opening.delete(branch, keep_history=keep_history) is not None

    def _packed(self, state: State[Any]) -> Packed:
        """The fields of a state; InvalidInput for one that is no plain data."""
        try:
            given = state.get_all()
            return self._fields.pack(
                {
                    name: value if name in FIELD_SERIALIZATION else _exact(given[name], value)
                    for name, value in state.serialize(**self._serde_kwargs).items()
                }
            )
        except InvalidInput as error:
            raise InvalidInput(
                f"{error}; register a serializer for the field with Burr's register_field_serde"
            ) from error

    def _saving(
        self,
        /,
        partition_key: str | None,
        app_id: str,
        sequence_id: int,
        position: str,
        state: State[Any],
        status: str,
        **kwargs: Any,
    ) -> Callable[[], None]:
        """Take the state of a step as it is now, and return the function that commits the step."""
        branch, packed = self._opening.branch(partition_key or "", app_id), self._packed(state)
        step = {"sequence_id": sequence_id, "position": position, "status": status}
        message = summary(f"step {sequence_id}: {position} ({status})")

        def changes(state: ReadableState) -> Changes | None:
            last = state.get(STEP)
            if last is None or sequence_id > last["sequence_id"]:
                return self._fields.changes(branch, state, packed, step)
            if {**step, "fields": packed.names} == last and self._fields.is_same(state, packed):
                return None  # saved again, after a lost answer
            raise AlreadyExists(
                f"the branch {branch!r} has step {last['sequence_id']}, so step {sequence_id} is not saved: "
                "another run of the application saved it. Load the application again, or give this run an "
                "app_id of its own",
                name=branch,
            )

        def save() -> None:
            self._fields.landed(branch, self._opening.commit(branch, changes, message=message), packed)

        return save


class VstatePersister(Opened, _Steps, BaseStatePersister):
    """A persister of Burr's states: `ApplicationBuilder().with_state_persister(VstatePersister("./apps"))`.

    - An application is the branch `burr/PARTITION/APP`, and each step is one commit. A field that did not
      change takes no room in the next step. Each item of a list of dicts or texts is stored once.
    - The steps of an application have growing sequence ids. A run that another run overtook raises
      AlreadyExists when it saves, and changes nothing. A step that is saved again as it is changes nothing.
      A run whose application was deleted raises NotFound when it saves: load the application first.
    - Burr's own serializers decide how a value is stored, and which classes are loaded. `serde_kwargs` go to
      them: give `{"allowlist": ["yourapp"]}` if the state has models of pydantic. Bytes, tuples, sets and
      dates, which Burr would store as their `str()`, come back equal; other such objects are refused.

    Raises InvalidInput for a field that Burr's serializers do not turn into plain data.
    """

    cleanup = Opened.close

    def is_initialized(self) -> bool:
        """True: a store of vstate needs no preparation."""
        return True

    def save(self, *args: Any, **options: Any) -> None:
        """Store the state after a step as one commit; AlreadyExists if there is this step or a later one."""
        self._saving(*args, **options)()

    load = _Steps._load
    list_app_ids = _Steps._list
    delete_app = _Steps._delete


class AsyncVstatePersister(AsyncOpened, _Steps, AsyncBaseStatePersister):
    """`VstatePersister` for applications that are built with `abuild()`.

    A cancelled call has ended before the cancellation comes out.
    """

    cleanup = AsyncOpened.close

    async def is_initialized(self) -> bool:
        """True: a store of vstate needs no preparation."""
        return True

    async def save(self, *args: Any, **options: Any) -> None:
        """As `VstatePersister.save`."""
        # Before the first await: the application may go on to change the values.
        await in_thread(self._saving(*args, **options))

    load = awaited(_Steps._load)
    list_app_ids = awaited(_Steps._list)
    delete_app = awaited(_Steps._delete)


def _exact(given: Any, serialized: Any) -> Any:
    """The value as Burr made it, with each object itself where Burr would store its `str()`."""
    if type(given) is dict and type(serialized) is dict:
        return {name: _exact(given[name], value) for name, value in serialized.items()}
    if type(given) is list and type(serialized) is list:
        return [_exact(one, value) for one, value in zip(given, serialized, strict=True)]
    return given if isinstance(serialized, str) and not isinstance(given, str) else serialized
