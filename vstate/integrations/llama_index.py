"""VstateChatStore and VstateStateStorage: the chats and the workflow states of LlamaIndex."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from copy import copy, deepcopy
from typing import Any, Final, Literal, Self

from vstate.aio.workers import awaited
from vstate.errors import InvalidInput
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName
from vstate.integrations.opening import (
    Chats,
    KeepLike,
    Opened,
    OpenedModel,
    Opening,
    StoreLike,
    required_path,
    summary,
)
from vstate.objects.commit import Commit
from vstate.patterns.journal import Records
from vstate.state.snapshot import Snapshot

with framework_of("llama-index"):
    from llama_index.core.bridge.pydantic import PrivateAttr, model_serializer
    from llama_index.core.llms import ChatMessage
    from llama_index.core.storage.chat_store.base import BaseChatStore
    from llama_index.core.storage.chat_store.loading import RECOGNIZED_CHAT_STORES
    from workflows.context.state_store_integration import StateRecord

_MESSAGES: Final = "messages"
_STATE: Final = "state"
_STORE_TYPE: Final = "vstate"


class VstateChatStore(OpenedModel, BaseChatStore):
    """Chats: `ChatMemoryBuffer.from_defaults(chat_store=VstateChatStore("./chats"), chat_store_key="ann")`.

    - The chat of a key is the branch `llama_index/chats/KEY`. Each change of it is one commit, which
      `vstate log` and `diff` show.
    - A message comes back as a new object, by LlamaIndex's own conversion to JSON. A message that could not
      be loaded again raises InvalidInput, and nothing changes.
    - In a pickle, a `to_dict` or the context of a workflow, it is the path of its store, and opens the store
      again. Without a path it raises TypeError there.
    """

    path: str | None = None
    """The directory of the store, by which a copy of this object opens it again."""
    _opening: Opening = PrivateAttr()
    _journals: Chats[Records] = PrivateAttr()

    def __init__(
        self,
        store: StoreLike = None,
        *,
        path: str | None = None,
        class_name: str = "VstateChatStore",
        keep: KeepLike = None,
    ) -> None:
        # The class and the path are the fields of a dump, which makes the object again.
        place = path if store is None else store
        opening = Opening(place, "llama_index.chat", keep=keep, prefix=("llama_index", "chats"))
        super().__init__(path=opening.path)
        self._opening = opening
        self._journals = opening.chats(Records, _MESSAGES)

    @model_serializer(mode="wrap")  # type: ignore[untyped-decorator]  # of a framework without types
    def custom_model_dump(self, handler: Any, info: Any) -> dict[str, Any]:
        """The path of the store, by which `from_dict` opens it again. TypeError for a store without one."""
        required_path(self)
        return {**handler(self), "class_name": self.class_name()}

    @classmethod
    def class_name(cls) -> str:
        """The name of the class in LlamaIndex's descriptions."""
        return "VstateChatStore"

    def branch(self, key: str) -> BranchName:
        """The name of the branch of a chat."""
        return self._opening.branch(key)

    def get_messages(self, key: str) -> list[ChatMessage]:
        """The messages of the chat, oldest first; none if there is no such chat."""
        return [_message(record) for record in self._journals.read(self.branch(key), list)]

    def get_keys(self) -> list[str]:
        """The keys of the chats, sorted as branches are. A chat stays one after its last message is gone."""
        return [key for (key,) in self._opening.sessions()]

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Add a message at the end of the chat. If the chat was deleted, it begins anew with this message."""
        records = _records([message])
        self._journals[self.branch(key)].append(lambda known: records, message=summary(str(message)))

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace the messages of the chat. Messages at its beginning that are equal are stored once.

        Raises NotFound if another store object has deleted the chat since this one read it.
        """
        records, message = _records(messages), summary(*map(str, messages)) or "no messages"
        self._journals.write(self.branch(key), lambda known: records, message, anew=True)

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Remove and return message `idx`, counted from 0, or from the end if negative; None if absent."""
        removed: list[Any] = []

        def without(known: Records) -> list[Any] | None:
            removed.clear()
            if not -len(known) <= idx < len(known):
                return None
            left = list(known)
            removed.append(left.pop(idx))
            return left

        self._journals[self.branch(key)].rewrite(without, message=f"delete message {idx}")
        return _message(removed[0]) if removed else None

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Remove and return the last message of the chat; None if it has none."""
        return self.delete_message(key, -1)

    def delete_messages(self, key: str, *, keep_history: bool = False) -> list[ChatMessage] | None:
        """Delete the chat and return the messages that it had before; None if there is no such chat.

        The store has nothing of it afterwards. With `keep_history`, the reflog keeps it for 30 days.
        """
        branch, messages = self.branch(key), self.get_messages(key)
        last = self._journals.delete(branch, keep_history=keep_history)
        self._opening.seen(branch, None)
        return None if last is None else messages

    async_add_message = awaited(add_message)
    aset_messages = awaited(set_messages)
    adelete_message = awaited(delete_message)
    adelete_last_message = awaited(delete_last_message)
    adelete_messages = awaited(delete_messages)


