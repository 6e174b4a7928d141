"""History: its order, the commits that touched a key, and lazy diffs."""

from typing import Any

import pytest
from bundle_files import save

from vstate import InvalidInput, Memory, Versioned, events
from vstate.repo.compare.details import details
from vstate.testing import Faulty


@pytest.mark.parametrize("limit", [-1, 1.5, "2"])
def test_a_limit_that_makes_no_sense(limit: Any) -> None:
    """A bad limit raises InvalidInput in the call itself, before the first commit and after."""
    state = Versioned()
    calls = [
        lambda: state.log(limit=limit),
        lambda: events(state, limit=limit),
        lambda: Versioned().log(limit=limit),
        lambda: state.diff().details("k", limit=limit),
        lambda: details(1, 2, limit=limit),
    ]
    save(state, k=1)
    for call in calls:
        with pytest.raises(InvalidInput, match="limit is a whole number from 0 on"):
            call()


def test_log_of_a_key() -> None:
    """The commits that set, changed or deleted the key, and no other; no merge that took it over."""
    store = Memory()
    state, other = Versioned(store), Versioned(store)
    save(state, "before", other=0)
    save(state, "added", k=1)
    save(state, "elsewhere", other=1)
    save(state, "changed", k=2)
    merge = save(other, "beside", theirs=1)
    assert len(merge.parent_ids) == 2
    state.refresh()
    del state["k"]
    state.commit("deleted")
    save(state, "after", other=2)
    assert [c.message for c in state.log(key="k")] == ["deleted", "changed", "added"]
    assert [c.message for c in state.log(key="k", limit=1)] == ["deleted"]
    assert [c.message for c in state.log(key="theirs")] == ["beside"]
    assert list(state.log(key="never")) == []


@pytest.mark.slow
def test_a_diff_reads_no_value() -> None:
    """A diff of 1 key among 5,000 reads few nodes, and values only on demand; kinds are right."""
    faulty = Faulty(Memory())
    state = Versioned(faulty)
    state.update({f"k{i:05}": "v" * 200 + str(i) for i in range(5_000)})
    state.commit()
    state["k00500"] = "w" * 200
    state["new"] = [1]
    del state["k00001"]
    state.commit()
    fresh = Versioned(faulty)
    fresh.checkout("HEAD")
    faulty.calls.clear()
    diff = fresh.diff("HEAD~1", "HEAD")
    assert len(faulty.calls) < 20
    before = len(faulty.calls)
    assert (diff.added, diff.modified, diff.removed) == (["new"], ["k00500"], ["k00001"])
    assert str(diff)
    assert len(faulty.calls) == before
    assert diff["k00500"].old == "v" * 200 + "500"
    assert diff["k00500"].new == "w" * 200
    assert len(faulty.calls) <= before + 2
    assert diff["new"].old is None
    assert diff["k00001"].new is None
