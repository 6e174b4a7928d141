"""`vstate merge`."""

from __future__ import annotations

import shlex

import click

from vstate.errors import MergeConflict
from vstate.repo.inert import InertRepository
from vstate_cli import merging
from vstate_cli.output import safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "merge",
    examples=[
        "vstate merge what-if",
        "vstate merge origin/main -m 'the work of yesterday'",
        "vstate merge what-if --ours plan --theirs notes/a",
    ],
    json='{branch, strategy, commit, merged_keys, resolved}. strategy is "up-to-date", "fast-forward" or '
    '"merge"; resolved is an object of the policies by key. After a conflict, {branch, conflicts: [{key, '
    "reason, ours, theirs}]}; ours and theirs are the paths that each side changed inside the value.",
)
@click.argument("rev", shell_complete=complete_revision)
@click.option("--no-ff", is_flag=True, help="Make a merge commit also if the branch could just move to REV.")
@merging.options("merged")
def merge(
    session: Session,
    rev: str,
    no_ff: bool,
    message: str,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    policy: str | None,
) -> None:
    """Merge REV into HEAD's branch.

    A key that one side changed is taken from that side. If both sides changed a key, its merge policy
    decides: the branch's, or POLICY. The command merges values as they are stored, and loads none. It does
    not run a policy that is a Python function. After a conflict nothing has changed, and the output lists
    the keys, and the changes of each side inside them.
    """
    branch = session.branch()
    repo = InertRepository(session.repo.store, merging.decided(ours, theirs))
    head, other = repo.newest(branch), repo.resolve(rev)
    try:
        result = repo.merge(
            branch,
            other,
            policy=policy,
            message=message,
            name=rev,
            seen=head,
            fast_forward=not no_ff,
            before_move=repo.decisions.check,
        )
    except MergeConflict as error:
        assert head is not None  # without commits of its own, a branch has no conflict
        bases = repo.history.merge_bases(head.oid, other.oid)
        base = None if not bases else repo.objects.commit(bases[0]).root
        merging.refuse(
            session,
            branch,
            error,
            operation=f"merging {rev} into {branch}",
            sides=None if len(bases) > 1 else (base, head.root, other.root),
            again=f"vstate merge {shlex.quote(rev)}",
        )
    merging.note_unsigned(session, head, result.commit)
    if session.json:
        session.out.json(
            {
                "branch": branch,
                "strategy": result.strategy,
                "commit": None if result.commit is None else result.commit.id,
                "merged_keys": list(result.merged_keys),
                "resolved": dict(result.conflicts),
            }
        )
        return
    session.out.line((safe(branch), "bold green"), f": {safe(str(result))}")
