"""Tracing: the unpickler that knows whose code it calls, to name the code that fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from vstate.values.evolution import Evolving
from vstate.values.pickling import Finder


class Tracer(Evolving, Finder, pickle._Unpickler):
    """The unpickler in Python, ten times as slow as the one in C: it knows whose code it calls."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    calling = ""
    """The name of the class or function that is called now; after an error, the one that raised it."""

    def load(self) -> Any:
        """The value, with its objects as their classes are now; CannotLoad."""
        value = super().load()
        self.complete()
        return value


def _name(target: Any) -> str:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    return f"{module}.{name}" if module and name else str(name or type(target).__qualname__)


def _filling(load: Callable[[Any], None], parts: Callable[[Tracer], tuple[Any, Sequence[Any]]]) -> Any:
    """Note the class of the container that gets items, or of the keys whose hash a plain container needs."""

    def filling(tracer: Tracer) -> None:
        container, keys = parts(tracer)
        if type(container) not in (dict, set, list):
            keys = [container]
        for key in keys:
            tracer.calling = _name(type(key))
            if key is not container:
                hash(key)
        load(tracer)
        tracer.calling = ""

    return filling


def _traced(
    load: Callable[[Any], None], called: Callable[[Any], Any], builds: bool
) -> Callable[[Tracer], None]:
    def traced(tracer: Tracer) -> None:
        tracer.calling = _name(called(tracer))
        if builds:
            tracer.before_build()
        load(tracer)
        if builds:
            tracer.after_build()
        else:
            tracer.note_made()
        tracer.calling = ""

    return traced


for _opcode, _called in {
    pickle.REDUCE: lambda tracer: tracer.stack[-2],
    pickle.NEWOBJ: lambda tracer: tracer.stack[-2],
    pickle.NEWOBJ_EX: lambda tracer: tracer.stack[-3],
    pickle.BUILD: lambda tracer: type(tracer.stack[-2]),
}.items():
    Tracer.dispatch[_opcode[0]] = _traced(Tracer.dispatch[_opcode[0]], _called, _opcode == pickle.BUILD)

for _opcode, _parts in {
    pickle.SETITEM: lambda tracer: (tracer.stack[-3], tracer.stack[-2:-1]),
    pickle.SETITEMS: lambda tracer: (tracer.metastack[-1][-1], tracer.stack[::2]),
    pickle.ADDITEMS: lambda tracer: (tracer.metastack[-1][-1], tracer.stack),
    pickle.FROZENSET: lambda tracer: (set(), tracer.stack),
    pickle.APPEND: lambda tracer: (tracer.stack[-2], ()),
    pickle.APPENDS: lambda tracer: (tracer.metastack[-1][-1], ()),
}.items():
    Tracer.dispatch[_opcode[0]] = _filling(Tracer.dispatch[_opcode[0]], _parts)
