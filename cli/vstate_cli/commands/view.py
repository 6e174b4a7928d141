"""`vstate view`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from vstate.errors import InvalidInput
from vstate.extras import install
from vstate.values.inspection import size_text
from vstate_cli.output import safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


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
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Listen on port N. Default: a free one.",
)
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
@click.option(
    "--rev",
    default="HEAD",
    metavar="REV",
    shell_complete=complete_revision,
    help="With --export: the history up to REV, or that of A..B.",
)
def view(
    session: Session,
    place: str | None,
    port: int,
    host: str,
    is_opened: bool,
    write: bool,
    behind_tls: bool,
    export: str | None,
    rev: str,
) -> None:
    """Show the history in a browser, until Ctrl-C.

    The page shows commits, keys, values, changes and conversations. It runs nothing of the store, and it
    changes nothing without --write. Only this machine can reach the page, and only with the token in the
    printed address. This needs two packages: pip install '.[view]'.
    """
    if place is not None:
        session.use(place)
    if export is not None:
        _export(session, rev, export)
        return
    try:
        from vstate.viewer.server import is_loopback, serve  # late, as every package that is optional
    except ImportError as error:
        raise InvalidInput(f"vstate view needs more packages ({error}): {install('view')}") from None
    if not is_loopback(host) and not behind_tls:
        raise InvalidInput(
            f"other machines reach {host}, and would get the token and the values unencrypted: put a server "
            "with TLS in front, and say so with --behind-tls"
        )

    def ready(url: str) -> None:
        if session.json:
            session.out.json({"url": url}, indent=None)
        else:
            session.out.line(f"Viewing {store.location} at")
            session.out.line("  ", (url, "bold"))
            session.out.line(("Press Ctrl-C to end.", "dim"))
        session.out.flush()
        if is_opened:
            webbrowser.open(url)

    store = session.repo.store
    serve(store, host=host, port=port, write=write, ready=ready)


def _export(session: Session, rev: str, file: str) -> None:
    from vstate.viewer.exporting import export_html  # late: only this option needs it

    with ProgressBar() as bar:
        page = export_html(session.repo, rev, progress=lambda number: bar("exporting commits", number))
    data = page.encode("utf-8", "replace")
    Path(file).expanduser().write_bytes(data)
    if session.json:
        session.out.json({"file": file, "bytes": len(data)})
    else:
        session.out.line(f"{safe(file)}: {size_text(len(data))}. Open it in a browser; it needs no server.")
