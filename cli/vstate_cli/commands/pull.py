"""`vstate pull`."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from vstate.errors import CannotLoad, Conflict, DetachedHead, InvalidInput, MergeConflict
from vstate.objects.ids import ObjectId
from vstate.repo.exchange import sync
from vstate.repo.merge.three_way import MergeResult
from vstate.repo.repository import Repository
from vstate.repo.rules.security import Security
from vstate.values.absent import Unmergeable
from vstate_cli import moved_refs
from vstate_cli.output import Document, safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_branch, complete_remote


@command(
    "pull",
    examples=["vstate pull", "vstate pull origin main", "vstate pull /backup/agent"],
    json="{fetched, branches: [{name, strategy, commit, merged_keys}]}. fetched is a list of objects "
    'as `vstate clone --json` prints one; strategy is "up-to-date", "fast-forward" or "merge".',
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, shell_complete=complete_branch)
def pull(session: Session, remote: str | None, branch: tuple[str, ...]) -> None:
    """Fetch branches, and merge them into the branches here.

    Pulls each BRANCH (default: HEAD's) from REMOTE (default: `origin`), or from the store at a path or URL.
    A branch that is missing here is created, and one without new commits of its own is fast-forwarded.
    Others are merged by key. If both sides changed a key, its merge policy decides, but only `ours`,
    `theirs` and `newest` work here: the command never loads values. Otherwise the branch stays as it is and
    the fetched commits are kept; pull in Python to merge them.
    """
    repo = _InertRepository(session.repo.store, _ImportsNothing())
    fetched: list[Document] = []
    merged: list[Document] = []
    for name in branch or (_current(session),):

        def merge(commit: ObjectId, where: str, name: str = name) -> MergeResult:
            try:
                return repo.merge(name, commit, name=where)
            except MergeConflict as error:
                _refuse(name, remote, error)

        with ProgressBar() as bar:
            report, result = sync.pull(repo, remote, name, merge, remote=None, progress=bar)
        fetched.append(moved_refs.document(report))
        merged.append(
            {
                "name": name,
                "strategy": result.strategy,
                "commit": None if result.commit is None else result.commit.id,
                "merged_keys": list(result.merged_keys),
            }
        )
        if not session.json:
            moved_refs.write(session, report, "received")
            session.out.line((safe(name), "bold green"), f": {result}")
    if session.json:
        session.out.json({"fetched": fetched, "branches": merged})


def _current(session: Session) -> str:
    try:
        return session.branch()
    except DetachedHead:
        raise InvalidInput(
            "HEAD is on no branch; name the branches to pull, as in `vstate pull origin main`, or check "
            "one out"
        ) from None


def _refuse(branch: str, remote: str | None, error: MergeConflict) -> NoReturn:
    shown = ", ".join(repr(key) for key in error.keys[:10])
    more = f" and {len(error.keys) - 10} more" if len(error.keys) > 10 else ""
    # A URL may hold a password.
    argument = "" if remote is None else "URL" if "://" in remote else repr(remote)
    raise Conflict(
        f"both sides of branch {branch} changed {shown}{more}, and this command cannot merge values because "
        "it never loads them; the branch is unchanged and the fetched commits are kept; pull in Python, with "
        f"Versioned(STORE, branch={branch!r}).pull({argument})"
    ) from None


class _ImportsNothing(Security):
    """Imports no function that a stored merge policy names."""

    def find_policy(self, module: str, name: str) -> Any:
        raise CannotLoad(f"{module}:{name}", "this command runs no merge policy that is a function")


class _InertRepository(Repository):
    """Unpickles nothing: a key whose merge needs its values is in conflict."""

    def load(self, *arguments: Any, **options: Any) -> Any:
        raise Unmergeable("the merge policy needs the values, and this command never loads them")
