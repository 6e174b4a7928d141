"""Stored: the keys of a commit as they are stored, for a reader; and the readers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from operator import itemgetter
from typing import Any, Final, NamedTuple

from vstate.errors import InvalidInput
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.recent import Recent
from vstate.repo.ahead import ItemsAhead
from vstate.repo.core import Core
from vstate.values import recipes
from vstate.values.budget import Limits
from vstate.values.entry import PICKLE, Entry, Reader, encode_value, read_parts
from vstate.values.inspection import INSPECT_BYTES, inspect_value

READER: Final = "vstate.reader"
"""The key with the name of a branch's reader."""

_KEPT_BYTES: Final = 32 * 2**20  # of the entries whose values stay in memory
_LEAST: Final = 500  # bytes that an entry counts for


class Kept(NamedTuple):
    """A value that is shown as it is stored."""

    data: bytes


class Values:
    """The values of entries as plain data. Those that were asked for last stay in memory."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept = Recent[object, tuple[Any, int]](_KEPT_BYTES, itemgetter(1), least=1)

    def made(self, key: str, data: bytes, make: Callable[[Any], Any], ahead: ItemsAhead | None = None) -> Any:
        """The result of a function of the value of an entry, shared: it is not to be changed."""
        found = self._kept.get((data, make))
        if found is not None:
            return found[0]
        entry = self._core.parse_entry(key, data)
        if make is _itself:
            value = self._plain(key, entry, self._core.objects if ahead is None else ahead.of(key))
        else:
            value = make(self.made(key, data, _itself, ahead))
        self._kept[data, make] = value, max(entry.size, _LEAST)
        return value

    def _plain(self, key: str, entry: Entry, reader: Reader) -> Any:
        if entry.codec != PICKLE:
            return inspect_value(entry, reader)
        if entry.size > INSPECT_BYTES:
            raise InvalidInput(f"{key} has {entry.size:,} bytes, which is too long to show")
        (pickled, *buffers), _ = read_parts(entry, reader)
        value, is_plain, firsts = recipes.read_list(bytes(pickled), buffers, Limits())
        if not is_plain:
            raise InvalidInput(f"{key} is no plain data")
        # The commits before have a segment of a journal with fewer records. Walks mostly come to them next.
        for records, data in firsts:
            before = encode_value(records, dump=lambda _, data=data: (data, []))  # type: ignore[misc]
            self._kept[before.entry, _itself] = records, _LEAST
        return value


def _itself(value: Any) -> Any:
    return value


class Stored:
    """The keys of one commit."""

    def __init__(self, core: Core, root: ObjectId | None, values: Values) -> None:
        self._core = core
        self._root = root
        self._values = values
        self.parts: Any = None
        """A place for the reader, which may be asked for a state and for titles."""

    def entries(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """The keys that begin with `prefix`, sorted, and their entries; not the name of the reader."""
        found = tree.scan(self._core.objects.nodes, self._root, prefix)
        return ((key, data) for key, data in found if key != READER)

    def changed(self, before: Stored | None) -> list[str]:
        """The keys that differ from those before."""
        old = None if before is None else before._root
        return [change.key for change in tree.diff(self._core.objects.nodes, old, self._root)]

    def get(self, key: str) -> Any:
        """The value of a key, None if it is absent."""
        data = tree.lookup(self._core.objects.node, self._root, key)
        return None if data is None else self.value(key, data)

    def value(self, key: str, data: bytes) -> Any:
        """The value of an entry as plain data. Raises InvalidInput, or InertError, for any other one."""
        return self._values.made(key, data, _itself)

    def values(self, prefix: str, make: Callable[[Any], Any] = _itself) -> Iterator[Any]:
        """The values of the keys that begin with `prefix`, in order, or the results of a function of them."""
        rows = [*self.entries(prefix)]
        ahead = ItemsAhead(rows, self._core.objects) if self._core.store.remote else None
        for key, data in rows:
            yield self._values.made(key, data, make, ahead)

    def records(self, prefix: str) -> Iterator[Any]:
        """The records of the journal below a prefix, oldest first."""
        for records in self.values(prefix):
            yield from records

    def new_records(self, before: Stored | None, prefix: str) -> list[Any] | None:
        """The records that the journal has more than it had before; None if it was rewritten."""
        found: list[Any] = []
        old = None if before is None else before._root
        for change in tree.diff(self._core.objects.nodes, old, self._root):
            if not change.key.startswith(prefix):
                continue
            if change.new is None:
                return None
            records = self.value(change.key, change.new)
            seen = [] if change.old is None else self.value(change.key, change.old)
            if seen != records[: len(seen)]:
                return None
            found += records[len(seen) :]
        return found


# The readers

_READERS: Final[Mapping[str, tuple[str, str, str | None]]] = {
    "agent_framework.history": ("chats", "agent_framework_state", "agent_framework_title"),
    "agent_framework.workflow": ("chats", "workflow_state", None),
    "burr": ("chats", "state_fields", None),
    "claude_agent": ("chats", "claude_state", "claude_title"),
    "crewai.checkpoint": ("chats", "checkpoint_fields", None),
    "crewai.flow": ("chats", "state_fields", None),
    "google_adk": ("chats", "adk_state", "adk_title"),
    "langgraph": ("langgraph", "state", "title"),
    "llama_index.chat": ("chats", "llama_state", "llama_title"),
    "llama_index.run": ("chats", "llama_run_state", None),
    "nontainer": ("chats", "nontainer_state", None),
    "openai_agents": ("chats", "openai_state", "openai_title"),
    "pydantic_ai": ("chats", "pydantic_ai_state", "pydantic_ai_title"),
    "pydantic_ai_harness": ("chats", "harness_state", "harness_title"),
    "run": ("runs", "state", None),
    "strands": ("chats", "strands_state", "strands_title"),
}
"""The module of each reader, its function of a state, and that of a title if it has one."""


class BranchReader(NamedTuple):
    """How the commits of one kind of branch read."""

    state: Callable[[Stored], Mapping[str, Any]]
    """The keys of a commit with their values: plain data, `Serialized`, or `Kept`."""
    title: Callable[[Stored, Stored | None], str | None]
    """The subject of a commit, by its keys and those of its first parent; None for its message."""


@lru_cache(32)
def find_reader(name: object) -> BranchReader | None:
    """The reader of this name, None if there is none here."""
    if not isinstance(name, str) or name not in _READERS:
        return None
    module, state, title = _READERS[name]
    found = import_module(f"vstate.readers.{module}")  # late: most stores need none
    return BranchReader(getattr(found, state), getattr(found, title) if title else lambda *_: None)


def marks(name: str) -> Mapping[str, str]:
    """The key that the first commit of a branch sets, for its commits to read so."""
    return {READER: name} if name in _READERS else {}
