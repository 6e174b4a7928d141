"""The viewer on values that are made to cost much."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from viewers import viewing

sys.path.append(str(Path(__file__).parents[1] / "values"))

import bombs

from vstate.values.entry import PICKLE

pytestmark = pytest.mark.slow

FEW = ["ints"]
MOST_SECONDS = 30.0  # of one answer, on a busy machine
MOST_MB = 700


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("name", list(bombs.SHOWN) if os.environ.get("VSTATE_SOAK") else FEW)
def test_a_bomb_costs_little(name: str, tmp_path: Path) -> None:
    """Each question about the value is answered in time and within bounded memory, and so is the next one."""
    made = bombs.SHOWN[name]()
    bomb = made if isinstance(made, bombs.Bomb) else bombs.Bomb(made, made)
    if bomb.buffers:
        pytest.skip("a pickle with buffers is not planted here")
    bombs.plant(tmp_path / "store", bombs.long_part(PICKLE, bomb.old, "bomb"))
    with viewing(tmp_path / "store") as viewer:
        for request in ("/value?key=bomb", "/diff?new=HEAD&key=bomb", "/blame?key=bomb", "/search?text=x"):
            begun = time.monotonic()
            assert viewer.ask(request)[0] == 200
            assert time.monotonic() - begun < MOST_SECONDS
        peak = Path(f"/proc/{viewer.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert int(peak) < MOST_MB * 1024
        assert viewer.get("/store")["branches"] == 1
