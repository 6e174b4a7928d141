"""`vstate bisect`, and its conditions: JMESPath expressions, evaluated on the plain data of a value."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final

import click
import jmespath
from jmespath.exceptions import EmptyExpressionError, JMESPathTypeError, ParseError

from vstate.display import documents
from vstate.errors import InvalidInput, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.paths import part_at
from vstate.values.plain import plain
from vstate_cli import changes, commits
from vstate_cli.output import Document, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import KEY, REV
from vstate_cli.values import UNREADABLE

_MOST_KEYS: Final = 20
_MOST_DETAILS: Final = 10
_MOST_NODES: Final = 250_000  # parts of a value: about 60,000 messages with a role and a content
_CUT: Final = frozenset({"$more", "$deep", "$str"})  # keys by which `plain` marks a part that it left out
_NAN: Final = {"$float": "nan"}
_MOST_ITEMS: Final = 1_000_000  # numbers and texts in lists and columns
_MOST_NAMES: Final = 8
_TOO_DEEP: Final = "the expression is nested too deep"
_EXAMPLE: Final = "such as 'value.budget >= `0`'"


@command(
    "bisect",
    dated=True,
    reads=True,
    examples=[
        "vstate bisect plan \"value.goal != ''\" --good HEAD~100",
        "vstate bisect budget 'missing || value >= `0`' --good v1 --bad main@{yesterday}",
        "vstate bisect prices 'price[1995]' 'value > `0`' --good v1",
        "vstate bisect messages 'max(value[*].length(content)) < `1000`' --good v1",
    ],
    json="{first_bad, tested, changes}. first_bad is a commit {id, parents, tree, time, message, info, "
    "refs}; tested is a list of {commit, good, left} in the order of the tests; changes is {added, "
    "modified, removed}, lists of keys.",
)
@click.argument("key", type=KEY)
@click.argument("words", nargs=-1, required=True, metavar="[PATH] EXPR")
@click.option("--good", required=True, type=REV, help="A commit at which EXPR is true.")
@click.option("--bad", default="HEAD", type=REV, help="A later commit at which EXPR is false. Default: HEAD.")
def bisect(session: Session, key: str, words: tuple[str, ...], good: str, bad: str) -> None:
    """Find the first commit at which a condition is no longer true.

    EXPR is a condition on `value`, the value of KEY, that is true at good commits. With PATH, in the form
    that `vstate diff` prints, `value` is that part. Bisect tests some ten of a thousand commits. It assumes
    that the condition stays false once it is false. Where there is no such key or part, `missing` is true
    and `value` is null.

    EXPR is written in JMESPath (https://jmespath.org). It reads the data that `vstate show KEY --json`
    prints as the value. Parts: value.field, value[-1], value[*].field, value[?field == 'text']. A frame has
    its columns as lists: value.price[3], value.price[*]; NaN is null. An array has its `data`.
    Comparisons: ==, !=, <, <=, >, >=. Logic: &&, ||, !(...). Functions: length, contains, starts_with,
    ends_with, min, max, sum, avg, keys, values, type and others. Texts stand in single quotes; numbers,
    true, false and null in backquotes. An absent part is null. Null, false and an empty text, list or dict
    count as false.
    """
    repo, out = session.repo, session.out
    if len(words) > 2:
        raise click.UsageError("expected KEY [PATH] EXPR; put the expression in quotes")
    *path, expr = words
    condition = Condition(expr)
    tested: list[Document] = []
    reason = ""

    def is_good(commit: Commit) -> bool:
        nonlocal reason
        data = tree.lookup(repo.objects.node, commit.root, key)
        try:
            value, missing = None if data is None else repo.inspect(key, data), data is None
            if path and not missing:
                try:
                    value = part_at(value, path[0])
                except NotFound as error:
                    value, missing = None, True
                    reason = str(error)
            return condition.is_true(value, missing=missing)
        except UNREADABLE as error:
            absent = f", where there is no key {key!r}" if data is None else ""
            raise InvalidInput(f"at {commit.short}{absent}: {error}") from None

    def report(commit: Commit, good: bool, left: int) -> None:
        tested.append({"commit": commit.id, "good": good, "left": left})
        if not session.json:
            mark = ("good  ", "green") if good else ("bad   ", "red")
            remaining = f"  ({left:,} left)" if left else ""
            out.line(mark, (commit.short, "yellow"), f"  {safe(commit.subject)}", (remaining, "dim"))

    try:
        first = repo.bisect(is_good, good, bad, report=report)
    except InvalidInput as error:
        if reason:
            raise InvalidInput(f"{str(error).partition(': ')[0]}: {reason}") from None
        has = f"; value has {condition.names}" if condition.names else ""
        raise InvalidInput(f"{error}{has}") from None
    diff = repo.changes(first)
    refs = session.refs().get(first.id, [])
    if session.json:
        document = {"first_bad": documents.commit_document(first, refs), "tested": tested}
        out.json(document | {"changes": documents.keys_document(diff)})
        return
    out.line()
    decoration = commits.decoration(refs, first.id, repo.refs.head())
    out.line("The first bad commit is ", (first.id, "yellow"), *decoration)
    out.line("    ", safe(first.subject))
    out.line("    ", *commits.time_and_info(first, out))
    shown = [*islice(diff, _MOST_KEYS)]
    width = changes.name_width(shown)
    for each in shown:
        limit = _MOST_DETAILS if each == key else 0
        lines = changes.diff_lines(diff, out, [each], limit=limit, used=2, width=width)
        out.lines(["  ", *line] for line in lines)
    out.line("  ", (diff.stat(), "dim"))


class Condition:
    """A condition on `value`, and on `missing`: whether there is no value.

    JMESPath has no loops and calls nothing of Python's, and `plain` bounds the data. So a hostile value runs
    nothing, and its evaluation ends soon. Raises InvalidInput for text that is no JMESPath expression.
    """

    names = ""
    """The names of the parts of the last value; "" for one without names."""

    def __init__(self, text: str) -> None:
        self._expression = _compile(text)
        if not re.search(r"\b(value|missing)\b", text):
            raise InvalidInput(
                f"the expression tests neither value nor missing; write a condition {_EXAMPLE}"
            )

    def is_true(self, value: object, *, missing: bool = False) -> bool:
        """Whether the condition is true of a value that the inert reader returned.

        As in JMESPath, null, false and an empty text, list or dict count as false. Raises InvalidInput if
        the expression cannot be evaluated on the value, or if the value is too large.
        """
        document = _checked(plain(value, max_nodes=_MOST_NODES, max_items=_MOST_ITEMS))
        self.names = _names(document)
        try:
            result: Any = self._expression.search({"value": document, "missing": missing})
        except JMESPathTypeError as error:
            # The text of this error contains the whole value.
            wanted = " or ".join(error.expected_types)
            problem = f"{error.function_name}() takes {wanted}, not {error.actual_type}"
            raise InvalidInput(f"cannot evaluate the expression: {problem}") from None
        except RecursionError:
            raise InvalidInput(_TOO_DEEP) from None
        except (ValueError, TypeError, ArithmeticError) as error:
            raise InvalidInput(f"cannot evaluate the expression: {error}") from None
        return result is not None and result is not False and result not in ("", [], {})


def _compile(text: str) -> Any:
    try:
        return jmespath.compile(text)
    except RecursionError:
        raise InvalidInput(_TOO_DEEP) from None
    except ParseError as error:
        column = error.lex_position + 1
        token = f" at {error.token_value!r}" if error.token_value else ""
        hint = "; write a number in backquotes, as `3`" if error.token_type == "NUMBER" else ""
        problem = f"column {column} of the expression: invalid syntax{token}{hint}"
    except EmptyExpressionError:
        problem = f"an empty expression; write a condition {_EXAMPLE}"
    except ValueError as error:  # a number of thousands of digits
        problem = f"invalid expression: {error}"
    raise InvalidInput(problem)


def _checked(document: Any) -> Any:
    """The document with null for each NaN. InvalidInput if parts of the value are left out."""
    if document == _NAN:
        return None
    waiting = [document] if isinstance(document, dict | list) else []
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and (not _CUT.isdisjoint(part) or {"omitted", "$type"} <= part.keys()):
            raise InvalidInput(
                "the value is too large or nested too deep for an expression: name a part of it by its path"
            )
        places = part.items() if isinstance(part, dict) else enumerate(part)
        for place, inner in [*places]:
            if inner == _NAN:
                part[place] = None
            elif isinstance(inner, dict | list):
                waiting.append(inner)
    return document


def _names(document: Any) -> str:
    names = [name for name in document if not name.startswith("$")] if isinstance(document, dict) else []
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
