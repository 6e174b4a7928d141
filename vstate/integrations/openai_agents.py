"""VstateSession: a session of the OpenAI Agents SDK whose branches are branches of the store."""

from __future__ import annotations

import json
import logging
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Final, NamedTuple

from vstate.aio.workers import awaited, in_thread
from vstate.errors import InvalidInput, RefMoved, VStateError
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName, branches_below
from vstate.integrations.opening import KeepLike, Opened, Opening, StoreLike, copied, first_labels, summary
from vstate.patterns.journal import Journal

with framework_of("openai-agents"):
    from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit

_log = logging.getLogger("vstate")

Item = Any
"""An item of a conversation: a dict of plain data, as the API of the model takes it."""

READER: Final = "openai_agents"
ITEMS: Final = "items"
_MAIN: Final = "main"
_PREVIEW: Final = 100  # characters of a turn
_COUNTS: Final = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS: Final = ("input_tokens_details", "output_tokens_details")

_SEARCHES: Final = ("tool_search_call", "tool_search_output")
_NAMED_BY_TYPE: Final = frozenset(
    f"{tool}_call"
    for tool in ("apply_patch", "code_interpreter", "computer", "file_search", "shell", "web_search")
)
_CALLS: Final = _NAMED_BY_TYPE | {
    "custom_tool_call",
    "function_call",
    "mcp_approval_request",
    "mcp_call",
    "tool_call",
    "tool_search_call",
}


class _Entry(NamedTuple):
    """An item of a branch: the number of its turn, the time at which it was added, and the item."""

    turn: int
    at: str
    item: Item


class History:
    """The index of a branch's journal: its items, and the usage of its turns."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.added: list[Any] = []  # those of the items
        self.entries: list[_Entry] = []
        self.usage: dict[int, dict[str, Any]] = {}
        self.turns = 0
        self.is_gone = False

    def add(self, record: Any) -> None:
        self.records.append(record)
        if "item" in record:
            item = record["item"]
            self.added.append(record)
            self.turns += _is_user(item)
            self.entries.append(_Entry(self.turns, record["at"], item))
        elif "usage" in record:
            self.usage[record["turn"]] = record["usage"]
        else:
            self.is_gone = True

    def before(self, turn: int) -> list[Any]:
        """The records of the items before a turn, without usage."""
        return self.added[: self._place(turn)]

    def without_last(self) -> list[Any]:
        """The records without the last item, and without the usage of its turn if that has no other item."""
        last = max(place for place, record in enumerate(self.records) if "item" in record)
        turn = self.entries[-1].turn
        is_alone = len(self.entries) < 2 or self.entries[-2].turn < turn
        return [
            record
            for place, record in enumerate(self.records)
            if place != last and not (is_alone and record.get("turn") == turn)
        ]

    def first_at(self, turn: int) -> str | None:
        """The time of a turn's first item: it tells the turn from a later one with its number."""
        place = self._place(turn)
        is_there = place < len(self.entries) and self.entries[place].turn == turn
        return self.entries[place].at if is_there else None

    def _place(self, turn: int) -> int:
        """How many items are before a turn."""
        return bisect_left(self.entries, turn, key=lambda entry: entry.turn)


def _cleared(branch: str, history: History) -> list[Any]:
    """The records of a branch after the session was cleared: its name stays taken."""
    return [] if branch == _MAIN else [{"gone": "cleared"}]


class _GoneError(Exception):
    """The branch was deleted, or the session cleared."""


