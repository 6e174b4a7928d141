"""The viewer on values that are made to cost much."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from soak import sized
from viewers import running

sys.path.append(str(Path(__file__).parents[1] / "values"))

import bombs

from vstate.objects.canonical import encode
from vstate.objects.ids import NewObjects
from vstate.objects.stream import split
from vstate.values.entry import PICKLE

pytestmark = pytest.mark.slow

ALL = [*bombs.BOMBS]
FEW = ["paths of one tuple", "messages of one long text, in many blocks"]
MOST_SECONDS = 30.0  # of one answer, on a busy machine
MOST_MB = 900
REQUESTS = (
    *("/value?key=bomb", "/value?key=bomb&first=300&limit=100", "/diff?new=HEAD&key=bomb"),
    *("/blame?key=bomb", "/history?key=bomb", "/search?text=x", "/commits", "/keys", "/health"),
)


def versions(name: str) -> list[tuple[bytes, NewObjects]]:
    """The stored versions of a bomb."""
    made = bombs.BOMBS[name]()
    bomb = made if isinstance(made, bombs.Bomb) else bombs.Bomb(made, made)
    found = []
    for version in dict.fromkeys([bomb.old, bomb.new]):
        parts = [split(data) for data in (version, *bomb.buffers)]
        size = len(version) + sum(map(len, bomb.buffers))
        objects = {oid: each for _, _, new in parts for oid, each in new.items()}
        found.append((encode([PICKLE, [link for link, _, _ in parts], size, "bomb"]), objects))
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("name", sized(FEW, ALL))
def test_a_bomb_costs_little(name: str, tmp_path: Path) -> None:
    """Each question about the value is answered in time and within bounded memory, and so is the next one."""
    bombs.plant(tmp_path / "store", *versions(name))
    with running(tmp_path / "store") as (viewer, process):
        for request in REQUESTS:
            begun = time.monotonic()
            status, answer = viewer.ask(request)
            assert status == 200 or (status == 422 and " is corrupt: " in answer["error"]), answer
            assert time.monotonic() - begun < MOST_SECONDS, request
        peak = Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(peak) < MOST_MB * 1024
        assert viewer.get("/store")["branches"] == 1
