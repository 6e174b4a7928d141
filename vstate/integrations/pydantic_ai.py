"""VstateConversationStore: the conversations of Pydantic AI, each a branch of the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from vstate.aio.workers import awaited, in_thread
from vstate.errors import InvalidInput, NotFound, RefMoved
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
      keeps them for 30 days. A conversation that is created again under the same id, at the moment of its
      deletion, may go too. A save beside a deletion gets ConversationConflict.

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
        return self._record(branch, self.repo.newest(branch))

    @awaited
    def read_records(self, *, scope: str | None = None, limit: int | None = None) -> list[ConversationRecord]:
        """The records, or those of the scope. The one that was saved last is first."""
        labels = {} if scope is None else {"scope": scope}
        names = self.repo.branch_names(f"{_PREFIX}/", labels=labels)
        found = (self._record(name, head) for name, head in self.repo.branches(names).items())
        records = [each for each in found if each is not None and scope in (None, each.scope)]
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
        while True:
            head = self._expected(branch, conversation_id, expected_revision)
            keys = [] if head is None else list(Snapshot(self.repo, head).keys())
            try:
                # The commit decides between this call and a save: a deleted branch would not be compared.
                self.repo.commit(branch, delete=keys, expect=head, message="deleted")
            except RefMoved:
                continue
            break
        try:
            self.repo.delete_branch(branch, forget=not self._keep_history)
        except (NotFound, RefMoved):
            pass  # another call deleted the empty branch, or created the conversation again

    @awaited
    def read_entry(self, entry_id: str) -> ConversationEntry:
        """The entry; KeyError if no conversation has it."""
        return _entry(self._state_with(entry_id)[_key(entry_id)])

    @awaited
    def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to `head_id`, or the last `limit` of them; KeyError if no conversation has it."""
        if head_id is None:
            return []
        state = self._state_with(head_id)
        if limit is None:
            for key in state.keys(f"{_MESSAGES}/"):
                state[key]  # forwards, so that many are read at once
        found: list[ConversationEntry] = []
        for stored in _line(state, head_id):
            if limit is not None and len(found) >= limit:
                break
            found.append(_entry(stored))
        return found[::-1]

    # The keys of a conversation

    def _record(self, branch: str, head: Commit | None) -> ConversationRecord | None:
        stored = None if head is None else Snapshot(self.repo, head).get(_RECORD)
        if stored is None:
            return None
        record = _RECORDS.validate_python(stored)
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
        head = self.repo.newest(branch)
        record = self._record(branch, head)
        if (None if record is None else record.revision) != revision:
            raise ConversationConflict(conversation_id)
        return head

    def _copied(self, head: Commit | None, entry_id: str | None, record: dict[str, Any]) -> dict[str, Any]:
        """The entries of another conversation that this one needs: those up to where it was forked."""
        if entry_id is None or (head is not None and _key(entry_id) in Snapshot(self.repo, head)):
            return {}
        source = record["forked_from"]
        other = None if source is None else self.repo.newest(self._opening.branch(source))
        state = None if other is None else Snapshot(self.repo, other)
        if state is None or _key(entry_id) not in state:
            raise ConversationConflict(record["conversation_id"])
        return {_key(stored["id"]): stored for stored in _line(state, entry_id)}

    def _state_with(self, entry_id: str) -> Snapshot:
        """A conversation that has the entry; KeyError if there is none."""
        for head in self._heads(entry_id):
            state = Snapshot(self.repo, head)
            if _key(entry_id) in state:
                return state
        raise KeyError(entry_id)

    def _heads(self, entry_id: str) -> Iterator[Commit]:
        place = self._places.get(entry_id)
        head = None if place is None else self.repo.newest(place)
        if head is not None:
            yield head
        yield from self.repo.branches(self.repo.branch_names(f"{_PREFIX}/")).values()


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
