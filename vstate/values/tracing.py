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
    about: Any = ()
    """The object that is called with these arguments now, or is given a state, an item or a hash."""
    memo: dict[int, Any]

    @property
    def failing(self) -> int:
        """The number, in the memo, of the object whose code raised an error."""
        about = self.about
        if type(about) is tuple:
            if not about or any(about is obj for obj in self.memo.values()):
                return len(self.memo)  # it would have been made now
            about = about[0]  # a function gives it its state, for which pickle does not keep the arguments
        return next((number for number, obj in self.memo.items() if obj is about), -1)

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
            tracer.calling, tracer.about = _name(type(key)), key
            if key is not container:
                hash(key)
        load(tracer)
        tracer.calling = ""

    return filling


def _traced(
    load: Callable[[Any], None],
    called: Callable[[Any], Any],
    before: Callable[[Tracer], bool | None] | None,
    after: Callable[[Tracer], None],
) -> Callable[[Tracer], None]:
    builds = after is Tracer.after_build

    def traced(tracer: Tracer) -> None:
        tracer.calling, tracer.about = _name(called(tracer)), tracer.stack[-2 if builds else -1]
        if before is None or not before(tracer):
            load(tracer)
        after(tracer)
        tracer.calling = ""

    return traced


for _opcode, _called, _before, _after in (
    (pickle.REDUCE, lambda tracer: tracer.stack[-2], Tracer.before_call, Tracer.after_call),
    (pickle.NEWOBJ, lambda tracer: tracer.stack[-2], None, Tracer.note_made),
    (pickle.NEWOBJ_EX, lambda tracer: tracer.stack[-3], None, Tracer.note_made),
    (pickle.BUILD, lambda tracer: type(tracer.stack[-2]), Tracer.before_build, Tracer.after_build),
):
    Tracer.dispatch[_opcode[0]] = _traced(Tracer.dispatch[_opcode[0]], _called, _before, _after)

for _opcode, _parts in {
    pickle.SETITEM: lambda tracer: (tracer.stack[-3], tracer.stack[-2:-1]),
    pickle.SETITEMS: lambda tracer: (tracer.metastack[-1][-1], tracer.stack[::2]),
    pickle.ADDITEMS: lambda tracer: (tracer.metastack[-1][-1], tracer.stack),
    pickle.FROZENSET: lambda tracer: (set(), tracer.stack),
    pickle.APPEND: lambda tracer: (tracer.stack[-2], ()),
    pickle.APPENDS: lambda tracer: (tracer.metastack[-1][-1], ()),
}.items():
    Tracer.dispatch[_opcode[0]] = _filling(Tracer.dispatch[_opcode[0]], _parts)
