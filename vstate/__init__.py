"""vstate: a git-like, versioned state store for Python programs and AI agents.

from vstate import Versioned

state = Versioned("agent-state")        # a directory; None: memory
state["messages"] = []
state["messages"].append("hello")       # edits in place count
state.commit("first words")
"""

from typing import TYPE_CHECKING

from vstate.errors import *  # noqa: F403  # every exception is public
from vstate.errors import __all__ as _errors
from vstate.kv.base import KVStore
from vstate.kv.cache import Cache
from vstate.kv.disk import Disk
from vstate.kv.encrypted import Encrypted
from vstate.kv.memory import Memory
from vstate.kv.url import open_store
from vstate.objects.commit import Commit, Event
from vstate.repo.compare.diff import Change, Diff
from vstate.repo.names.refs import quote_ref, unquote_ref
from vstate.repo.rules.keeps import Keep
from vstate.repo.rules.signing import PublicKey, SigningKey
from vstate.repo.writing import BranchChanges
from vstate.state import Live, Namespace, Snapshot, Versioned
from vstate.tasks import events, task, view
from vstate.values.absent import ABSENT
from vstate.values.evolution import renamed, upgrade
from vstate.values.file import File
from vstate.values.same_value import compare

if TYPE_CHECKING:
    from vstate.repo.merge.three_way import KeyConflict, MergeResult
    from vstate.workspace import Workspace

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "BranchChanges",
    "Cache",
    "Change",
    "Commit",
    "Diff",
    "Disk",
    "Encrypted",
    "Event",
    "File",
    "KVStore",
    "Keep",
    "KeyConflict",
    "Live",
    "Memory",
    "MergeResult",
    "Namespace",
    "PublicKey",
    "SigningKey",
    "Snapshot",
    "Versioned",
    "Workspace",
    "compare",
    "events",
    "open_store",
    "quote_ref",
    "renamed",
    "task",
    "unquote_ref",
    "upgrade",
    "view",
    *_errors,
]


def __getattr__(name: str) -> object:
    if name in ("KeyConflict", "MergeResult"):  # late, for a quick `import vstate`
        from vstate.repo.merge import three_way

        return getattr(three_way, name)
    if name == "Workspace":  # likewise
        from vstate import workspace

        return workspace.Workspace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
