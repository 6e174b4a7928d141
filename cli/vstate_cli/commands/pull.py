"""`vstate pull`."""

from __future__ import annotations

import shlex
from typing import NoReturn

import click

from vstate.errors import DetachedHead, InvalidInput, MergeConflict
from vstate.objects.ids import ObjectId
from vstate.repo.exchange import sync
from vstate.repo.inert import InertRepository
from vstate.repo.merge.three_way import MergeResult
from vstate.repo.names.refs import REMOTES
from vstate_cli import moved_refs
from vstate_cli.merging import refuse
from vstate_cli.output import Document, safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, complete_remote


@command(
    "pull",
    examples=["vstate pull", "vstate pull origin main", "vstate pull /backup/agent"],
    json="{fetched, branches: [{name, strategy, commit, merged_keys}]}. fetched is a list of objects "
    'as `vstate clone --json` prints one; strategy is "up-to-date", "fast-forward" or "merge".',
)
@click.argument("remote", metavar="REMOTE|URL", required=False, shell_complete=complete_remote)
@click.argument("branch", nargs=-1, type=BRANCH)
def pull(session: Session, remote: str | None, branch: tuple[str, ...]) -> None:
    """Fetch branches, and merge them into the branches here.

    Pulls each BRANCH (default: HEAD's) from REMOTE (default: `origin`), or from the store at a path or URL.
    A branch that is missing here is created, and one without new commits of its own is fast-forwarded.
    Others are merged as by `vstate merge`. After a conflict the branch stays as it is and the fetched commits
    are kept: `vstate merge` says how to go on. If REMOTE has reset or squashed the branch, a merge would
    bring deleted keys back: the command merges nothing, and says how to go on.
    """
    repo = InertRepository(session.repo.store)
    fetched: list[Document] = []
    merged: list[Document] = []
    for name in branch or (_current(session),):

        def merge(commit: ObjectId, where: str, name: str = name) -> MergeResult:
            try:
                return repo.merge(name, commit, name=where)
            except MergeConflict as error:
                other = repo.refs.read(f"{REMOTES}{where}")
                _refuse(session, name, where if other == commit else commit.short, error)

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


def _refuse(session: Session, branch: str, rev: str, error: MergeConflict) -> NoReturn:
    repo = session.repo
    ours, theirs = repo.branch(branch), repo.resolve(rev)
    bases = repo.history.merge_bases(ours.oid, theirs.oid)
    base = None if not bases else repo.objects.commit(bases[0]).root
    switch = "" if repo.refs.head().branch == branch else f"vstate switch {shlex.quote(branch)} && "
    refuse(
        session,
        branch,
        error,
        operation=f"merging {rev} into {branch}",
        sides=None if len(bases) > 1 else (base, ours.root, theirs.root),
        again=f"{switch}vstate merge {shlex.quote(rev)}",
    )
