"""Spans: the operations of vstate as OpenTelemetry shows them, with sizes and counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

Attributes = Mapping[str, int | str | list[str]]
"""Numbers, ids and outcomes; never a value, a key or the name of a branch."""

_API = "opentelemetry.trace"


def spanned(name: str, tell: Callable[..., Attributes]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Give each call of a function a span of this name.

    `tell` gets the result and the arguments of the call, and returns the attributes. If the function raises,
    the span has the class of the error: a message may name keys.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def call(*args: _P.args, **options: _P.kwargs) -> _T:
            # A program without spans does not import the API, and then vstate need not either.
            api: Any = sys.modules.get(_API)
            tracer = None if api is None else _tracer_of(api)
            if tracer is None:
                return function(*args, **options)
            with tracer.start_as_current_span(
                f"vstate.{name}", record_exception=False, set_status_on_exception=False
            ) as span:
                try:
                    result = function(*args, **options)
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__qualname__)
                    span.set_status(api.StatusCode.ERROR)
                    raise
                if span.is_recording():
                    told = tell(result, *args, **options)
                    span.set_attributes({f"vstate.{each}": value for each, value in told.items()})
                return result

        return call

    return decorate


_known: tuple[Any, Any] = None, None


def _tracer_of(api: Any) -> Any:
    """The tracer of the program's provider; None if it has set none. To make one takes longer than a span."""
    global _known
    provider, (known, tracer) = api.get_tracer_provider(), _known
    if provider is not known:
        # Other libraries load the API too, in programs that have set no provider.
        is_set = not isinstance(provider, api.ProxyTracerProvider)
        tracer = provider.get_tracer("vstate") if is_set else None
        _known = provider, tracer
    return tracer


def trace_id() -> str | None:
    """The id of the trace that this call is a part of, in 32 hex digits."""
    api: Any = sys.modules.get(_API)
    context = None if api is None else api.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context is not None and context.is_valid else None
