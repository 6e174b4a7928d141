"""`vstate clone`."""

from __future__ import annotations

from pathlib import Path

import click

from vstate.repo import clone as store_clone
from vstate.repo.names.remotes import is_url
from vstate_cli import moved_refs
from vstate_cli.output import safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.store import DIRECTORY, with_variables


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
    with ProgressBar() as bar:
        report = store_clone.clone(url, with_variables(directory), progress=bar)
    if not session.json:
        scheme, is_url, _ = directory.partition("://")
        # The rest of a URL may hold a password.
        session.out.line(f"Cloned into {safe(f'{scheme}://…' if is_url else directory)}.")
    moved_refs.show(session, report, "wrote")


def _name_of(url: str) -> str:
    """The directory that a clone of a store at a path goes to; a usage error for a URL."""
    path = Path() if is_url(url) else Path(url).absolute()
    name = path.parent.name if path.name == DIRECTORY else path.name
    if not name:
        raise click.UsageError("Missing argument 'DIR': only the path of a store gives it a name.")
    return name
