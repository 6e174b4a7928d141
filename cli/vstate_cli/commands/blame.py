"""`vstate blame`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby

import click
from rich.cells import cell_len

from vstate.display.views import part_text
from vstate.errors import KeyNotFound, NotFound
from vstate.repo.search.blame import Blamed
from vstate.values.plain import plain
from vstate.values.preview import preview
from vstate_cli.output import Document, Line, cut, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import PLACE, REV
from vstate_cli.values import NARROW

_WIDEST_MESSAGE = 30
_WIDEST_PATH = 30
_LONGEST_RUN = 20
_FIRST_OF_RUN = 3
_ALL_NODES = 1_000_000  # parts of all values
_FEWEST_NODES = 10  # of each value
_LINE_NODES = 500  # of each value on a line
_ALL_TEXT = 2**24  # characters of all values
_FEWEST_TEXT = 100  # of each value, and of the message beside it
_LONGEST_TEXT = 1_000_000


@command(
    "blame",
    dated=True,
    paged=True,
    reads=True,
    examples=[
        "vstate blame messages",
        "vstate blame messages '[3].content'",
        "vstate blame main~10 plan",
    ],
    json="a list of {path, line, commit, time, message, value}, one for each part. path is empty for the "
    "whole value. For a line of a text, path leads to the text, and line is its number, else null. "
    "commit is an id. If the parts are many, long values and messages are cut.",
)
@click.argument("words", nargs=-1, required=True, metavar="[REV] KEY [PATH]", type=PLACE)
@click.option(
    "--rev", default="HEAD", type=REV, help="The revision, if it is not the first word. Default: HEAD."
)
@click.option("--seconds", type=click.FloatRange(min=0), metavar="N", help="Give up after N seconds.")
def blame(session: Session, words: tuple[str, ...], rev: str, seconds: float | None) -> None:
    """Show which commit last changed each part of a value.

    The parts of the value of KEY are the items of a list, the entries of a dict, the fields of an object or
    the lines of a text. An item keeps its commit when others are inserted before it. PATH leads to one part,
    however deep, in the form that `vstate diff` prints, and shows the parts inside that one.
    """
    commit, key, path = session.place(words, rev, is_key=True)
    if key is None:
        raise click.UsageError("name a key")
    progress = partial(session.out.progress, "reading commits")
    try:
        found = session.repo.blame_items(commit, key, path or "", progress=progress, seconds=seconds)
    except KeyNotFound as error:
        raise NotFound(str(error), name=key, candidates=session.similar_keys(commit, key)) from None
    nodes = max(_ALL_NODES // len(found), _FEWEST_NODES)
    length = _length(found)
    session.answer((_document(each, nodes, length) for each in found), _lines(session, found))


def _lines(session: Session, blamed: list[Blamed]) -> Iterator[Line]:
    """A line for each part. Of a long run of parts that one commit changed, the first and the last ones."""
    found: list[Blamed] = []
    left_out: dict[int, int] = {}  # parts behind a line, by its number
    for (_, is_line), group in groupby(blamed, key=lambda each: (each.commit.oid, each.line is not None)):
        run = [*group]
        if len(run) > _LONGEST_RUN and not is_line:
            left_out[len(found) + _FIRST_OF_RUN - 1] = len(run) - 2 * _FIRST_OF_RUN
            run[_FIRST_OF_RUN:-_FIRST_OF_RUN] = []
        found += run
    names = [safe(str(each.line) if each.line is not None else each.path) for each in found]
    # Once for each commit: its message may be long, and the lines many.
    subjects = {commit: safe(commit.subject, _WIDEST_MESSAGE) for commit in {e.commit for e in found}}
    messages = [subjects[each.commit] for each in found]
    width = min(max(map(cell_len, names)), _WIDEST_PATH)
    message_width = max(map(cell_len, messages))
    length = _length(found)
    nodes = min(max(_ALL_NODES // len(found), _FEWEST_NODES), _LINE_NODES)
    for number, (each, name, message) in enumerate(zip(found, names, messages, strict=True)):
        time = session.out.moment(each.commit.time)
        shown = str(each.value) if each.line is not None else part_text(each.value, length)
        if shown is None:
            shown = preview(each.value, width=None, max_nodes=nodes)
        text = safe(shown, length)
        if session.out.width is None and each.line is None:
            text = cut(text, NARROW)
        aligned = name.rjust(width) if each.line is not None else padded(name, width)
        used = 10 + len(time) + message_width + max(width, cell_len(name)) + 8
        yield [
            (each.commit.short, "yellow"), "  ", (time, "dim"), "  ", padded(message, message_width), "  ",
            (aligned, "cyan"), "  ", session.out.fit(text, used),
        ]  # fmt: skip
        if number in left_out:
            yield [
                (f"{'…':<10}  {left_out[number]:,} more parts of this commit (--json has them all)", "dim")
            ]


def _length(found: list[Blamed]) -> int:
    """The most characters of each value, so that all of them are bounded."""
    return min(max(_ALL_TEXT // len(found), _FEWEST_TEXT), _LONGEST_TEXT)


def _document(each: Blamed, nodes: int, length: int) -> Document:
    return {
        "path": each.path,
        "line": each.line,
        "commit": each.commit.id,
        "time": each.commit.time.isoformat(),
        "message": each.commit.message[:length],
        "value": plain(each.value, max_nodes=nodes, max_text=length),
    }
