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

_STORE = pytest.StashKey[Path]()
_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def vstate_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Versioned]:
    """A state in a store of its own, which is the directory `vstate_state` in the test's `tmp_path`.

    If the test fails, its uncommitted changes are committed, and its report has the command that shows the
    store. pytest keeps the store as it keeps `tmp_path`. Commits do not wait for the disk.
    """
    from vstate import Disk, Versioned  # late: pytest loads this module in every run

    request.node.stash[_STORE] = path = tmp_path / "vstate_state"
    with Disk(path, durability="process") as store, Versioned(store) as state:
        yield state
        with suppress(Exception):  # the test may have closed it, or left what cannot be stored
            if request.node.stash.get(_FAILED, False):
                state.commit("as the test failed", test=request.node.nodeid)
        with suppress(Exception):
            state.discard()


@pytest.hookimpl(hookwrapper=True)  # the form that every pytest knows
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Note that a test has failed, and put the command into its report."""
    report = (yield).get_result()
    if report.failed and _STORE in item.stash:
        item.stash[_FAILED] = True
        report.sections.append(("vstate", f"vstate -s {shlex.quote(str(item.stash[_STORE]))} log"))
