"""`vstate grep`."""

from __future__ import annotations

import click

from vstate.plural import counted
from vstate.repo.search.texts import find_text
from vstate_cli.output import safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_key, complete_revision

_WIDEST_NAME = 200


@command(
    "grep",
    paged=True,
    reads=True,
    examples=["vstate grep 'lake hotel'", "vstate grep timeout main~20 notes/"],
    json="{places: [{key, path, excerpt}], keys, unread, is_complete}. path is null if the key itself has "
    "the text; keys are the searched ones, unread those among them that cannot be read to the end.",
)
@click.argument("text")
@click.argument("rev", default="HEAD", shell_complete=complete_revision)
@click.argument("prefix", default="", shell_complete=complete_key)
@click.option(
    "-n", "limit", type=click.IntRange(min=1), default=200, show_default=True, metavar="N",
    help="Show at most N places.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
    help="Stop the search after this time.",
)  # fmt: skip
def grep(session: Session, text: str, rev: str, prefix: str, limit: int, timeout: float) -> None:
    """Find TEXT in the keys and values at REV, in upper or lower case.

    Only keys that begin with PREFIX are searched. Each line has a key, a path and the text. To find
    the commits that brought a text or took it out, use `vstate log -S TEXT`.
    """
    repo = session.repo
    found = find_text(repo, repo.resolve(rev), text, prefix, most=limit, seconds=timeout)
    if session.json:
        places = [{"key": each.key, "path": each.path, "excerpt": each.excerpt} for each in found.places]
        numbers = {"keys": found.keys, "unread": found.unread, "is_complete": found.is_complete}
        session.out.json({"places": places, **numbers})
        return
    for place in found.places:
        path = " (key)" if place.path is None else f" {safe(place.path, _WIDEST_NAME)}"
        session.out.line((safe(place.key, _WIDEST_NAME), "green"), (path, "cyan"), f": {safe(place.excerpt)}")
    searched = f"{counted(len(found.places), 'place')} in {counted(found.keys, 'key')}"
    if found.unread:
        searched += f"; {counted(found.unread, 'value')} could not be read to the end"
    if not found.is_complete:
        searched += "; there may be more: give a prefix, or a longer text"
    session.out.aside([[(searched, "dim")]])
