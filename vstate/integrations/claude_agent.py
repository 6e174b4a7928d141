"""VstateSessionStore: the transcripts of the Claude Agent SDK, each session a branch of the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from vstate.aio.workers import awaited, in_thread
from vstate.display.chats import messages_in_words
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName
from vstate.integrations.opening import AsyncOpened, KeepLike, Opening, StoreLike, copied, summary
from vstate.objects.commit import microseconds
from vstate.plural import counted
from vstate.readers.chats import claude_messages
from vstate.state.snapshot import Snapshot

with framework_of("claude-agent"):
    from claude_agent_sdk import SessionStore, fold_session_summary

if TYPE_CHECKING:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

_ENTRIES: Final = "entries"
_SUMMARY: Final = "summary"
_MAIN: Final = ""
"""The subpath of the transcript of a session itself; those of its subagents have others."""


_Record = tuple[str, Any]
"""The subpath of a transcript, and an entry of it."""


class _Transcripts:
    """The index of a session's journal: the entries of each transcript, and their uuids."""

    def __init__(self) -> None:
        self.records: list[_Record] = []
        self.entries: dict[str, list[dict[str, Any]]] = {}
        self.uuids: set[tuple[str, str]] = set()

    def add(self, record: _Record) -> None:
        self.records.append(record)
        subpath, entry = record
        self.entries.setdefault(subpath, []).append(entry)
        if uuid := entry.get("uuid"):
            self.uuids.add((subpath, uuid))

    def new(self, subpath: str, entries: Iterable[dict[str, Any]]) -> list[_Record]:
        """The records of those entries that are not there, each once."""
        found, seen = [], set(self.uuids)
        for entry in entries:
            known = (subpath, entry.get("uuid") or "")
            if not known[1] or known not in seen:
                seen.add(known)
                found.append((subpath, entry))
        return found


class VstateSessionStore(AsyncOpened, SessionStore):
    """Transcripts of the Claude Agent SDK: `ClaudeAgentOptions(session_store=VstateSessionStore("./chats"))`.

    - A session is the branch `claude_agent/PROJECT/SESSION`, with its transcript and those of its subagents.
      Each batch of entries is one commit, and the summary of the session lands with it.
    - An entry with a `uuid` is appended once, also if its batch is sent again after a lost answer.
    - Entries are plain data, as the lines of the SDK's own files. They come back equal.
    - A run that goes on after its session was deleted gets NotFound, and nothing is stored: the SDK tells it
      as a MirrorErrorMessage.
    """

    def __init__(self, store: StoreLike = None, *, keep_history: bool = False, keep: KeepLike = None) -> None:
        self._opening = Opening(store, "claude_agent", keep=keep, prefix=("claude_agent",))
        self._keep_history = keep_history
        self._journals = self._opening.chats(_Transcripts, _ENTRIES)

    def branch(self, key: SessionKey | SessionListSubkeysKey) -> BranchName:
        """The name of the branch of a session."""
        return self._opening.branch(key["project_key"], key["session_id"])

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append the entries that are new, as one commit."""
        subpath, branch = key.get("subpath") or _MAIN, self.branch(key)
        given: list[Any] = copied(entries)  # before the first await: the caller may go on to change them
        beside: dict[str, Any] = {}

        def plan(known: _Transcripts) -> list[_Record]:
            new = known.new(subpath, given)
            if new and subpath == _MAIN:
                head = self._journals[branch].head
                before = None if head is None else _summary(Snapshot(self.repo, head))
                beside[_SUMMARY] = fold_session_summary(before, key, [entry for _, entry in new])["data"]
            return new

        words = messages_in_words(
            [each for entry in given for each in claude_messages(entry)], with_role=True
        )
        message = summary(": ".join(filter(None, [subpath, words or counted(len(given), "entry")])))
        await in_thread(lambda: self._journals.write(branch, plan, message, beside=beside))

    @awaited
    def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The entries of a transcript in their order, None if there is no such transcript."""
        subpath = key.get("subpath") or _MAIN
        found = self._journals.read(self.branch(key), lambda known: [*known.entries.get(subpath, ())])
        return copied(found) or None

    @awaited
    def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project, each with the time of its newest commit in milliseconds since 1970."""
        return [{"session_id": each["session_id"], "mtime": each["mtime"]} for each in self._all(project_key)]

    @awaited
    def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of the sessions of a project, with the same times."""
        return self._all(project_key)

    @awaited
    def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of the transcripts of a session's subagents, sorted."""
        return self._journals.read(self.branch(key), lambda known: sorted(filter(None, known.entries)))

    @awaited
    def delete(self, key: SessionKey) -> None:
        """Delete a session with all its transcripts; with a subpath, that transcript alone.

        The store has nothing of a deleted session afterwards. With `keep_history`, the reflog keeps it for 30
        days. The history of a session keeps a transcript that was deleted alone.
        """
        branch, subpath = self.branch(key), key.get("subpath")
        if not subpath:
            self._journals.delete(branch, keep_history=self._keep_history)
            return

        def left(known: _Transcripts) -> list[_Record]:
            return [(name, entry) for name, entry in known.records if name != subpath]

        self._journals.write(branch, left, summary(f"delete {subpath}"), anew=True)

    # Beyond the SDK

    @awaited
    def fork_session(self, key: SessionListSubkeysKey, new_session_id: str) -> None:
        """Begin a session that has the entries of another one, as they are: one more ref, however many.

        Raises NotFound without the session, and AlreadyExists if the new id is taken. The SDK's own
        `fork_session_via_store` stores the entries once more, with uuids of their own.
        """
        self._opening.copy(self.branch(key), self.branch({**key, "session_id": new_session_id}))

    def _all(self, project_key: str) -> list[SessionSummaryEntry]:
        found = self._opening.read_all(_summary, project_key)
        return [{**summary, "session_id": ids[-1]} for ids, summary in found]


def _summary(state: Snapshot) -> SessionSummaryEntry | None:
    """What the SDK made of a session's entries; None if the session has no transcript of its own."""
    data = state.get(_SUMMARY)
    if data is None:
        return None
    return {"session_id": "", "mtime": microseconds(state.commit.time) // 1000, "data": data}
