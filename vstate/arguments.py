"""Arguments: check options, limits and functions in the call that takes them, not at their first use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from numbers import Real
from operator import index
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final, ParamSpec, TypeVar

from vstate.errors import InvalidInput, quoted
from vstate.extras import install

_P = ParamSpec("_P")
_T = TypeVar("_T")

MAX_KEY_BYTES: Final = 4096
_NO_INFO: Final = frozenset(
    {
        "attempts", "base", "branch", "delete", "events", "expect", "expire", "info", "keys", "labels",
        "message", "on_race", "parent", "parents", "set",
    }
)  # fmt: skip
"""Names that are arguments of calls that commit, here or in git: as info they would look like arguments."""
_MOST_SECONDS: Final = 1e10  # three hundred years: clocks do not accept much more
_NOT_PLAIN: Final = CoroutineType, GeneratorType, AsyncGeneratorType


def check_state_key(key: object) -> str:
    """The key as text, of any length; TypeError unless it is a str, InvalidInput unless UTF-8 encodes it.

    Reads and deletions take a key that is longer than a new one may be: an older vstate may have written it.
    """
    if type(key) is str and key.isascii():  # nearly every key
        return key
    if not isinstance(key, str):
        raise TypeError(f"a state's keys are str, not {type(key).__name__}: {key!r}")
    key = str.__str__(key)  # the text of a subclass, such as a str Enum, whatever its own __str__ says
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"key {key!r} holds a lone surrogate, which UTF-8 cannot encode") from None
    return key


def check_new_key(key: object) -> str:
    """The key of a value to write, as text; InvalidInput also for more than 4,096 bytes."""
    if type(key) is str and key.isascii() and len(key) <= MAX_KEY_BYTES:  # nearly every key
        return key
    key = check_state_key(key)
    size = len(key.encode())
    if size > MAX_KEY_BYTES:
        raise InvalidInput(f"a key of {size} bytes is too long: the limit is {MAX_KEY_BYTES}")
    return key


def check_info(info: Mapping[str, object]) -> None:
    """Raise InvalidInput for a name of info that is an argument elsewhere."""
    for name in info:
        if name in _NO_INFO:
            raise InvalidInput(
                f"{name!r} is an argument of other calls that commit, and not of this one: "
                f"info is given by name, as in commit(message, step=1); take another name, as info_{name}"
            )


def check_count(name: str, value: object, least: int, *, none: str = "") -> None:
    """Raise InvalidInput unless `value` is a whole number of at least `least`.

    With `none`, which says the meaning of None, None is allowed too.
    """
    if value is None and none:
        return
    try:
        number = least - 1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # caught below
    except TypeError:
        number = least - 1
    if number < least:
        raise InvalidInput(f"{name} is a whole number from {least} on{_or(none)}, not {quoted(value)}")


def check_limit(limit: int | None) -> int | None:
    """The limit as an int, or None for no limit; InvalidInput unless it is a whole number from 0 on.

    `islice` would raise only when the first item is read.
    """
    check_count("limit", limit, 0, none="None for no limit")
    return None if limit is None else index(limit)


def check_seconds(name: str, value: object, *, zero: bool = False, none: str = "") -> None:
    """Raise InvalidInput unless `value` is a number of seconds above 0; `zero` allows 0, `none` None."""
    if value is None and none:
        return
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and 0 <= value < _MOST_SECONDS and (zero or value)):  # type: ignore[operator]  # Real has <=
        least = "from 0 on" if zero else "above 0"
        raise InvalidInput(f"{name} is a number of seconds {least}{_or(none)}, not {quoted(value)}")


def check_installed(package: str, user: str, extra: str) -> None:
    """Raise InvalidInput, which says how to install the extra, if `user` cannot import its package."""
    try:
        import_module(package)
    except ImportError:
        pass
    else:
        return
    raise InvalidInput(f"{user} needs the package {package}; type: {install(extra)}")


def check_amount(name: str, value: object, *, none: str = "") -> None:
    """Raise InvalidInput unless `value` is a number from 0 on; `none` allows None."""
    if value is None and none:
        return
    if isinstance(value, bool) or not is_amount(value):
        raise InvalidInput(f"{name} is a number from 0 on{_or(none)}, not {quoted(value)}")


def is_amount(value: object) -> bool:
    """Whether `value` is a number from 0 on, of any class."""
    try:
        return bool(value >= 0)  # type: ignore[operator]  # caught below
    except (TypeError, ValueError, ArithmeticError):  # Decimal("NaN") raises ArithmeticError
        return False


def check_several(texts: Iterable[str], call: str = "get_many", what: str = "keys") -> Iterable[str]:
    """The texts. TypeError for a single one, whose characters would be taken for texts."""
    if isinstance(texts, str):
        raise TypeError(f"{call} takes several {what}, not a str: write [{texts!r}]")
    return texts


def check_flag(name: str, value: object) -> None:
    """Raise InvalidInput unless `value` is True or False: the text "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is True or False, not {quoted(value)}")


def check_text(name: str, value: object, *, empty: bool = True) -> str:
    """The text. Raise TypeError unless `value` is a str, and InvalidInput if it is empty and must not be."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    if not value and not empty:
        raise InvalidInput(f"{name} is empty")
    return value


def storable(text: str) -> str:
    """The text for a message that vstate makes: "\ufffd" in the place of half a surrogate pair."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def called(role: str, function: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
    """The function's result; TypeError, naming its `role`, for a coroutine or generator, which is closed."""
    result = function(*args, **options)
    if not isinstance(result, _NOT_PLAIN):
        return result
    if not isinstance(result, AsyncGeneratorType):
        result.close()
    raise _not_plain(role)


def require_plain(role: str, function: object) -> None:
    """Raise TypeError for an async or generator function, and for no function at all.

    For functions whose first call is too late for an error.
    """
    if not callable(function):
        raise TypeError(f"{role} is a function, not {type(function).__name__}")
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise _not_plain(role)


def _not_plain(role: str) -> TypeError:
    return TypeError(f"{role} must be a plain function, not async or a generator")


def _or(none: str) -> str:
    return f", or {none}" if none else ""
