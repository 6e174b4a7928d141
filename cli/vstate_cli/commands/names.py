"""Names: `vstate branch`, `vstate tag` and `vstate remote` list, make and remove them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

import click

from vstate.objects.commit import Commit
from vstate.repo.names.dates import shown_ttl
from vstate.repo.names.refs import REMOTES, absent, shown_ref, typed_ref
from vstate.repo.rules.keeps import find_rule
from vstate.repo.rules.labels import Atom
from vstate_cli import commits
from vstate_cli.changes import name_width
from vstate_cli.output import Document, Line, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import ANY_BRANCH, REMOTE, REV, TAG, Count


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
    json="a list of {name, commit, head, idle}; head is true for HEAD's branch, and idle the seconds without "
    "a commit after which gc deletes the branch, or null. With NAME, one such object, without idle, for the "
    "branch that was created, deleted or renamed. With -v, time and message of the commit too. "
    "With --show-current, the name, null if HEAD is detached.",
)
@click.argument("name", required=False, type=ANY_BRANCH)
@click.argument("at", required=False, type=REV)
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
@click.option("-n", "limit", type=Count(min=0), help="List at most N branches.")
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

    Without NAME, list the branches; a * marks HEAD's branch, and `goes after 1h` one that `vstate gc` deletes
    after an hour without a commit (see `vstate keep`). A branch of a remote is shown as remotes/..., at its
    position when this store last saw it. With NAME, create that branch at the revision AT (default: HEAD).
    HEAD does not move; use `vstate checkout -b` for that.
    """
    _check(name, at, delete=delete, move=move)
    if forget and not delete:
        raise click.UsageError("--forget goes with -d.")
    if (everything or current) and (name is not None or everything is current):
        raise click.UsageError("--all and --show-current go without NAME, and one at a time.")
    paged = bool(prefix or reverse or labels) or after is not None or limit is not None
    if paged and (name is not None or everything or current):
        raise click.UsageError("Options that choose branches go without NAME, --all and --show-current.")
    repo = session.repo
    if current:
        found = repo.refs.head().branch  # as git, nothing for a detached HEAD
        session.answer(found, [] if found is None else [[safe(found)]])
    elif name is None:
        wanted, first = dict(map(_label, labels)), None if verbose else limit
        chosen = partial(repo.branch_names, prefix, labels=wanted, after=after, limit=first)
        by_time = verbose and not (wanted or everything or after is not None)
        names = chosen(reverse=reverse) if paged and not by_time else None
        _list(session, names, everything, verbose, limit, prefix if by_time else None)
    else:
        if delete:
            name = typed_ref(name)
            commit, verb = repo.delete_branch(name, forget=forget), "Forgot" if forget else "Deleted"
            done = f"{verb} branch {name}, which was at"
        elif move:
            old, name = (session.branch(), name) if at is None else (typed_ref(name), at)
            commit, done = repo.rename_branch(old, name), f"Renamed branch {old} to {name}, at"
        else:
            commit, done = repo.create_branch(name, at or "HEAD"), f"Created branch {name} at"
        document = _document(name, commit.id, repo.refs.head().branch)
        session.answer(document, [[f"{safe(done)} ", *commits.summary(commit)]])


def _check(name: str | None, at: str | None, *, delete: bool, move: bool) -> None:
    """Raise a usage error for options that do not go together."""
    if (delete or move) and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    if delete and (move or at is not None):
        raise click.UsageError("-d takes one NAME, without AT and without -m.")


