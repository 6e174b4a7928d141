"""The MemoryStore of py-key-value-aio is vstate's: a plugin for pytest."""

from typing import Any

from key_value.aio.stores import memory
from key_value.aio.stores.memory import store
from places import place

from vstate.integrations.key_value import VstateKeyValue


class _Store(VstateKeyValue):
    """Takes the limit of a MemoryStore too, and has none."""

    def __init__(self, *, max_entries_per_collection: int | None = None, **options: Any) -> None:
        super().__init__(place(":memory:"), **options)


memory.MemoryStore = store.MemoryStore = _Store  # type: ignore[misc]
