"""Live: `vstate watch` and `vstate view` show the history until Ctrl-C, as programs commit."""

from __future__ import annotations

import webbrowser
from functools import partial
from itertools import islice
from pathlib import Path

import click

from vstate.display import documents
from vstate.errors import InvalidInput
from vstate.extras import install
from vstate.state.watching import Watch
from vstate.values.inspection import size_text
from vstate_cli import changes, commits
from vstate_cli.output import safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, KEY, REV, Count


@command(
    "watch",
    reads=True,
    examples=["vstate watch -n 1 --since v1", "vstate watch 'agent:*'", "vstate watch --json"],
    json="one object a line, one for each change: {key, kind, old, new, commit}. old and new are {type, "
    "size} with the size in bytes, or null; commit is the id of the commit that made the change.",
)
@click.argument("pattern", default="*", type=KEY)
@click.option("--branch", type=BRANCH, help="Watch this branch, not HEAD's.")
@click.option("--since", type=REV, help="Begin after REV, not after now.")
@click.option("-n", "limit", type=Count(min=0), help="Stop after N changes.")
def watch(session: Session, pattern: str, branch: str | None, since: str | None, limit: int | None) -> None:
    """Show the changes of keys as programs commit them, until Ctrl-C.

    PATTERN chooses keys as a shell chooses files: `agent:*`. Each line has the commit, and the key with the
    change: + added, ~ modified, - removed.
    """
    repo, out = session.repo, session.out
    name = repo.refs.head().branch if branch is None else branch
    if name is None:
        raise InvalidInput("HEAD is detached, so it has no branch to watch; name one with --branch BRANCH")
    seen = repo.newest(name) if since is None else repo.resolve(since)
    if branch is not None:
        repo.branch(branch)  # NotFound names similar branches
    with Watch(repo, name, pattern, seen) as found:
        for _, change, commit in islice(found, limit):
            if session.json:
                out.json(documents.change_document(change) | {"commit": commit.id}, indent=None)
            else:
                out.line(*commits.summary(commit), "  ", *changes.line(change))
            out.flush()


@command(
    "view",
    examples=[
        "vstate view",
        "vstate view agent-state --open",
        "vstate view --port 8000 --write",
        "vstate view --export history.html --rev v1..main",
    ],
    json="{url}, the address with the token, before the viewer serves. With --export, {file, bytes}.",
)
@click.argument("place", metavar="[STORE]", required=False)
@click.option("--port", type=Count(0, 65535), default=0, help="Listen on port N. Default: a free one.")
@click.option(
    "--host", default="127.0.0.1", metavar="HOST", help="Listen on HOST. Default: this machine alone."
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser.")
@click.option("--write", is_flag=True, help="Let the page fork, tag, roll back, revert, merge and edit.")
@click.option(
    "--behind-tls", is_flag=True, help="A server in front encrypts; needed for a HOST that others reach."
)
@click.option(
    "--export",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the history into a page that needs no server.",
)
@click.option("--rev", type=REV, help="With --export: the history up to REV, or that of A..B.")
def view(
    session: Session,
    place: str | None,
    port: int,
    host: str,
    is_opened: bool,
    write: bool,
    behind_tls: bool,
    export: str | None,
    rev: str | None,
) -> None:
    """Show the history in a browser, until Ctrl-C.

    The page shows commits, keys, values, changes and conversations. It runs nothing of the store, and it
    changes nothing without --write. Only this machine can reach the page, and only with the token in the
    printed address. This needs two packages: pip install '.[view]'.
    """
    if place is not None:
        session.store = place
    if export is not None:
        _export(session, rev or "HEAD", export)
        return
    if rev is not None:
        raise click.UsageError("--rev chooses what --export writes: give both, or choose in the browser.")
    try:
        from vstate.viewer.asgi import application  # late, as every package that is optional
        from vstate.viewer.server import require_private, serve
    except ImportError as error:
        raise InvalidInput(f"vstate view needs more packages ({error}): {install('view')}") from None
    require_private(host, behind_tls)

    def ready(address: str, token: str) -> None:
        url = f"{address}/?token={token}"
        if session.json:
            session.out.json({"url": url}, indent=None)
        else:
            session.out.line(f"Viewing {safe(store.location)} at")
            session.out.line("  ", (url, "bold"))
            session.out.line(("Press Ctrl-C to end.", "dim"))
        session.out.flush()
        if is_opened:
            webbrowser.open(url)

    store = session.repo.store
    serve(partial(application, store, write=write), host=host, port=port, ready=ready)


def _export(session: Session, rev: str, file: str) -> None:
    from vstate.viewer.exporting import export_html  # late: only this option needs it

    page = export_html(session.repo, rev, progress=partial(session.out.progress, "exporting commits"))
    data = page.encode("utf-8", "replace")
    Path(file).expanduser().write_bytes(data)
    text = f"{safe(file)}: {size_text(len(data))}. Open it in a browser; it needs no server."
    session.answer({"file": file, "bytes": len(data)}, [[text]])
