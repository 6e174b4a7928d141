"""Each test of the package langgraph-checkpoint-conformance as a test of pytest, on VstateSaver."""

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

import pytest
from places import place

from vstate.integrations.langgraph import VstateSaver

CAPABILITIES = [
    "copy_thread",
    "delete_for_runs",
    "delete_thread",
    "get_tuple",
    "list",
    "prune",
    "put",
    "put_writes",
]
TESTS = [
    pytest.param(test, id=f"{name}-{test.__name__}")
    for name in CAPABILITIES
    for test in getattr(
        import_module(f"langgraph.checkpoint.conformance.spec.test_{name}"), f"ALL_{name.upper()}_TESTS"
    )
]


@pytest.mark.parametrize("test", TESTS)
def test_conformance(test: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """One test of the package, on a new store."""
    with VstateSaver(place(":memory:")) as saver:
        asyncio.run(test(saver))
