"""VstateSession: sessions of AgentScope, each a branch of the store."""

from __future__ import annotations

from typing import Any, Final

from vstate.aio.workers import awaited, in_thread
from vstate.arguments import check_text
from vstate.errors import InvalidRecord
from vstate.integrations import framework_of
from vstate.integrations.opening import AsyncOpened, KeepLike, Opening, StoreLike, summary
from vstate.patterns.fields import exact
from vstate.patterns.paths import join_path, split_path
from vstate.sessions.state_module import load_found, save_all
from vstate.state.snapshot import Snapshot

with framework_of("agentscope"):
    from agentscope.module import StateModule
    from agentscope.session import SessionBase

_PREFIX: Final = "agentscope"
_MODULES: Final = "modules"


class VstateSession(AsyncOpened, SessionBase):
    """Sessions of AgentScope: `await VstateSession("./sessions").save_session_state("s1", agent=agent)`.

    - A session is the branch `agentscope/sessions/SESSION`, or `agentscope/users/USER/SESSION`. Each save is
      one commit with a key for each module, `modules/NAME`. A save that changes nothing makes no commit.
    - A state is what JSON can hold, as in AgentScope's own sessions, and comes back equal.

    Of two saves of one module the later one wins; modules that a save does not name stay. A save beside a
    deletion raises NotFound: load the session first.
    """

    def __init__(self, store: StoreLike = None, *, keep: KeepLike = None) -> None:
        self._opening = Opening(store, keep=keep, prefix=("agentscope",))

    def branch(self, session_id: str, user_id: str = "") -> str:
        """The name of a session's branch. Raises InvalidInput for an empty session_id."""
        check_text("session_id", session_id, empty=False)
        parts = ("users", check_text("user_id", user_id)) if user_id else ("sessions",)
        return self._opening.branch(*parts, session_id)

    async def save_session_state(
        self, session_id: str, user_id: str = "", **state_modules_mapping: StateModule
    ) -> None:
        """Save the states of these modules, all or none.

        Raises TypeError, with the path of the attribute, if JSON cannot hold a state.
        """
        branch = self.branch(session_id, user_id)
        # Before the first await: the agent may go on to change its state.
        states = {name: exact(state, name) for name, state in save_all(state_modules_mapping).items()}
        keys = {join_path(_MODULES, name): state for name, state in states.items()}
        message = summary(f"save {', '.join(states)}")
        await in_thread(lambda: self._opening.commit(branch, lambda stored: (keys, ()), message=message))

    async def load_session_state(
        self,
        session_id: str,
        user_id: str = "",
        allow_not_exist: bool = True,
        **state_modules_mapping: StateModule,
    ) -> None:
        """Load the modules, all or none.

        A module that was never saved stays as it is, with a warning in the log. So do all modules of a
        session that was never saved; if `allow_not_exist` is False, that raises ValueError.
        """
        branch = self.branch(session_id, user_id)

        def look(stored: Snapshot) -> dict[str, Any]:
            return {split_path(key)[1]: state for key, state in stored.items(f"{_MODULES}/")}

        states = await in_thread(lambda: self._opening.read(branch, look))
        load_found(
            repr(session_id),
            state_modules_mapping,
            states,
            lambda name, reason: InvalidRecord(join_path(_MODULES, name), reason),
            absent=f"there is no session on branch {branch!r}",
            allow_not_exist=allow_not_exist,
        )

    @awaited
    def delete_session(self, session_id: str, user_id: str = "", *, keep_history: bool = False) -> bool:
        """Delete a session, and return whether there was one.

        The store has nothing of it afterwards. With `keep_history`, the reflog keeps it for 30 days.
        """
        return self._opening.delete(self.branch(session_id, user_id), keep_history=keep_history) is not None
