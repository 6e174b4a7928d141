"""`vstate bisect`."""

from __future__ import annotations

from itertools import islice

import click

from vstate.errors import InvalidInput
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate_cli import documents, render
from vstate_cli.expression import Expression
from vstate_cli.session import Session, command, complete_key, complete_revision

_MOST_KEYS = 20
_MOST_DETAILS = 10


@command(
    "bisect",
    examples=[
        "vstate bisect plan 'value.goal != \"\"' --good HEAD~100",
        "vstate bisect budget 'missing or 0 <= value' --good v1 --bad main@{yesterday}",
        "vstate bisect messages 'all(len(m[\"content\"]) < 1000 for m in value)' --good v1",
    ],
    json="{first_bad, tested, changes}: a commit {id, parents, tree, time, message, info, refs}, a list of {commit, "
    "good, left} in the order of the tests, and {added, modified, removed}: lists of the keys it changed.",
)
@click.argument("key", shell_complete=complete_key)
@click.argument("expr")
@click.option(
    "--good",
    required=True,
    metavar="REV",
    shell_complete=complete_revision,
    help="A commit at which EXPR holds.",
)
@click.option(
    "--bad",
    default="HEAD",
    metavar="REV",
    shell_complete=complete_revision,
    help="A later one at which it does not (HEAD).",
)
def bisect(session: Session, key: str, expr: str, good: str, bad: str) -> None:
    """Find the first commit at which something no longer holds.

    EXPR is what holds of `value`, the value of KEY, while all is well: of a thousand commits some ten are tested. It
    takes for granted that what once went wrong stays so. Where KEY is absent, `missing` is true and `value` None.

    EXPR is written like Python, but not run by it: comparisons, and, or, not, in, + - * / // %, value["key"],
    value[-1], value[1:], the fields of an object as value.field, if-else, comprehensions, lists, tuples, dicts and
    sets; len, min, max, sum, abs, sorted, any, all; startswith, endswith, lower, upper, strip of texts; get, keys,
    values, items of dicts.
    """
    repo, out = session.repo, session.out
    expression = Expression(expr)
    tested: list[documents.Document] = []

    def holds(commit: Commit) -> bool:
        data = tree.lookup(repo.objects.node, commit.tree, key)
        where = f"at {commit.short}" + (f", where there is no key {key!r}" if data is None else "")
        try:
            value = None if data is None else repo.inspect(key, data)
            return expression.holds(value, missing=data is None)
        except documents.UNREADABLE as error:
            raise InvalidInput(f"{where}: {error}") from None

    def report(commit: Commit, good: bool, left: int) -> None:
        tested.append({"commit": commit.id, "good": good, "left": left})
        if not session.json:
            mark = ("good  ", "green") if good else ("bad   ", "red")
            remaining = f"  ({left:,} left)" if left else ""
            out.line(mark, (commit.short, "yellow"), f"  {render.subject(commit)}", (remaining, "dim"))

    first = repo.bisect(holds, good, bad, report=report)
    changes = repo.changes(first)
    refs = session.refs().get(first.id, [])
    if session.json:
        document = {"first_bad": documents.commit(first, refs), "tested": tested}
        documents.write(out, document | {"changes": documents.keys(changes)})
        return
    out.line()
    decoration = render.decoration(refs, first.id, repo.refs.head())
    out.line("The first bad commit is ", (first.id, "yellow"), *decoration)
    out.line("    ", render.subject(first))
    out.line("    ", (render.moment(first.time), "dim"), *render.info_parts(first))
    shown = [*islice(changes.values(), _MOST_KEYS)]
    width = render.name_width(change.key for change in shown)
    for change in shown:
        out.line("  ", *render.change_line(change, width))
        if change.key == key:
            out.lines(render.change_details(changes, change, out, _MOST_DETAILS), indent="      ")
    out.line("  ", (changes.stat(), "dim"))
