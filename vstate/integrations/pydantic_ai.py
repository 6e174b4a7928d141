"""VstateConversationStore: the conversations of Pydantic AI, each a branch of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from vstate.aio.workers import awaited, in_thread
from vstate.errors import InvalidInput, RefMoved
from vstate.integrations import framework_of
from vstate.integrations.opening import AsyncOpened, KeepLike, Opening, StoreLike, summary
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path
from vstate.recent import Recent
from vstate.state.snapshot import Snapshot

with framework_of("pydantic-ai"):
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_core import PydanticSerializationError

_T = TypeVar("_T")

_PREFIX: Final = "pydantic_ai"
_RECORD: Final = "record"
_MESSAGES: Final = "messages"
_MOST: Final = 10_000  # entries whose branches stay in memory

_RECORDS: Final = TypeAdapter(ConversationRecord)
# As in the JSON of Pydantic AI, bytes are base64.
_ENTRIES: Final = TypeAdapter(
    list[ConversationEntry], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)


class VstateConversationStore(AsyncOpened, ConversationStore):
    """Pydantic AI's conversations on a store: `VstateConversationStore("./chats")`.

    - A conversation is the branch `pydantic_ai/CONVERSATION`, with the keys `record` and `messages/ENTRY`.
      A save is one commit, with its messages and the record: both land, or neither.
    - A fork shares the objects of its messages, and keeps them when the other conversation is deleted.
    - Messages are stored as the JSON of Pydantic AI, and reading them loads no class but its own. So bytes
      that a tool returned are base64 in the messages that come back.
    - `delete` removes the messages from the store, unless a fork has them. With `keep_history`, the reflog
      keeps them for 30 days. A save beside a deletion gets ConversationConflict.

    A writer that was overtaken gets ConversationConflict. Raises InvalidInput for a message that is no JSON.
    """

    def __init__(self, store: StoreLike = None, *, keep_history: bool = False, keep: KeepLike = None) -> None:
        self._opening = Opening(store, "pydantic_ai", keep=keep, prefix=(_PREFIX,))
        self._keep_history = keep_history
        # The branch of an entry, which is asked for by its id alone. Only a hint: other branches come next.
        self._places = Recent[str, str](_MOST)

    # The calls of Pydantic AI

    @awaited
    def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of the conversation, None if there is no such conversation."""
        branch = self._opening.branch(conversation_id)
        return self._opening.read(branch, self._record, follows=False)

    @awaited
    def read_records(self, *, scope: str | None = None, limit: int | None = None) -> list[ConversationRecord]:
        """The records, or those of the scope. The one that was saved last is first."""
        labels = {} if scope is None else {"scope": scope}
        found = self._opening.read_all(self._record, labels=labels)
        records = [record for _, record in found if scope in (None, record.scope)]
        return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store the record and its new entries as one commit; ConversationConflict, and nothing is stored."""
        # Before the first await: the program may go on to change the messages.
        try:
            stored = _RECORDS.dump_python(record, mode="json")
            entries = _ENTRIES.dump_python(list(new_entries), mode="json")
            new = {_key(entry["id"]): entry for entry in entries}
        except PydanticSerializationError as error:
            raise InvalidInput(
                f"the conversation {record.conversation_id!r} cannot be stored as JSON: {error}"
            ) from error
        message = _summary(new_entries) or f"record {record.revision}"
        await in_thread(lambda: self._write(stored, new, expected_revision, message))

    @awaited
    def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete the conversation, but no message of a fork; ConversationConflict at another revision."""
        branch = self._opening.branch(conversation_id)
        while (seen := self._expected(branch, conversation_id, expected_revision)) is not None:
            if self._opening.delete(branch, keep_history=self._keep_history, seen=seen) is not None:
                return

    @awaited
    def read_entry(self, entry_id: str) -> ConversationEntry:
        """The entry; KeyError if no conversation has it."""
        return self._with(entry_id, lambda state: _entry(state[_key(entry_id)]))

    @awaited
    def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to `head_id`, or the last `limit` of them; KeyError if no conversation has it."""
        if head_id is None:
            return []

        def look(state: Snapshot) -> list[ConversationEntry]:
            if limit is None:
                for key in state.keys(f"{_MESSAGES}/"):
                    state[key]  # forwards, so that many are read at once
            return [_entry(stored) for stored in islice(_line(state, head_id), limit)][::-1]

        return self._with(head_id, look)

    # The keys of a conversation

    def _record(self, state: Snapshot) -> ConversationRecord | None:
        stored = state.get(_RECORD)
        if stored is None:
            return None
        record = _RECORDS.validate_python(stored)
        branch = self._opening.branch(record.conversation_id)
        for entry_id in (record.head_id, *record.branches):
            if entry_id is not None:
                self._places[entry_id] = branch
        return record

    def _write(
        self, record: dict[str, Any], new: dict[str, Any], expected_revision: str | None, message: str
    ) -> None:
        branch = self._opening.branch(record["conversation_id"])
        scope = {} if record["scope"] is None else {"scope": record["scope"]}
        while True:
            head = self._expected(branch, record["conversation_id"], expected_revision)
            needed = record["head_id"]
            while needed is not None and _key(needed) in new:
                needed = new[_key(needed)]["parent_id"]
            copied = self._copied(head, needed, record)
            try:
                self.repo.commit(
                    branch,
                    set={_RECORD: record, **copied, **new, **({} if head else self._opening.marks)},
                    expect=head,
                    labels={**(branch.labels or {}), **scope},
                    message=message,
                )
            except RefMoved:
                continue
            return

    def _expected(self, branch: str, conversation_id: str, revision: str | None) -> Commit | None:
        """The newest commit of the branch; ConversationConflict if its record has another revision."""
        look = self._opening.read(branch, lambda state: (state.commit, self._record(state)), follows=False)
        head, record = look or (None, None)
        if (None if record is None else record.revision) != revision:
            raise ConversationConflict(conversation_id)
        return head

    def _copied(self, head: Commit | None, entry_id: str | None, record: dict[str, Any]) -> dict[str, Any]:
        """The entries of another conversation that this one needs: those up to where it was forked."""
        if entry_id is None or (head is not None and _key(entry_id) in Snapshot(self.repo, head)):
            return {}

        def look(state: Snapshot) -> dict[str, Any]:
            line = _line(state, entry_id) if _key(entry_id) in state else ()
            return {_key(stored["id"]): stored for stored in line}

        source = record["forked_from"]
        found = source and self._opening.read(self._opening.branch(str(source)), look, follows=False)
        if not found:
            raise ConversationConflict(record["conversation_id"])
        return dict(found)

    def _with(self, entry_id: str, look: Callable[[Snapshot], _T]) -> _T:
        """What a function makes of a conversation that has the entry; KeyError if there is none."""

        def with_entry(state: Snapshot) -> _T | None:
            return look(state) if _key(entry_id) in state else None

        place = self._places.get(entry_id)
        found = None if place is None else self._opening.read(place, with_entry, follows=False)
        if found is None:
            found = next((each for _, each in self._opening.read_all(with_entry)), None)
        if found is None:
            raise KeyError(entry_id)
        return found


def _key(entry_id: str) -> str:
    return join_path(_MESSAGES, entry_id)


def _entry(stored: dict[str, Any]) -> ConversationEntry:
    return _ENTRIES.validate_python([stored])[0]


def _line(state: Snapshot, entry_id: str | None) -> Iterator[dict[str, Any]]:
    """The stored entries from this one back to the first."""
    while entry_id is not None:
        stored = state[_key(entry_id)]
        yield stored
        entry_id = stored["parent_id"]


def _summary(entries: Iterable[ConversationEntry]) -> str:
    """The message of the commit: the kind of each part, with its text."""
    parts = [part for entry in entries for part in entry.message.parts]
    texts = [(part.part_kind, getattr(part, "content", None)) for part in parts]
    return summary(*(f"{kind}: {text.strip()}" if isinstance(text, str) else kind for kind, text in texts))
