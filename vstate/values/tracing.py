"""Tracing: the unpickler that knows whose code it calls, to name the code that fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

from vstate.values.evolution import Evolving
from vstate.values.pickling import Finder


class Tracer(Evolving, Finder, pickle._Unpickler):
    """The unpickler in Python, which takes ten times as long: it knows whose code it calls, and on what."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    calling = ""
    """The name of the class or function that is called now; after an error, the one that raised it."""

    def load(self) -> Any:
        """The value, with its objects as their classes are now; CannotLoad."""
        value = super().load()
        self.complete()
        return value


def _traced(
    load: Callable[[Any], None], called: Callable[[Any], Any], builds: bool
) -> Callable[[Tracer], None]:
    def traced(tracer: Tracer) -> None:
        target = called(tracer)
        module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
        tracer.calling = f"{module}.{name}" if module and name else str(name or type(target).__qualname__)
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
