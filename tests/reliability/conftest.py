"""What the reliability tests share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
ROOM = 1 << 30
"""Bytes: in a container there may be 64 MB of it, which several tests at a time would fill."""


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one, for tests to which the speed of the disk means nothing."""
    if not os.access(SHARED_MEMORY, os.W_OK) or shutil.disk_usage(SHARED_MEMORY).free < ROOM:
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="vstate-", dir=SHARED_MEMORY))
    try:
        yield path
    finally:
        shutil.rmtree(path)