class VstateSession(Opened):
    """A session of the OpenAI Agents SDK: `Runner.run(agent, text, session=VstateSession("ann", "./chats"))`.

    It has the methods of the SDK's `AdvancedSQLiteSession`, and stands wherever a `Session` can.

    - `store` is a KVStore, a path, a URL, or None for memory. Many sessions may share a KVStore. A store that
      was opened here is closed by `close()`, or at the end of the `with` block.
    - `session_settings` may have the `limit` of `get_items`, as in the SDK.
    - A conversation is a branch, `openai/SESSION/main`, and each change of it is one commit: `vstate log`
      shows who added items, and `vstate diff` which. `create_branch_from_turn` shares all items before the
      turn: it costs one commit. A cleared session and a deleted branch stay in the history of their branch.
    - An item is plain data. It comes back exactly, with the order of its keys.

    Tasks, threads and processes may share a session; calls that are not awaited one after the other may
    happen in any order. A cancelled call has ended before the cancellation comes out. If another process
    deletes the branch that this object is on, or clears the session, the object goes on with `main`.
    """

    def __init__(
        self,
        session_id: str,
        store: StoreLike = None,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        keep: KeepLike = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(session_settings or {})
        self._opening = Opening(store, READER, keep=keep, prefix=("openai",))
        self._opening.branch(session_id)  # refuses an id that makes no name
        self._branch = _MAIN
        self._journals = self._opening.chats(History, ITEMS)
        self._is_closed = False

    def close(self) -> None:
        """Close the store if it was opened here."""
        self._is_closed = True
        super().close()

    @property
    def current_branch(self) -> str:
        """The branch that new items go to."""
        return self._branch

    # The session of the SDK

    @awaited
    def get_items(self, limit: int | None = None, branch_id: str | None = None) -> list[Item]:
        """The items of a branch, oldest first: all, or the last `limit` of them. A negative limit is none."""
        most = resolve_session_limit(limit, self.session_settings)
        entries = self._history(branch_id).entries
        if most is not None and most >= 0:
            entries = entries[max(len(entries) - most, 0) :]
        return copied([entry.item for entry in entries])

    async def add_items(self, items: list[Item]) -> None:
        """Add items to the current branch, by one commit. Raises InvalidInput for an item of other data."""
        self._require_open()
        if not items:
            return
        branch, now = self._branch, _now()
        records = copied([{"at": now, "item": item} for item in items])
        message = summary(f"add {', '.join(map(_kind, items))}")

        def plan(history: History) -> Iterable[Any]:
            _require_present(history)
            return records

        await in_thread(lambda: self._change(branch, lambda journal: journal.append(plan, message=message)))

    async def pop_item(self) -> Item | None:
        """Remove and return the newest item of the current branch; None if it has none."""
        branch = self._branch
        popped: list[Item] = []

        def plan(history: History) -> Iterable[Any] | None:
            _require_present(history)
            popped[:] = [entry.item for entry in history.entries[-1:]]
            return history.without_last() if popped else None

        await in_thread(
            lambda: self._change(branch, lambda journal: journal.rewrite(plan, message="pop an item"))
        )
        return copied(popped[0]) if popped else None

    async def clear_session(self) -> None:
        """Remove all items of all branches. Their names stay taken, and `main` is the current branch again.

        Each branch is one commit, `main` the last. After an interruption, call it again.
        """

        def clear() -> None:
            for name in sorted(self._branches(), key=lambda name: name == _MAIN):
                self._journal(name).rewrite(partial(_cleared, name), message="clear the session")
            self._branch = _MAIN

        await in_thread(clear)

    # Branches

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Go to a new branch with the items before a user's message; its name.

        Turns are counted from 1, one for each message of the user. Raises InvalidInput if the current branch
        has no such turn, or if a branch of the session has or had this name.
        """
        if branch_name is not None and not branch_name.strip():
            raise InvalidInput("Branch name cannot be empty")

        own = f"branch_from_turn_{turn_number}_{int(time.time())}"
        current = self._branch

        def names() -> Iterable[str]:
            if branch_name:
                return [branch_name]
            number = len(self.repo.branch_names(self._ref(own))) + 1  # free, unless somebody chose it
            return (f"{own}_{number}" if number > 1 else own for number in count(number))

        def fork(name: str, journal: Journal[History]) -> None:
            def plan(history: History) -> Iterable[Any]:
                _require_present(history)
                if turn_number < 1 or history.first_at(turn_number) is None:
                    raise InvalidInput(
                        f"Turn {turn_number} does not contain a user message in branch {self._branch!r}"
                    )
                return history.before(turn_number)

            ref = self._ref(name)
            journal.fork(ref, plan, message=f"branch from turn {turn_number}", labels=first_labels(ref, None))

        def begin() -> str:
            for name in names():
                with suppress(RefMoved):
                    self._change(current, partial(fork, name))
                    self._branch = name
                    return name
            raise InvalidInput(
                f"Branch {branch_name!r} has already been used in this session: choose another name"
            )

        return await in_thread(begin)

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """As `create_branch_from_turn`, for the first turn of the user that has the text."""
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise InvalidInput(f"No user turns found containing {search_term!r}")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Make a branch the current one. Raises InvalidInput if there is none of this name."""

        def switch() -> None:
            self._require_branch(branch_id)
            self._branch = branch_id

        await in_thread(switch)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Remove all items of a branch other than main. Its name stays taken.

        Raises InvalidInput for the current branch; with `force`, main is the current branch then.
        """
        if not branch_id.strip():
            raise InvalidInput("Branch ID cannot be empty")
        if branch_id == _MAIN:
            raise InvalidInput("Cannot delete the 'main' branch")
        if branch_id == self.current_branch and not force:
            raise InvalidInput(
                f"Cannot delete current branch {branch_id!r}: switch to another branch, or give force=True"
            )

        def delete() -> None:
            self._require_branch(branch_id)
            self._journal(branch_id).rewrite(
                lambda history: [{"gone": "deleted"}], message="delete the branch"
            )
            self._leave(branch_id)

        await in_thread(delete)

    @awaited
    def list_branches(self) -> list[dict[str, Any]]:
        """The branches with items, `main` first, then by name: `branch_id`, `message_count`, `user_turns`,
        `is_current`, and `created_at`, the time of the first item."""
        self._history(None)
        found = {name: self._journal(name).refresh() for name in self._branches()}
        return [
            {
                "branch_id": name,
                "message_count": len(history.entries),
                "user_turns": history.turns,
                "is_current": name == self._branch,
                "created_at": history.entries[0].at,
            }
            for name, history in sorted(found.items(), key=lambda one: one[0] != _MAIN)
            if history.entries
        ]

    # Turns and tools

    @awaited
    def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The messages of the user: `turn`, `content` as a short text, `full_content`, `timestamp`, and
        `can_branch`, which is true."""
        return [_turn(entry, _PREVIEW) for entry in self._asked(branch_id)]

    @awaited
    def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """As `get_conversation_turns`, those that have the text. ASCII letters match in both cases."""
        pattern = re.compile(re.escape(search_term), re.IGNORECASE | re.ASCII)
        return [
            _turn(entry, None)
            for entry in self._asked(branch_id)
            if any(map(pattern.search, _texts(entry.item.get("content", ""))))
        ]

    @awaited
    def get_conversation_by_turns(
        self, branch_id: str | None = None
    ) -> dict[int, list[dict[str, str | None]]]:
        """By turn, the `type` and the `tool_name` of each item."""
        turns: dict[int, list[dict[str, str | None]]] = {}
        for turn, _, item in self._history(branch_id).entries:
            turns.setdefault(turn, []).append({"type": _kind(item), "tool_name": _tool(item)})
        return turns

    @awaited
    def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """How often each tool was called in each turn: its name, the count, the turn; in order of turn."""
        entries = self._history(branch_id).entries
        calls = Counter((turn, _tool(item)) for turn, _, item in entries if _kind(item) in _CALLS)
        # A search that the server made may have left its output only.
        outputs = Counter((turn, _tool(item)) for turn, _, item in entries if _kind(item) == _SEARCHES[1])
        calls.update({call: count for call, count in outputs.items() if call not in calls})
        return sorted(
            ((name or "", count, turn) for (turn, name), count in calls.items()), key=itemgetter(2, 0)
        )

    # Usage

    async def store_run_usage(self, result: Any) -> None:
        """Store the usage of a run with the newest turn of the current branch, if there is one.

        A failure is logged, and not raised: the run has succeeded.
        """
        usage = result.context_wrapper.usage
        if usage is None:
            return
        branch = self._branch
        details = {name: _details(getattr(usage, name, None)) for name in _DETAILS}
        stored = {name: getattr(usage, name) or 0 for name in _COUNTS} | details

        def store() -> None:
            journal = self._journal(branch)
            history = journal.refresh()
            turn, first = history.turns, history.first_at(history.turns)

            def plan(history: History) -> Iterable[Any]:
                is_there = first is not None and history.first_at(turn) == first
                return [{"turn": turn, "usage": stored}] if is_there else []

            journal.append(plan, message=f"usage of turn {turn}")

        try:
            await in_thread(store)
        except VStateError:
            _log.exception("the usage of a run was not stored")

    @awaited
    def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """The usage of a branch, or of all branches, in sum; None if none is stored."""
        names = [branch_id] if branch_id else self._branches()
        turns = [usage for name in names for usage in self._journal(name).refresh().usage.values()]
        if not turns:
            return None
        return {name: sum(usage[name] for usage in turns) for name in _COUNTS} | {"total_turns": len(turns)}

    @awaited
    def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """The usage of a turn, empty if none is stored; or that of all turns, with `user_turn_number`."""
        usage = self._history(branch_id).usage
        if user_turn_number is not None:
            return copied(usage.get(user_turn_number, {}))
        return copied([{"user_turn_number": turn, **usage[turn]} for turn in sorted(usage)])

    # The journals of the branches

    def _ref(self, branch: str) -> BranchName:
        return self._opening.branch(self.session_id, branch)

    def _branches(self) -> list[str]:
        """The names of the branches of the session, those that are gone too."""
        return [ids[-1] for ids in branches_below(self.repo, "openai", self.session_id).values()]

    def _journal(self, branch: str) -> Journal[History]:
        self._require_open()
        return self._journals[self._ref(branch)]

    def _history(self, branch: str | None) -> History:
        """The history of a branch, by default the current one."""
        if branch is not None:
            return self._journal(branch).refresh()
        current = self._branch
        history = self._journal(current).refresh()
        if not history.is_gone:
            return history
        self._leave(current)
        return self._journal(self._branch).refresh()

    def _asked(self, branch: str | None) -> list[_Entry]:
        return [entry for entry in self._history(branch).entries if _is_user(entry.item)]

    def _change(self, branch: str, change: Callable[[Journal[History]], object]) -> None:
        """Change the branch that was current at the call; main, if that branch is gone."""
        try:
            change(self._journal(branch))
        except _GoneError:
            self._leave(branch)
            change(self._journal(_MAIN))

    def _leave(self, branch: str) -> None:
        if self._branch == branch:
            self._branch = _MAIN

    def _require_branch(self, branch: str) -> None:
        history = self._journal(branch).refresh()
        if history.is_gone or self._journal(branch).head is None:
            raise InvalidInput(f"Branch {branch!r} does not exist")

    def _require_open(self) -> None:
        if self._is_closed:
            raise InvalidInput(f"the session {self.session_id!r} is closed: open it again")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _require_present(history: History) -> None:
    if history.is_gone:
        raise _GoneError


def _is_user(item: Item) -> bool:
    return isinstance(item, Mapping) and item.get("role") == "user"


def _kind(item: Item) -> str:
    """The role of a message of the user or the assistant, or the type of any other item."""
    if not isinstance(item, Mapping):
        return "other"
    role = item.get("role")
    return str(role if role in ("user", "assistant") else item.get("type") or "other")


def _tool(item: Item) -> str | None:
    """The name of the tool that an item is about, with the server or the namespace that the tool is in."""
    if not isinstance(item, Mapping):
        return None
    kind, name = item.get("type"), item.get("name")
    if kind in _SEARCHES:
        return "tool_search"
    if kind in _NAMED_BY_TYPE:
        return str(kind)
    where = item.get("server_label" if kind in ("mcp_call", "mcp_approval_request") else "namespace")
    if name is None:
        return str(where) if where and kind in ("mcp_call", "mcp_approval_request") else None
    return f"{where}.{name}" if where and where != name else str(name)


def _texts(content: Any) -> list[str]:
    """The texts of a message."""
    if isinstance(content, str):
        return [content]
    return [str(part.get("text", "")) for part in content or () if isinstance(part, Mapping)]


def _turn(entry: _Entry, longest: int | None) -> dict[str, Any]:
    content = entry.item.get("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}..."
    turn = {"turn": entry.turn, "content": text, "full_content": copied(content)}
    return {**turn, "timestamp": entry.at, "can_branch": True}


def _details(details: Any) -> dict[str, Any] | None:
    """The counts of a model of the SDK, those that are known, as plain data."""
    if details is None:
        return None
    return {name: count for name, count in vars(details).items() if count is not None}
