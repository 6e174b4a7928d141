"""`vstate pull`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

from vstate.errors import CannotLoad, Conflict, DetachedHead, InvalidInput, MergeConflict
from vstate.repo.repository import Repository
from vstate.repo.rules.security import Security
from vstate.values.absent import Unmergeable
from vstate_cli import documents, moved_refs
from vstate_cli.output import Bar, safe
from vstate_cli.session import Session, command, complete_branch, complete_remote

if TYPE_CHECKING:
    from vstate.objects.ids import ObjectId
    from vstate.repo.merge.three_way import MergeResult

_NEEDS_VALUES = "its merge policy needs the values, and the command unpickles nothing"


@command(
    "pull",
    examples=["vstate pull", "vstate pull origin main", "vstate pull /backup/agent"],
    json="{fetched, branches: [{name, strategy, commit, merged_keys}]}: fetched is a list of what `vstate "
    'fetch --json` prints; strategy is "up-to-date", "fast-forward" or "merge".',
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, shell_complete=complete_branch)
def pull(session: Session, remote: str | None, branch: tuple[str, ...]) -> None:
    """Fetch branches, and merge them into those here.

    Each BRANCH, HEAD's by default, comes from the remote `origin`, another REMOTE, or the store at that path
    or URL. One that is not here is made; one that has no other commits goes ahead; others are merged by key.
    A key that both sides changed takes a policy that needs no values: ours, theirs or newest. Otherwise
    nothing is merged, and what was fetched stays: pull in Python then, where values can be merged. Nothing
    that is stored is run here.
    """
    from vstate.repo.exchange import sync  # late: few commands need it

    repo = _Inert(session.repo.store, _ImportsNothing())
    fetched: list[documents.Document] = []
    merged: list[documents.Document] = []
    for name in branch or (_current(session),):

        def merge(commit: ObjectId, where: str, name: str = name) -> MergeResult:
            try:
                return repo.merge(name, commit, name=where)
            except MergeConflict as error:
                _refuse(name, remote, error)

        with Bar() as bar:
            report, result = sync.pull(repo, remote, name, merge, remote=None, progress=bar)
        fetched.append(moved_refs.document(report))
        commit = None if result.commit is None else result.commit.id
        merged.append(
            {
                "name": name,
                "strategy": result.strategy,
                "commit": commit,
                "merged_keys": list(result.merged_keys),
            }
        )
        if not session.json:
            moved_refs.write(session.out, report, "received")
            session.out.line((safe(name), "bold green"), f": {result}")
    if session.json:
        documents.write(session.out, {"fetched": fetched, "branches": merged})


def _current(session: Session) -> str:
    try:
        return session.branch()
    except DetachedHead:
        raise InvalidInput(
            "HEAD is on no branch; name the branches to pull, as in `vstate pull origin main`, or check one out"
        ) from None


def _refuse(branch: str, remote: str | None, error: MergeConflict) -> NoReturn:
    shown = ", ".join(repr(key) for key in error.keys[:10])
    more = f" and {len(error.keys) - 10} more" if len(error.keys) > 10 else ""
    # There may be a password in a URL.
    given = "" if remote is None else "URL" if "://" in remote else repr(remote)
    raise Conflict(
        f"both sides of {branch} changed {shown}{more}, and the command cannot merge values, since it unpickles "
        f"nothing: what was fetched is kept, branch {branch} is as it was; pull in Python, with "
        f"Versioned(STORE, branch={branch!r}).pull({given})"
    ) from None


class _ImportsNothing(Security):
    """Follows no name of a function that a stored merge policy gives."""

    def find_policy(self, module: str, name: str) -> Any:
        raise CannotLoad(f"{module}:{name}", "the command runs no merge policy that is a function")


class _Inert(Repository):
    """A repository that unpickles nothing: a key that cannot be merged without its values is in conflict."""

    def load(self, *arguments: Any, **options: Any) -> Any:
        raise Unmergeable(_NEEDS_VALUES)