RECOGNIZED_CHAT_STORES[VstateChatStore.class_name()] = VstateChatStore  # a memory's from_dict looks here


def _records(messages: Iterable[ChatMessage]) -> list[Any]:
    """The messages as plain data. Raises InvalidInput for one that could not be loaded again."""
    records = []
    for message in messages:
        try:
            record = message.model_dump(mode="json")
            _message(record)
        except Exception as error:  # the validators of LlamaIndex and of the program may raise anything
            raise InvalidInput(
                f"a message of role {message.role.value!r} cannot be stored as JSON and loaded again: {error}"
            ) from error
        records.append(record)
    return records


def _message(record: Any) -> ChatMessage:
    return ChatMessage.model_validate(deepcopy(record))


class VstateStateStorage(Opened):
    """The state of one run of a workflow: `StateStoreFacade(VstateStateStorage("run 1", "./runs"), MyState)`.

    - The state is the key `state` of the branch `llama_index/runs/RUN`, and each save is one commit.
    - A change by `set`, `set_state`, `clear` or `edit_state` lands only on the state that it has read. If
      another process saved meanwhile, the change raises RefMoved, and nothing is lost: make it again.
    - The text comes from the workflow's serializer, and the store never loads it.
    - A save beside a deletion of the state raises NotFound: load the state first.
    """

    _is_session = False
    _at: Commit | Literal["anywhere"] | None = "anywhere"
    """The commit that a save stands on."""

    def __init__(self, run_id: str, store: StoreLike = None, *, keep: KeepLike = None) -> None:
        self._opening = Opening(store, "llama_index.run", keep=keep, prefix=("llama_index", "runs"))
        self._run_id = run_id
        self.branch = self._opening.branch(run_id)
        """The name of the run's branch."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run_id

    @awaited
    def load(self) -> StateRecord | None:
        """The state as it was saved last; None before the first save."""
        found = self._opening.read(self.branch, lambda stored: (stored.commit, _record(stored)))
        head, record = found or (None, None)
        if self._is_session:
            self._at = head
        return record

    @awaited
    def save(self, record: StateRecord) -> None:
        """Replace the state, wherever the branch is; in a session, where it was loaded."""
        if self._at == "anywhere":
            self._save(record, "save the state")
        else:
            new = _stored(record)
            saved = self._opening.commit_on(self.branch, self._at, new, message="save the state")
            self._at = saved or self._at

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Self]:
        """A storage for one load and one save. The save raises RefMoved if the state has moved since."""
        session = self if self._is_session else copy(self)
        session._is_session = True
        yield session

    def to_handle(self) -> dict[str, Any]:
        """The name of this state in the store, for `parse_own_handle`."""
        return {"store_type": _STORE_TYPE, "run_id": self._run_id}

    def parse_own_handle(self, payload: dict[str, Any]) -> str | None:
        """The id of the run that a handle of this class names; None for another payload."""
        run_id = payload.get("run_id")
        return run_id if payload.get("store_type") == _STORE_TYPE and isinstance(run_id, str) else None

    @awaited
    def copy_from_handle(self, handle: str) -> None:
        """Take over the state of another run of this store, by one commit; none if that run has none."""
        record = self._opening.read(self._opening.branch(handle), _record, follows=False)
        self._save(record, f"state of run {handle}")

    def _save(self, record: StateRecord | None, message: str) -> None:
        changes = ({}, [_STATE]) if record is None else (_stored(record), ())
        self._opening.commit(self.branch, lambda state: changes, message=summary(message))


def _record(state: Snapshot) -> StateRecord | None:
    stored = state.get(_STATE)
    if stored is None:
        return None
    tree = stored["tree"]
    data = stored["text"] if tree is None else json.dumps(tree)
    return StateRecord(data=data, state_type=stored["type"], state_module=stored["module"])


def _stored(record: StateRecord) -> dict[str, Any]:
    tree = _tree(record.data)
    text = record.data if tree is None else None
    return {_STATE: {"type": record.state_type, "module": record.state_module, "tree": tree, "text": text}}


def _tree(data: Any) -> Any:
    """The data of a state's JSON text, so that a diff shows its parts; None if it would be another text."""
    if not isinstance(data, str):
        raise InvalidInput(f"the state of a run is the text of a serializer, not {type(data).__name__}")
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return tree if json.dumps(tree) == data else None
