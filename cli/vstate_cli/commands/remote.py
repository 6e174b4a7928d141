"""`vstate remote`."""

from __future__ import annotations

import click

from vstate_cli.changes import name_width
from vstate_cli.output import padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_remote


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
@click.argument("name", required=False, shell_complete=complete_remote)
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
        _list(session, remotes.list())
        return
    if url is not None:
        url, done = remotes.add(name, url), "Added"
    else:
        url, done = remotes.remove(name), "Removed"
    if session.json:
        session.out.json({"name": name, "url": url})
    else:
        session.out.line(f"{done} the remote ", (safe(name), "bold"), f", {safe(url)}.")


def _list(session: Session, remotes: dict[str, str]) -> None:
    if session.json:
        session.out.json([{"name": name, "url": url} for name, url in remotes.items()])
        return
    width = name_width(remotes)
    for name, url in remotes.items():
        session.out.line((padded(safe(name), width), "bold"), f"  {safe(url)}")
