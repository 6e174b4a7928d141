"""`vstate tag`."""

from __future__ import annotations

import click

from vstate.errors import NotFound
from vstate.objects.commit import Commit
from vstate.similar import similar
from vstate_cli.changes import name_width
from vstate_cli.output import padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision, complete_tag


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
@click.argument("name", required=False, shell_complete=complete_tag)
@click.argument("at", required=False, shell_complete=complete_revision)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag NAME.")
@click.option("-m", "--move", is_flag=True, help="Rename the tag NAME to AT.")
def tag(session: Session, name: str | None, at: str | None, delete: bool, move: bool) -> None:
    """List, create, delete or rename tags.

    Without NAME, list the tags. With NAME, create that tag at the revision AT (default: HEAD). A tag names
    a commit and does not move. To put a tag on another commit, delete it first.
    """
    if (delete or move) and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    if delete and (move or at is not None):
        raise click.UsageError("-d takes one NAME, without AT and without -m.")
    if move and at is None:
        raise click.UsageError("-m takes two names, the old one and the new one.")
    if name is None:
        _list(session)
        return
    repo = session.repo
    if delete:
        commit, done = repo.delete_tag(name), f"Deleted tag {name}, which was at"
    elif move and at is not None:
        commit, done = _rename(session, name, at), f"Renamed tag {name} to {at}, at"
        name = at
    else:
        commit, done = repo.create_tag(name, "HEAD" if at is None else at), f"Created tag {name} at"
    if session.json:
        session.out.json({"name": name, "commit": commit.id})
    else:
        session.out.line(f"{safe(done)} ", *session.summary(commit))


def _rename(session: Session, old: str, new: str) -> Commit:
    tags = session.repo.tags()
    if old not in tags:
        raise NotFound(f"no tag {old!r}", name=old, candidates=similar(old, tags))
    session.repo.create_tag(new, tags[old])
    return session.repo.delete_tag(old)


def _list(session: Session) -> None:
    tags = session.repo.tags()
    if session.json:
        session.out.json([{"name": name, "commit": commit.id} for name, commit in tags.items()])
        return
    width = name_width(tags)
    for name, commit in tags.items():
        session.out.line((padded(safe(name), width), "bold yellow"), "  ", *session.summary(commit))
