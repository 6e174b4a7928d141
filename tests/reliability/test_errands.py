"""SIGKILL at the calls of the store that a run makes: nothing is paid twice, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from errands import Errand, Ledger
from scripts import LONGEST, Record, run_script
from soak import sized

SEEDS = sized(2, 25)

pytestmark = pytest.mark.timeout(LONGEST)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_kills_of_a_run(seed: int, tmp_path: Path, record: Record) -> None:
    """A run killed at a call of its store, and gone on with, ends as one that nobody killed."""
    result = run_script("errand_kills.py", seed, tmp_path)
    assert result["kills"] >= 20
    record(**result)


TWICE = """
import sys
from pathlib import Path
from errands import Errand, Ledger
from vstate import Disk
place = Path(sys.argv[1])
errand = Errand(int(sys.argv[2]), Ledger(place / "ledger"), ttl=5, length=12)
for _ in range(3):
    print(sorted(errand.finish(lambda: Disk(place / "store")).items()))
"""


def test_two_processes_do_one_run(tmp_path: Path) -> None:
    """Of two processes that do one run at once, one does it, and both have its results."""
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", TWICE, str(tmp_path), "3"]
    environment = {**os.environ, "PYTHONPATH": path}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    told = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len({line for text in told for line in text.splitlines()}) == 1
    errand = Errand(3, Ledger(tmp_path / "ledger"), length=12)
    assert errand.payments()
    assert errand.ledger.amounts() == errand.payments()
