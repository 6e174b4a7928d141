"""vstate_pytest: the plugin of pytest, with a state for each test, which stays if the test fails."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vstate import Versioned

_STATE = pytest.StashKey["tuple[Path, Versioned]"]()


@pytest.fixture
def vstate_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Versioned]:
    """A state in a store of its own, which is the directory `vstate_state` in the test's `tmp_path`.

    If the test fails, its uncommitted changes are committed, and its report has the command that shows the
    store; if they cannot be committed, the report says why. pytest keeps the store as it keeps `tmp_path`.
    Commits do not wait for the disk.
    """
    from vstate import Disk, Versioned  # late: pytest loads this module in every run

    path = tmp_path / "vstate_state"
    with Disk(path, durability="process") as store, Versioned(store) as state:
        request.node.stash[_STATE] = path, state
        yield state
        with suppress(Exception):  # the test may have closed it
            state.discard()


@pytest.hookimpl(hookwrapper=True)  # the form that every pytest knows
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Commit the state of a test that failed, and put the command that shows the store into its report."""
    report = (yield).get_result()
    if report.failed and _STATE in item.stash:
        path, state = item.stash[_STATE]
        lines = [f"vstate -s {shlex.quote(str(path))} log"]
        try:
            if report.when == "teardown":  # the state is closed then
                lines.append(
                    "Changes that the test had not committed are not in it: it failed after its end."
                )
            elif state.commit("as the test failed", test=item.nodeid) is None and not state.branches():
                lines = ["The store has no commit."]
        except Exception as error:  # a value may raise anything as it is pickled
            lines.append(f"The uncommitted changes of the test are lost: {error}")
        report.sections.append(("vstate", "\n".join(lines)))