def _label(text: str) -> tuple[str, Atom]:
    """The name and the value of a label as the command line has it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--label {text!r} is no NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _list(
    session: Session,
    names: list[str] | None,
    everything: bool,
    verbose: bool,
    limit: int | None,
    newest: str | None,
) -> None:
    """List these branches, or all, or with the beginning of a name the `newest` ones."""
    repo = session.shown
    current, remotes = repo.refs.head().branch, repo.refs.list(REMOTES) if everything else {}
    if session.json and not verbose:
        ids = repo.branch_ids(names) | {REMOTES + name: str(oid) for name, oid in remotes.items()}
        idle = _idle_limits(session, ids)
        session.out.json(
            [_document(name, oid, current) | {"idle": idle.get(name)} for name, oid in ids.items()]
        )
        return
    branches = dict(repo.branches(names) if newest is None else islice(repo.newest_branches(newest), limit))
    branches |= {REMOTES + name: repo.objects.commit(oid) for name, oid in remotes.items()}
    shown = [*branches.items()]
    if verbose:
        shown = sorted(shown, key=lambda item: -item[1].order)[:limit]
    idle = _idle_limits(session, (name for name, _ in shown))
    documents = [
        _document(name, each.id, current)
        | {"idle": idle.get(name), "time": each.time.isoformat(), "message": each.message}
        for name, each in shown
    ]
    is_page = names is not None or newest or limit is not None  # which may be without HEAD's branch
    if not (is_page or session.json):
        session.out.lines(_head_lines(session, branches))
    session.answer(documents, _branch_lines(session, shown, current, verbose, idle))


def _idle_limits(session: Session, names: Iterable[str]) -> dict[str, float]:
    """After how many seconds without a commit `gc` deletes these branches; of those that it does."""
    rules = session.repo.keeps()
    limits = ((name, find_rule(rules, name).idle) for name in names if not name.startswith(REMOTES))
    return {name: limit.total_seconds() for name, limit in limits if limit is not None}


def _head_lines(session: Session, branches: dict[str, Commit]) -> Iterator[Line]:
    """HEAD, if it is on none of the branches."""
    head = session.repo.refs.head()
    if head.branch is None and head.commit is not None:
        yield ["* ", (f"(HEAD detached at {head.commit.short})", "bold cyan")]
    elif head.branch is not None and head.branch not in branches:
        yield ["* ", (safe(head.branch), "bold green"), ("  no commit yet", "dim")]


def _branch_lines(
    session: Session,
    shown: list[tuple[str, Commit]],
    current: str | None,
    verbose: bool,
    idle: Mapping[str, float],
) -> Iterator[Line]:
    titles = {name: shown_ref(name) if verbose else name for name, _ in shown}
    width = name_width(titles.values())
    for name, commit in shown:
        mark, style = ("* ", "bold green") if name == current else ("  ", "")
        time: Line = [(session.out.moment(commit.time), "dim"), "  "] if verbose else []
        ends: Line = [(f"  goes after {shown_ttl(idle[name])}", "dim")] if name in idle else []
        yield [mark, (padded(safe(titles[name]), width), style), "  ", *time, *commits.summary(commit), *ends]


def _document(name: str, commit: str, current: str | None) -> Document:
    return {"name": name, "commit": commit, "head": name == current}


@command(
    "tag",
    examples=[
        "vstate tag",
        "vstate tag v1",
        "vstate tag before-merge HEAD~1",
        "vstate tag -m v1 v1.0",
        "vstate tag -d v1.0",
    ],
    json="a list of {name, commit}. With NAME, one such object for the tag that was created, deleted or "
    "renamed.",
)
@click.argument("name", required=False, type=TAG)
@click.argument("at", required=False, type=REV)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag NAME.")
@click.option("-m", "--move", is_flag=True, help="Rename the tag NAME to AT.")
def tag(session: Session, name: str | None, at: str | None, delete: bool, move: bool) -> None:
    """List, create, delete or rename tags.

    Without NAME, list the tags. With NAME, create that tag at the revision AT (default: HEAD). A tag names
    a commit and does not move. To put a tag on another commit, delete it first.
    """
    _check(name, at, delete=delete, move=move)
    if move and at is None:
        raise click.UsageError("-m takes two names, the old one and the new one.")
    repo = session.repo
    if name is None:
        tags = repo.tags()
        width = name_width(tags)
        lines = (
            [(padded(safe(name), width), "bold yellow"), "  ", *session.summary(commit)]
            for name, commit in tags.items()
        )
        session.answer([{"name": name, "commit": commit.id} for name, commit in tags.items()], lines)
        return
    if delete:
        commit, done = repo.delete_tag(name), f"Deleted tag {name}, which was at"
    elif move and at is not None:
        commit, done = _rename_tag(session, name, at), f"Renamed tag {name} to {at}, at"
        name = at
    else:
        commit, done = repo.create_tag(name, at or "HEAD"), f"Created tag {name} at"
    session.answer({"name": name, "commit": commit.id}, [[f"{safe(done)} ", *session.summary(commit)]])


def _rename_tag(session: Session, old: str, new: str) -> Commit:
    tags = session.repo.tags()
    if old not in tags:
        raise absent(f"no tag {old!r}", old, tags, "tag", "vstate tag")
    session.repo.create_tag(new, tags[old])
    return session.repo.delete_tag(old)


@command(
    "remote",
    examples=[
        "vstate remote",
        "vstate remote add backup /backup/agent",
        "vstate remote add origin 'redis://:${REDIS_PASSWORD}@host/0'",
        "vstate remote remove backup",
    ],
    json="a list of {name, url}. With NAME, one such object for the remote that was added or removed.",
)
@click.argument("action", type=click.Choice(["list", "add", "remove"]), default="list")
@click.argument("name", required=False, type=REMOTE)
@click.argument("url", required=False)
def remote(session: Session, action: str, name: str | None, url: str | None) -> None:
    """List, add or remove remotes.

    A remote is a name for another store. `add` takes NAME and URL. `remove` takes NAME, and also forgets
    the positions of the branches there. The store keeps the URL, so a password in it is refused: put the
    password into a variable of the environment, and ${VARIABLE} into the URL. A cloned store has the remote
    `origin`.
    """
    if (action == "list") != (name is None) or (action == "add") != (url is not None):
        raise click.UsageError("`add` takes NAME and URL, `remove` takes NAME, `list` takes nothing.")
    remotes = session.repo.remotes
    if name is None:
        found = remotes.list()
        width = name_width(found)
        lines: list[Line] = [
            [(padded(safe(name), width), "bold"), f"  {safe(url)}"] for name, url in found.items()
        ]
        session.answer([{"name": name, "url": url} for name, url in found.items()], lines)
        return
    if url is not None:
        url, done = remotes.add(name, url), "Added"
    else:
        url, done = remotes.remove(name), "Removed"
    line: Line = [f"{done} the remote ", (safe(name), "bold"), f", {safe(url)}."]
    session.answer({"name": name, "url": url}, [line])
