"""Objects in memory."""

from __future__ import annotations

from present import present

from vstate.kv.memory import Memory
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT
from vstate.repo.objects import LONGEST_CACHED, _Kept
from vstate.repo.repository import Repository


def test_short_objects_that_were_read_last_stay_in_memory() -> None:
    """No more than the given number stay, and none with a long body."""
    repo = Repository(Memory())
    made = [present(repo.commit("main", set={"number": number})) for number in range(40)]
    long = present(repo.commit("main", set={"number": 0}, message="x" * LONGEST_CACHED))
    kept = _Kept(repo.store, COMMIT, Commit.decode, 16)
    assert [kept[commit.oid] for commit in made] == made
    assert 8 <= len(kept) <= 16
    assert made[-1].oid in kept
    assert kept[long.oid] == long
    assert long.oid not in kept
