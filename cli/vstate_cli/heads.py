"""HEAD: moving it, and the report of the move."""

from __future__ import annotations

from vstate_cli.output import Line, safe
from vstate_cli.session import Session


def move(session: Session, target: str, *, is_new: bool = False) -> None:
    """Put HEAD on a branch or a commit, `-` for the one before, and print where HEAD is now."""
    repo, out = session.repo, session.out
    before = repo.refs.head()
    head = repo.checkout(target)
    if session.json:
        out.json({"branch": head.branch, "commit": None if head.commit is None else str(head.commit)})
        return
    at: Line = [] if head.commit is None else [" at ", *session.summary(repo.resolve(head.commit))]
    if head.branch is None:
        out.line("HEAD is detached", *at)
        out.line(("To commit from here, create a branch: vstate checkout -b NAME", "dim"))
        return
    done = "Already on" if before.branch == head.branch else "Switched to branch"
    out.line(f"{'Switched to the new branch' if is_new else done} ", (safe(head.branch), "bold green"), *at)
