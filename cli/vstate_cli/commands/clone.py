"""`vstate clone`."""

from __future__ import annotations

import click

from vstate_cli import documents, moved_refs
from vstate_cli.output import Bar, safe
from vstate_cli.session import Session, command
from vstate_cli.store import with_variables


@command(
    "clone",
    examples=[
        "vstate clone /srv/agent work",
        "vstate clone 'redis://:${REDIS_PASSWORD}@host/0' .vstate",
    ],
    json=moved_refs.JSON,
)
@click.argument("url", metavar="URL")
@click.argument("directory", metavar="DIR")
def clone(session: Session, url: str, directory: str) -> None:
    """Copy the store at URL into DIR.

    All branches, with their merge policies, all tags, and all that they need. DIR is a new store, of any
    kind, and URL its remote `origin`: `vstate push`, `pull` and `fetch` go there. ${NAME} in the URL stands
    for that variable of the environment; a password in it is refused, since the URL is kept. Interrupted, and
    run again, it goes on where it was.
    """
    from vstate.repo.clone import clone as clone_store  # late: few commands need it

    with Bar() as bar:
        report = clone_store(url, with_variables(directory), progress=bar)
    if session.json:
        documents.write(session.out, moved_refs.document(report))
        return
    # Of a URL no more than that: there may be a password in it.
    scheme, is_url, _ = directory.partition("://")
    session.out.line(f"Cloned into {safe(f'{scheme}://…' if is_url else directory)}.")
    moved_refs.write(session.out, report, "wrote")
