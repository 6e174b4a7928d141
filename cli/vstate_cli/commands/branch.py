"""`vstate branch`."""

from __future__ import annotations

import json
from functools import partial

import click

from vstate.repo.names.refs import REMOTES, shown_ref, typed_ref
from vstate.repo.rules.labels import Atom
from vstate_cli import commits
from vstate_cli.changes import name_width
from vstate_cli.output import Document, Line, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_branch, complete_revision


@command(
    "branch",
    dated=True,
    examples=[
        "vstate branch",
        "vstate branch --all",
        "vstate branch -v -n 20",
        "vstate branch --prefix chat/ -n 20",
        "vstate branch --label user=ann",
        "vstate branch what-if HEAD~3",
        "vstate branch -m what-if plan-b",
        "vstate branch -d plan-b",
        "vstate branch -d plan-b --forget",
    ],
    json="a list of {name, commit, head}; head is true for HEAD's branch. With NAME, one such object for the "
    "branch that was created, deleted or renamed. With -v, time and message of the commit too. "
    "With --show-current, the name, null if HEAD is detached.",
)
@click.argument("name", required=False, shell_complete=complete_branch)
@click.argument("at", required=False, shell_complete=complete_revision)
@click.option("-d", "-D", "--delete", is_flag=True, help="Delete the branch NAME. Its reflog stays.")
@click.option("--forget", is_flag=True, help="With -d: drop its reflog too, and all that it alone leads to.")
@click.option("-m", "--move", is_flag=True, help="Rename the branch NAME to AT, or HEAD's branch to NAME.")
@click.option("-a", "--all", "everything", is_flag=True, help="List the branches of remotes too.")
@click.option("-v", "--verbose", is_flag=True, help="List the newest branch first, with the times.")
@click.option("--prefix", default="", help="List only the branches whose names begin with PREFIX.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="List only the branches with this label. VALUE is JSON, as 3 or true, or else text. Repeatable.",
)
@click.option("--after", metavar="BRANCH", help="List only the branches behind BRANCH in the list.")
@click.option("--reverse", is_flag=True, help="List the last name first.")
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="List at most N branches.")
@click.option("--show-current", "current", is_flag=True, help="Print the name of HEAD's branch alone.")
def branch(
    session: Session,
    name: str | None,
    at: str | None,
    delete: bool,
    forget: bool,
    move: bool,
    everything: bool,
    verbose: bool,
    prefix: str,
    labels: tuple[str, ...],
    after: str | None,
    reverse: bool,
    limit: int | None,
    current: bool,
) -> None:
    """List, create, delete or rename branches.

    Without NAME, list the branches; a * marks HEAD's branch. A branch of a remote is shown as remotes/...,
    at its position when this store last saw it. With NAME, create that branch at the revision AT
    (default: HEAD). HEAD does not move; use `vstate checkout -b` for that.
    """
    if (delete or move) and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    if delete and (move or at is not None):
        raise click.UsageError("-d takes one NAME, without AT and without -m.")
    if forget and not delete:
        raise click.UsageError("--forget goes with -d.")
    if (everything or current) and (name is not None or everything is current):
        raise click.UsageError("--all and --show-current go without NAME, and one at a time.")
    paged = bool(prefix or reverse or labels) or after is not None or limit is not None
    if paged and (name is not None or everything or current):
        raise click.UsageError("Options that choose branches go without NAME, --all and --show-current.")
    if current:
        _show_current(session)
        return
    if name is None:
        wanted = dict(map(_label, labels))
        first = None if verbose else limit
        chosen = partial(session.repo.branch_names, prefix, labels=wanted, after=after, limit=first)
        _list(session, chosen(reverse=reverse) if paged else None, everything, verbose, limit)
        return
    repo = session.repo
    if delete:
        name = typed_ref(name)
        commit, verb = repo.delete_branch(name, forget=forget), "Forgot" if forget else "Deleted"
        done = f"{verb} branch {name}, which was at"
    elif move:
        old, name = (session.branch(), name) if at is None else (typed_ref(name), at)
        commit, done = repo.rename_branch(old, name), f"Renamed branch {old} to {name}, at"
    else:
        commit, done = repo.create_branch(name, "HEAD" if at is None else at), f"Created branch {name} at"
    if session.json:
        session.out.json(_document(name, commit.id, repo.refs.head().branch))
    else:
        session.out.line(f"{safe(done)} ", *commits.summary(commit))


def _label(text: str) -> tuple[str, Atom]:
    """The name and the value of a label as the command line has it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--label {text!r} is no NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _show_current(session: Session) -> None:
    head = session.repo.refs.head()
    if session.json:
        session.out.json(head.branch)
    elif head.branch is not None:  # as git, nothing for a detached HEAD
        session.out.line(safe(head.branch))


def _list(
    session: Session, names: list[str] | None, everything: bool, verbose: bool, limit: int | None
) -> None:
    out, repo = session.out, session.shown
    head, remotes = repo.refs.head(), repo.refs.list(REMOTES) if everything else {}
    if session.json and not verbose:
        ids = repo.branch_ids(names) | {REMOTES + name: str(oid) for name, oid in remotes.items()}
        out.json([_document(name, oid, head.branch) for name, oid in ids.items()])
        return
    branches = repo.branches(names)
    branches |= {REMOTES + name: repo.objects.commit(oid) for name, oid in remotes.items()}
    if names is None and not session.json:  # a page of the list may be without HEAD's branch
        if head.branch is None and head.commit is not None:
            out.line("* ", (f"(HEAD detached at {head.commit.short})", "bold cyan"))
        elif head.branch is not None and head.branch not in branches:
            out.line("* ", (safe(head.branch), "bold green"), ("  no commit yet", "dim"))
    shown = [*branches.items()]
    if verbose:
        shown = sorted(shown, key=lambda item: -item[1].order)[:limit]
    if session.json:
        more = ({"time": each.time.isoformat(), "message": each.message} for _, each in shown)
        out.json([_document(name, each.id, head.branch) | next(more) for name, each in shown])
        return
    titles = {name: shown_ref(name) if verbose else name for name, _ in shown}
    width = name_width(titles.values())
    for name, commit in shown:
        mark, style = ("* ", "bold green") if name == head.branch else ("  ", "")
        time: Line = [(out.moment(commit.time), "dim"), "  "] if verbose else []
        out.line(mark, (padded(safe(titles[name]), width), style), "  ", *time, *commits.summary(commit))


def _document(name: str, commit: str, current: str | None) -> Document:
    return {"name": name, "commit": commit, "head": name == current}
