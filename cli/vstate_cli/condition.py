"""Conditions: JMESPath expressions that people type, evaluated on the plain data of a value."""

from __future__ import annotations

import re
from typing import Any, Final

import jmespath
from jmespath.exceptions import EmptyExpressionError, JMESPathTypeError, ParseError

from vstate.errors import InvalidInput
from vstate.values.inert import plain

_MOST_NODES: Final = 250_000  # parts of a value: about 60,000 messages with a role and a content
_CUT: Final = frozenset({"$more", "$deep", "$str"})  # `plain` marks what it leaves out with these keys
_EXAMPLE: Final = "such as 'value.budget >= `0`'"


class Condition:
    """A condition on `value`, and on `missing`: whether there is no value.

    JMESPath has no loops and calls nothing of Python's, and `plain` bounds the data. So a hostile value runs
    nothing, and its evaluation ends soon. Raises InvalidInput for text that is no JMESPath expression.
    """

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
        document = plain(value, max_nodes=_MOST_NODES)
        if _is_cut(document):
            raise InvalidInput("the value is too large or nested too deep for an expression")
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


def _compile(text: str) -> Any:
    try:
        return jmespath.compile(text)
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


def _is_cut(document: object) -> bool:
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if not _CUT.isdisjoint(part):
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False
