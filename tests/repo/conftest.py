"""What several tests of the repository start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from damaged_stores import fill
from histories import opened

from vstate import KVStore, Memory
from vstate.repo.exchange import bundle_export, difference, transfer


@pytest.fixture(scope="session")
def filled() -> Mapping[str, bytes]:
    """The rows of a store of everything."""
    memory = Memory()
    fill(memory)
    return dict(memory.items())


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limits so low that a push or a fetch takes many batches, and a bundle has many frames."""
    monkeypatch.setattr(bundle_export, "FRAME_BYTES", 5_000)
    monkeypatch.setattr(transfer, "BATCH_OBJECTS", 6)
    monkeypatch.setattr(difference, "GROUP", 2)


@pytest.fixture(params=["memory", "plain", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    """An empty store: two with transactions, and one without."""
    with opened(request.param, tmp_path) as store:
        yield store
