"""Opening and closing the store of an adapter."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from vstate import Disk
from vstate.errors import InvalidInput
from vstate.integrations.opening import AsyncOpened, Opened, Opening, StoreLike


class Plain(Opened):
    def __init__(self, store: StoreLike) -> None:
        self._opening = Opening(store)


class Awaited(AsyncOpened):
    def __init__(self, store: StoreLike) -> None:
        self._opening = Opening(store)


def test_only_a_store_that_the_adapter_opened_is_closed(tmp_path: Path) -> None:
    """A block closes the store of a path, and leaves a store of the program open."""
    with Disk(tmp_path / "own") as own:
        with Plain(own) as adapter:
            pass
        assert adapter.repo.branches() == {}
        with Plain(tmp_path / "path") as adapter:
            pass
        with pytest.raises(InvalidInput):
            adapter.repo.branches()


@pytest.mark.parametrize("kind", [Plain, Awaited])
def test_an_event_loop_does_not_wait_for_the_store_to_close(
    kind: type[Plain | Awaited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of an `async with` block the store is closed in a thread."""
    closed: list[threading.Thread] = []
    close = Disk.close
    monkeypatch.setattr(
        Disk, "close", lambda store: (closed.append(threading.current_thread()), close(store))
    )

    async def use() -> None:
        async with kind(tmp_path / "s") as adapter:
            adapter.repo.branches()

    asyncio.run(use())
    assert len(closed) == 1
    assert closed[0] is not threading.main_thread()
