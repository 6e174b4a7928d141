"""Conditions: JMESPath expressions that people type, evaluated on the plain data of a value."""

from __future__ import annotations

import re
from typing import Any, Final

import jmespath
from jmespath.exceptions import EmptyExpressionError, JMESPathTypeError, ParseError

from vstate.errors import InvalidInput
from vstate.values.plain import plain

_MOST_NODES: Final = 250_000  # parts of a value: about 60,000 messages with a role and a content
_CUT: Final = frozenset({"$more", "$deep", "$str"})  # `plain` marks what it leaves out with these keys
_NAN: Final = {"$float": "nan"}
_MOST_ITEMS: Final = 1_000_000  # numbers and texts in lists and columns
_MOST_NAMES: Final = 8
_TOO_DEEP: Final = "the expression is nested too deep"
_EXAMPLE: Final = "such as 'value.budget >= `0`'"


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
