"""The directory that the reliability tests share; all of these tests are slow."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripts import Record

SHARED_MEMORY = Path("/dev/shm")
ROOM = 1 << 30
"""Bytes. A container may have only 64 MB, which several tests at a time would fill."""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Notes the figures of a test for `make reliability`."""

    def note(**figures: object) -> None:
        for name, value in figures.items():
            record_property(name, value)

    return note


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is room, for tests that do not depend on the speed of the disk."""
    if not os.access(SHARED_MEMORY, os.W_OK) or shutil.disk_usage(SHARED_MEMORY).free < ROOM:
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="vstate-", dir=SHARED_MEMORY))
    try:
        yield path
    finally:
        shutil.rmtree(path)
