"""Sharing: `vstate clone`, `push`, `pull` and `fetch` move commits between stores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import click

from vstate.errors import DetachedHead, InvalidInput, MergeConflict
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo import clone as store_clone
from vstate.repo.exchange import sync
from vstate.repo.exchange.sync import SyncReport
from vstate.repo.inert import InertRepository
from vstate.repo.merge.three_way import MergeResult
from vstate.repo.names.refs import REMOTES
from vstate.repo.names.remotes import is_url
from vstate.values.inspection import size_text
from vstate_cli.commands.merging import refuse_merge
from vstate_cli.commits import id_of
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.store import DIRECTORY, with_variables
from vstate_cli.suggestions import BRANCH, REMOTE

_STYLES = {
    "created": "green",
    "moved": "green",
    "forced": "bold red",
    "deleted": "bold red",
    "diverged": "bold red",
    "left": "bold",
}


@command(
    "clone",
    examples=[
        "vstate clone /srv/agent work",
        "vstate clone ../agent/.vstate",
        "vstate clone 'redis://:${REDIS_PASSWORD}@host/0' .vstate",
    ],
    json="{refs: [{name, status, old, new, objects, bytes}], objects, bytes, seconds}. name is the full name "
    'of the ref, as heads/main, tags/v1 or remotes/origin/main; status is "created", "moved", "forced", '
    '"unchanged", "deleted", "left" (a tag at another commit stays) or "fetched" (no ref keeps the commit); '
    "old and new are ids of commits, or null; objects and bytes count new objects in their stored form.",
)
@click.argument("url", metavar="URL")
@click.argument("directory", metavar="DIR", required=False)
def clone(session: Session, url: str, directory: str | None) -> None:
    """Copy the store at URL into DIR.

    For a store at a path, DIR defaults to the name of its directory, here: `agent` for /srv/agent, and for
    /srv/agent/.vstate.

    The copy has all branches with their merge policies, all tags, and their whole history. DIR is a new
    store of any kind. URL becomes its remote `origin`, for `vstate push`, `pull` and `fetch`. The new store
    keeps the URL, so a password in it is refused: put the password into a variable of the environment, and
    ${NAME} into the URL. To continue an interrupted clone, run the command again.
    """
    directory = directory or _name_of(url)
    report = store_clone.clone(url, with_variables(directory), progress=session.out.progress)
    if not session.json:
        scheme, is_url, _ = directory.partition("://")
        # The rest of a URL may hold a password.
        session.out.line(f"Cloned into {safe(f'{scheme}://…' if is_url else directory)}.")
    _show(session, report, "wrote")


def _name_of(url: str) -> str:
    """The directory that a clone of a store at a path goes to; a usage error for a URL."""
    path = Path() if is_url(url) else Path(url).absolute()
    name = path.parent.name if path.name == DIRECTORY else path.name
    if not name:
        raise click.UsageError("Missing argument 'DIR': only the path of a store gives it a name.")
    return name


@command(
    "push",
    examples=[
        "vstate push",
        "vstate push origin main what-if --tags",
        "vstate push /backup/agent main --create",
        "vstate push origin --delete what-if",
    ],
    json="the same object as `vstate clone --json`. If the push could not update origin/BRANCH here, "
    "not_noted says why.",
)
@click.argument("remote", metavar="REMOTE|URL", required=False, type=REMOTE)
@click.argument("branch", nargs=-1, type=BRANCH)
@click.option("-f", "--force", is_flag=True, help="Move remote branches even if they lose commits.")
@click.option("--tags", is_flag=True, help="Send all tags, too.")
@click.option(
    "-d", "--delete", multiple=True, type=BRANCH, help="Delete that remote branch. Its reflog stays."
)
@click.option("--create", is_flag=True, help="Create the remote store if there is none.")
def push(
    session: Session,
    remote: str | None,
    branch: tuple[str, ...],
    force: bool,
    tags: bool,
    delete: tuple[str, ...],
    create: bool,
) -> None:
    """Send branches to another store.

    Sends each BRANCH (default: HEAD's) to the branch of the same name in REMOTE (default: `origin`), or in
    the store at a path or URL. Only missing objects are sent. If the remote branch has commits that you
    lack, nothing is sent: run `vstate pull` first, or use --force. To continue an interrupted push, run the
    command again.
    """
    report = session.repo.push(
        remote,
        branch or None,
        force=force,
        tags=tags,
        delete=delete,
        create=create,
        progress=session.out.progress,
    )
    _show(session, report, "sent")


@command(
    "pull",
    moves=True,
    examples=["vstate pull", "vstate pull origin main", "vstate pull /backup/agent"],
    json="{fetched, branches: [{name, strategy, commit, merged_keys}]}. fetched is a list of objects "
    'as `vstate clone --json` prints one; strategy is "up-to-date", "fast-forward" or "merge".',
)
@click.argument("remote", metavar="REMOTE|URL", required=False, type=REMOTE)
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
                other = repo.resolve(commit)
                is_there = repo.refs.read(f"{REMOTES}{where}") == commit
                refuse_merge(session, name, other, where if is_there else other.short, error)

        report, result = sync.pull(repo, remote, name, merge, remote=None, progress=session.out.progress)
        fetched.append(_document(report))
        merged.append(
            {
                "name": name,
                "strategy": result.strategy,
                "commit": id_of(result.commit),
                "merged_keys": list(result.merged_keys),
            }
        )
        if not session.json:
            _show(session, report, "received")
            session.out.line((safe(name), "bold green"), f": {safe(str(result))}")
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


@command(
    "fetch",
    examples=["vstate fetch", "vstate fetch origin main", "vstate fetch backup --tags"],
    json="the same object as `vstate clone --json`.",
)
@click.argument("remote", metavar="REMOTE|URL", required=False, type=REMOTE)
@click.argument("branch", nargs=-1, type=BRANCH)
@click.option("--tags", is_flag=True, help="Create the tags that this store does not have, too.")
def fetch(session: Session, remote: str | None, branch: tuple[str, ...], tags: bool) -> None:
    """Copy branches from another store, as REMOTE/BRANCH.

    Fetches each BRANCH (default: all) of REMOTE (default: `origin`), and moves no branch here. Look at the
    result with `vstate log origin/main` or `vstate diff main origin/main`. From a path or URL, no ref keeps
    the commits, and `vstate gc` removes them: use `vstate remote add` first. To continue an interrupted
    fetch, run the command again.
    """
    report = session.repo.fetch(remote, branch or None, tags=tags, progress=session.out.progress)
    _show(session, report, "received")


def _show(session: Session, report: SyncReport, verb: str) -> None:
    """Print the report of a transfer; its lines begin with `verb`."""
    session.answer(_document(report), _lines(report, verb))
    if report.not_noted and not session.json:
        session.out.note(f"could not note here which commits the branches there are at: {report.not_noted}")


def _document(report: SyncReport) -> Document:
    members = dataclasses.asdict(report)
    if not report.not_noted:
        del members["not_noted"]
    return members


def _lines(report: SyncReport, verb: str) -> Iterator[Line]:
    """The size of the transfer, then a line for each ref."""
    yield [f"{verb} {counted(report.objects, 'object')}, {size_text(report.bytes)}"]
    for ref in report.refs:
        was = f" from {ref.old[:10]}" if ref.old is not None and ref.status in ("moved", "forced") else ""
        yield ref_line(ref.status, ref.name, ref.new or ref.old or "", was)


def ref_line(status: str, name: str, commit: str, remark: str) -> Line:
    """One ref, indented."""
    return [
        "  ",
        (f"{status:9}", _STYLES.get(status, "dim")),
        f" {safe(name)}  ",
        (commit[:10], "yellow"),
        (remark, "dim"),
    ]
