"""`vstate remote`."""

from __future__ import annotations

import click

from vstate_cli import documents
from vstate_cli.output import safe
from vstate_cli.render import name_width
from vstate_cli.session import Session, command, complete_remote


@command(
    "remote",
    examples=[
        "vstate remote",
        "vstate remote add backup /backup/agent",
        "vstate remote add origin 'redis://:${REDIS_PASSWORD}@host/0'",
        "vstate remote remove backup",
    ],
    json="a list of {name, url}; with NAME the one remote that was added or removed.",
)
@click.argument("action", type=click.Choice(["list", "add", "remove"]), default="list")
@click.argument("name", required=False, shell_complete=complete_remote)
@click.argument("url", required=False)
def remote(session: Session, action: str, name: str | None, url: str | None) -> None:
    """List, add or remove remotes, the other stores that this one knows by name.

    `add` takes NAME and URL, `remove` NAME: it forgets where the branches there were, too. A password in the
    URL is refused, since the URL is kept: put it into a variable of the environment, and ${VARIABLE} in its
    place. A store that was cloned has the remote `origin`.
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
        documents.write(session.out, {"name": name, "url": url})
    else:
        session.out.line(f"{done} the remote ", (safe(name), "bold"), f", {safe(url)}.")


def _list(session: Session, remotes: dict[str, str]) -> None:
    if session.json:
        documents.write(session.out, [{"name": name, "url": url} for name, url in remotes.items()])
        return
    width = name_width(remotes)
    for name, url in remotes.items():
        session.out.line((f"{safe(name):{width}}", "bold"), f"  {safe(url)}")
