"""Conditions: JMESPath expressions that people type, evaluated on the plain data of a value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import jmespath
from jmespath.exceptions import EmptyExpressionError, JMESPathTypeError, ParseError

from vstate.errors import InvalidInput
from vstate.plural import counted
from vstate.values.inert import plain

_MOST_NODES: Final = 250_000  # parts of a value: about 60,000 messages with a role and a content
_CUT: Final = frozenset({"$more", "$deep", "$str"})  # `plain` marks what it leaves out with these keys
_NAN: Final = {"$float": "nan"}
_CHAINS: Final = frozenset(
    {
        "subexpression",
        "index_expression",
        "projection",
        "filter_projection",
        "value_projection",
        "flatten",
        "pipe",
    }
)
_MOST_ITEMS: Final = 1_000_000  # numbers and texts in lists and columns
_MOST_NAMES: Final = 8
_Path = list[str | int]
_EXAMPLE: Final = "such as 'value.budget >= `0`'"


class Condition:
    """A condition on `value`, and on `missing`: whether there is no value.

    JMESPath has no loops and calls nothing of Python's, and `plain` bounds the data. So a hostile value runs
    nothing, and its evaluation ends soon. Raises InvalidInput for text that is no JMESPath expression.
    """

    absent = ""
    """The first part of `value` that the expression names and the last value has not, in words."""

    def __init__(self, text: str) -> None:
        self._expression, self._paths = _compile(text)
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
        self.absent = "" if missing else next(filter(None, (_absent(document, p) for p in self._paths)), "")
        try:
            result: Any = self._expression.search({"value": document, "missing": missing})
        except JMESPathTypeError as error:
            # The text of this error contains the whole value.
            wanted = " or ".join(error.expected_types)
            problem = f"{error.function_name}() takes {wanted}, not {error.actual_type}"
            raise InvalidInput(f"cannot evaluate the expression: {problem}") from None
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise InvalidInput(f"cannot evaluate the expression: {error}") from None
        return result is not None and result is not False and result not in ("", [], {})


def _compile(text: str) -> tuple[Any, list[_Path]]:
    try:
        expression = jmespath.compile(text)
        return expression, [*_paths(expression.parsed)]
    except RecursionError:
        raise InvalidInput("the expression is nested too deep") from None
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


def _paths(node: dict[str, Any]) -> Iterator[_Path]:
    """The paths from `value` in the expression, each up to its first step that is no name or index."""
    path, _ = _path(node)
    if path[:1] == ["value"]:
        yield path[1:]
    elif not path:
        for child in node["children"]:
            yield from _paths(child) if isinstance(child, dict) else ()


def _path(node: dict[str, Any]) -> tuple[_Path, bool]:
    """The names and indices that a node begins with, and whether it has nothing else."""
    if node["type"] in ("field", "index"):
        return [node["value"]], True
    if node["type"] not in _CHAINS:
        return [], False
    path: _Path = []
    for child in node["children"]:
        steps, is_whole = _path(child)
        path += steps
        if not is_whole or node["type"] not in ("subexpression", "index_expression"):
            return path, False
    return path, True


def _absent(part: Any, path: _Path) -> str:
    """The first step of the path that leads nowhere, and the parts at that place, in words; "" if none."""
    where = "value"
    for step in path:
        if part is None:  # the value, or a cell, is null
            return ""
        if isinstance(step, str):
            known = part.keys() if isinstance(part, dict) else ()
            if step not in known:
                names = [name for name in known if not name.startswith("$")]
                has = f"; it has {', '.join(names[:_MOST_NAMES])}" if names else f", which is {_kind(part)}"
                more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
                return f"there is no {step} in {where}{has}{more}"
            part, where = part[step], f"{where}.{step}"
        else:
            if not isinstance(part, list) or not -len(part) <= step < len(part):
                count = f" of {counted(len(part), 'item')}" if isinstance(part, list) else ""
                return f"there is no [{step}] in {where}, which is {_kind(part)}{count}"
            part, where = part[step], f"{where}[{step}]"
    return ""


def _kind(part: object) -> str:
    if isinstance(part, dict):
        return f"a {part['$type']}" if isinstance(part.get("$type"), str) else "a dict"
    kinds = {list: "a list", str: "a text", bool: "true or false"}
    return kinds.get(type(part), "a number")
