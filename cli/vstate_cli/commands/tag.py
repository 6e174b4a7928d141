"""`vstate tag`."""

from __future__ import annotations

import click

from vstate.errors import NotFound
from vstate.objects.commit import Commit
from vstate_cli import documents
from vstate_cli.output import safe
from vstate_cli.render import name_width, subject
from vstate_cli.session import Session, command, complete_revision, complete_tag


@command(
    "tag",
    examples=[
        "vstate tag",
        "vstate tag v1",
        "vstate tag before-merge HEAD~1",
        "vstate tag -m v1 v1.0",
        "vstate tag -d v1.0",
    ],
    json="a list of {name, commit}; with NAME the one tag that was made, deleted or renamed.",
)
@click.argument("name", required=False, shell_complete=complete_tag)
@click.argument("at", required=False, shell_complete=complete_revision)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag NAME.")
@click.option("-m", "--move", is_flag=True, help="Rename the tag NAME to AT.")
def tag(session: Session, name: str | None, at: str | None, delete: bool, move: bool) -> None:
    """List, make, delete or rename tags.

    Without NAME, list them; with NAME, make that tag at the revision AT (HEAD). A tag is a name for a commit that does not move. To move one all the same, delete it first.
    """
    if (delete or move) and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    if delete and (move or at is not None):
        raise click.UsageError("-d takes one NAME, and neither AT nor -m.")
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
        commit, done = repo.create_tag(name, "HEAD" if at is None else at), f"Made tag {name} at"
    if session.json:
        documents.write(session.out, {"name": name, "commit": commit.id})
    else:
        session.out.line(f"{safe(done)} ", (commit.short, "yellow"), f" {subject(commit)}".rstrip())


def _rename(session: Session, old: str, new: str) -> Commit:
    tags = session.repo.tags()
    if old not in tags:
        raise NotFound(f"no tag {old!r}", name=old, candidates=[*tags][:10])
    session.repo.create_tag(new, tags[old])
    return session.repo.delete_tag(old)


def _list(session: Session) -> None:
    tags = session.repo.tags()
    if session.json:
        documents.write(session.out, [{"name": name, "commit": commit.id} for name, commit in tags.items()])
        return
    width = name_width(tags)
    for name, commit in tags.items():
        session.out.line(
            (f"{safe(name):{width}}", "bold yellow"),
            "  ",
            (commit.short, "yellow"),
            f"  {subject(commit)}".rstrip(),
        )
