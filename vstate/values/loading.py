"""Loading: the unpicklers, one in C and one that knows whose code it calls, to name the code that fails."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeAlias

from vstate.errors import CannotLoad
from vstate.values import builders, evolution
from vstate.values.fields import field_names, is_by_name, make, set_fields
from vstate.values.opcodes import EMPTY_SET, FROZENSET, NAMES, load_only_plain, may_hold, pickle_file

Buffers: TypeAlias = Sequence[bytearray | memoryview]

_SHORT = 4096  # bytes; a Loader of a pickle up to here takes less time than a look for names


def load_any(
    data: bytes | bytearray, buffers: Buffers = (), names: list[str] | None = None
) -> tuple[Any, bool]:
    """The value of a pickle, and whether objects in it got fields that they were not stored with.

    Runs the code that the pickle names. `names` gets these names. Raises CannotLoad with the name of the
    class or function that cannot be loaded.
    """
    if not buffers and (NAMES not in data or (len(data) > _SHORT and not may_hold(data, NAMES))):
        with suppress(CannotLoad):  # a forged one may have a name of protocol 0
            return load_only_plain(data), False  # it needs no Loader: a third of its time
    tracer = partial(_tracer, data, buffers)
    loader = Loader(pickle_file(data), buffers=buffers)
    loader.names = names
    try:
        value = loaded(loader.load, tracer)
        if loader.by_name <= loader.given and not (
            loader.evolving and evolution.lacks_fields(value, loader.evolving)
        ):
            return value, loader.evolved
    except (evolution.UpgradeNeeded, AttributeError):
        pass  # it may have no attributes any more, but slots
    except Exception as error:
        # A key may have lacked the field that its hash needs.
        if isinstance(error, MemoryError) or not (loader.evolving or loader.by_name - loader.given):
            raise
    evolving = tracer()
    evolving.names = names
    return loaded(evolving.load, tracer), evolving.evolved


def is_plain(data: bytes) -> bool:
    """Whether a short pickle names no class and holds no set, if a pickler of protocol 4 or later wrote it.

    A forged one may have names of protocol 0: `load_only_plain` loads those that nobody vouches for.
    """
    if NAMES not in data and EMPTY_SET not in data and FROZENSET not in data:
        return True
    return not may_hold(data, NAMES, EMPTY_SET, FROZENSET)  # a float may have these bytes, and so may text


def _tracer(data: bytes | bytearray | memoryview, buffers: Buffers) -> Tracer:
    return Tracer(io.BytesIO(data), buffers=buffers)


def loaded(load: Callable[[], Any], tracer: Callable[[], Tracer]) -> Any:
    """The result of `load`. CannotLoad for an error, with the name that fails once more in a `tracer`.

    An error that does not come again is not the value's: a signal handler raised it, say. It comes out as it
    is, and so does MemoryError.
    """
    try:
        return load()
    except (CannotLoad, MemoryError):
        raise
    except Exception as error:  # the code that a pickle names may raise anything
        tracing = tracer()
        try:
            tracing.load()
        except Exception:  # as above
            reason = f"{type(error).__name__}: {error}"
            name = tracing.calling or tracing.last_global or "its pickle"
            raise CannotLoad(name, reason, called=bool(tracing.calling)) from error
        raise


class Finder:
    """Finds classes as pickle does, but for a class of `__main__` it takes the running program's own.

    cloudpickle would make a second class of the same name. In a program that was started again, isinstance()
    with the program's own class would then be False.
    """

    names: list[str] | None = None
    """Gets each name that the pickle finds."""
    last_global = ""
    builders: builders.Builders | None = None
    """Made at the first name that needs one: most pickles have none."""

    def record(self, module: str, name: str) -> None:
        self.last_global = f"{module}.{name}"
        if self.names is not None:
            self.names.append(self.last_global)

    def find_class(self, module: str, name: str) -> Any:
        self.record(module, name)
        if module == builders.__name__:
            if self.builders is None:
                self.builders = builders.Builders(self._load_definition, self.note)
            return self.builders.find(name)
        new = evolution.present(self.last_global)
        if new is None:
            found = super().find_class(module, name)  # type: ignore[misc]  # an unpickler is the next base
        else:
            found = evolution.find(new, self.last_global)
        self.note(found)
        return found

    def _load_definition(self, data: bytes) -> Any:
        found, _ = load_any(data)
        if isinstance(found, type) and evolution.has_upgrade(found):
            self.note(found)
        return found

    def note(self, found: Any) -> None:
        """The pickle names this class or function."""


class Loader(Finder, pickle.Unpickler):
    """The unpickler in C. It stops with UpgradeNeeded at a class whose fields the program upgrades."""

    evolving: tuple[type, ...] = ()
    """The classes in the pickle that have fields with defaults."""
    evolved = False
    """Whether an object was made with the default of a field that it was not stored with."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.by_name: set[type] = set()
        """The classes in the pickle whose new objects get their fields by name."""
        self.given: set[type] = set()
        """Those of which an object got fields so. Objects of others may have a state of an older class."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is set_fields:
            return self._set_fields
        return self._make if found is make else found

    def _set_fields(self, obj: Any, fields: dict[str, Any]) -> Any:
        self.given.add(type(obj))
        return set_fields(obj, fields)

    def _make(self, kind: type, fields: dict[str, Any]) -> Any:
        self.evolved = self.evolved or len(fields) < len(field_names(kind) or ())
        return make(kind, fields)

    def note(self, found: Any) -> None:
        """The pickle names this class or function."""
        if isinstance(found, type):
            if self.names is not None and found.__module__ == "__main__":
                self.names.append(f"__main__.{found.__qualname__}")
            if evolution.has_upgrade(found):
                raise evolution.UpgradeNeeded(self.last_global, "the program upgrades its fields")
            if evolution.defaults(found):
                self.evolving += (found,)
            if is_by_name(found) and field_names(found) is None:
                self.by_name.add(found)


class Tracer(evolution.Evolving, Finder, pickle._Unpickler):
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
