"""`vstate blame`."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.cells import cell_len

from vstate.errors import KeyNotFound, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import find_part
from vstate.repo.search.blame import Blamed
from vstate.values.inert import plain, preview
from vstate_cli import documents, render
from vstate_cli.output import Line, Progress, safe
from vstate_cli.session import Session, command, complete_key, complete_revision

_WIDEST_MESSAGE = 30
_WIDEST_PATH = 30
_ALL_NODES = 1_000_000  # parts of all the values that JSON shows
_FEWEST_NODES = 1000  # of each of them


@command(
    "blame",
    examples=[
        "vstate blame messages",
        "vstate blame messages '[3].content'",
        "vstate blame plan --rev main~10",
    ],
    json="a list of {path, line, commit, time, message, value}, one for each element: path is empty for the whole "
    "value and for a line of a text, whose number line is, null otherwise; commit is an id.",
)
@click.argument("key", shell_complete=complete_key)
@click.argument("path", required=False)
@click.option(
    "--rev", default="HEAD", metavar="REV", shell_complete=complete_revision, help="Seen from REV (HEAD)."
)
def blame(session: Session, key: str, path: str | None, rev: str) -> None:
    """Show which commit last changed each part of a value.

    Each element of the value of KEY: the items of a list, the entries of a dict, the fields of an object, the lines
    of a text. An item keeps its commit when others come before it. With PATH, as `vstate diff` prints it, only
    what is there, however deep inside.
    """
    commit = session.repo.resolve(rev)
    with Progress("commits") as progress:
        try:
            found = _found(session, commit, key, path, progress)
        except KeyNotFound as error:
            raise NotFound(str(error), name=key, candidates=session.similar_keys(commit, key)) from None
    if session.json:
        nodes = max(_ALL_NODES // len(found), _FEWEST_NODES)
        documents.write_array(session.out, (_document(each, nodes) for each in found))
    else:
        session.out.lines(_lines(session, found))


def _found(session: Session, commit: Commit, key: str, path: str | None, progress: Progress) -> list[Blamed]:
    repo = session.repo
    if path is None:
        return repo.blame_items(commit, key, progress=progress.update)
    blamed = repo.blame(commit, key, path, progress=progress.update)
    data = tree.lookup(repo.objects.node, commit.tree, key)
    assert data is not None  # it was blamed
    value = repo.inspect(key, data)
    trail = find_part(value, path, Fingerprints())
    return [Blamed(path, blamed, trail[-1].value if trail else value)]


def _lines(session: Session, found: list[Blamed]) -> Iterator[Line]:
    names = [safe(str(each.line) if each.line is not None else each.path) for each in found]
    messages = [safe(render.subject(each.commit), _WIDEST_MESSAGE) for each in found]
    width = min(max(map(cell_len, names)), _WIDEST_PATH)
    message_width = max(map(cell_len, messages))
    for each, name, message in zip(found, names, messages, strict=True):
        time = render.moment(each.commit.time)
        text = safe(str(each.value)) if each.line is not None else preview(each.value, width=None)
        aligned = name.rjust(width) if each.line is not None else name + " " * max(width - cell_len(name), 0)
        message += " " * (message_width - cell_len(message))
        used = 10 + len(time) + message_width + max(width, cell_len(name)) + 8
        yield [
            (each.commit.short, "yellow"), "  ", (time, "dim"), "  ", message, "  ", (aligned, "cyan"), "  ",
            session.out.fit(text, used),
        ]  # fmt: skip


def _document(each: Blamed, nodes: int) -> documents.Document:
    return {
        "path": each.path,
        "line": each.line,
        "commit": each.commit.id,
        "time": each.commit.time.isoformat(),
        "message": each.commit.message,
        "value": plain(each.value, max_nodes=nodes),
    }
