"""StateServiceFactory: services by the name of their backend, with parameters from the environment."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any, ClassVar

from vstate.errors import InvalidInput
from vstate.sessions.redis_state_service import RedisStateService
from vstate.sessions.state_service import InMemoryStateService, StateService

_FLAGS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class StateServiceFactory:
    """Makes services: "in_memory", "redis", "store" (a StateService by store, path or URL), and others.

    The environment supplies missing arguments of `create`: `STATE_BACKEND`, and `STATE_<BACKEND>_<PARAMETER>`
    for each parameter of the constructor, such as `STATE_REDIS_TTL_SECONDS=60`, converted to the annotated
    type.
    """

    _registry: ClassVar[dict[str, Callable[..., Any]]] = {
        "in_memory": InMemoryStateService,
        "redis": RedisStateService,
        "store": StateService,
    }

    @classmethod
    def register_backend(cls, backend_type: str, constructor: Callable[..., Any]) -> None:
        """Make `create(backend_type)` call this constructor. Case does not matter."""
        cls._registry = {**cls._registry, backend_type.lower(): constructor}

    @classmethod
    async def create(cls, backend_type: str | None = None, **kwargs: Any) -> Any:
        """Make a service. Arguments override the environment; unknown ones are ignored.

        A StateService starts, and connects, at its first use; another service is started here. Raises
        InvalidInput for an unknown backend or a variable of the wrong type, and the errors of the
        constructor.
        """
        given = os.environ.get("STATE_BACKEND", "in_memory") if backend_type is None else backend_type
        name = given.lower()
        constructor = cls._registry.get(name)
        if constructor is None:
            raise InvalidInput(
                f"Unsupported backend type {name!r}; known are {', '.join(sorted(cls._registry))}"
            )
        arguments = _from_environment(f"STATE_{name.upper()}_", constructor)
        parameters = inspect.signature(constructor).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        arguments |= {key: value for key, value in kwargs.items() if takes_all or key in parameters}
        service = constructor(**arguments)
        if isinstance(service, StateService):
            return service.start_when_used()
        await service.start()
        return service


def _from_environment(prefix: str, constructor: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for variable, text in os.environ.items():
                if variable.startswith(prefix):
                    found.setdefault(variable[len(prefix) :].lower(), text)
            continue
        variable = prefix + name.upper()
        if variable in os.environ:
            found[name] = _parsed(variable, os.environ[variable], parameter.annotation)
    return found


def _parsed(variable: str, text: str, annotation: Any) -> Any:
    """The value of a variable. Errors do not show it, since it may be a password."""
    # By name: an annotation may come from a package that only type checkers import.
    named = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    kinds = re.findall(r"\w+", named)
    if ("None" in kinds or "Optional" in kinds) and text.lower() in ("", "none"):
        return None
    try:
        if "bool" in kinds:
            return _FLAGS[text.lower()]
        if "float" in kinds:
            return float(text)
        if "int" in kinds:
            return int(text)
    except (ValueError, KeyError):
        if "str" in kinds:
            return text
        raise InvalidInput(f"the variable {variable} is not of type {named}: correct it") from None
    return text
