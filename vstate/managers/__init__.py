"""Managers of agents' state: agents, workflows, teams, knowledge, tools, speech. All methods are coroutines.

- Each keeps records in a versioned state, so they can be logged, diffed, rolled back and branched.
- Every method that changes something is one commit, exact beside other processes that do the same.
- Values go in and come out as copies: a change of one is stored only by a method.
- While the store cannot be reached, calls raise StoreUnavailable; no record counts as absent because of that.

Records are pydantic models: `pip install '.[agents]'`. `StateManager` needs none.
"""

# ruff: noqa: F403  # the __all__ of each module says which names come

from typing import TYPE_CHECKING

from vstate.extras import install
from vstate.managers.backends import *
from vstate.managers.manager import *
from vstate.managers.states import *

try:
    from vstate.managers.agents import *
    from vstate.managers.knowledge import *
    from vstate.managers.record import *
    from vstate.managers.recovery import *
    from vstate.managers.speech import *
    from vstate.managers.teams import *
    from vstate.managers.tools import *
    from vstate.managers.workflows import *
except ModuleNotFoundError as error:
    if error.name != "pydantic":
        raise

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ImportError(f"{name} needs pydantic; type: {install('agents')}")


if not TYPE_CHECKING:
    __all__ = sorted(
        name
        for name, value in globals().items()
        if str(getattr(value, "__module__", "")).startswith(f"{__name__}.")
    )
