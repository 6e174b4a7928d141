"""`vstate view`."""

from __future__ import annotations

import webbrowser

import click

from vstate.errors import InvalidInput
from vstate_cli.session import Session, command


@command(
    "view",
    examples=["vstate view", "vstate view agent-state --open", "vstate view --port 8000 --write"],
    json="{url}, the address with the token, before the viewer begins to serve.",
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
def view(
    session: Session, place: str | None, port: int, host: str, is_opened: bool, write: bool, behind_tls: bool
) -> None:
    """Show the history in a browser, until Ctrl-C.

    The page shows commits, keys, values, changes and conversations. It runs nothing of the store, and it
    changes nothing without --write. Only this machine can reach the page, and only with the token in the
    printed address. This needs two packages: pip install "vstate[view]".
    """
    try:
        from vstate.viewer.server import is_loopback, serve  # late, as every package that is optional
    except ImportError as error:
        raise InvalidInput(f'vstate view needs more packages ({error}): pip install "vstate[view]"') from None
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

    if place is not None:
        session.use(place)
    store = session.repo.store
    serve(store, host=host, port=port, write=write, ready=ready)
