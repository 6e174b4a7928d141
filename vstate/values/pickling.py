"""Pickling: any Python value as a frameless pickle and its out-of-band buffers, and back."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vstate.errors import CannotLoad
from vstate.forks import is_mine, new_lock, renew_in_child
from vstate.values import definitions, evolution
from vstate.values.allow import Allow
from vstate.values.opcodes import framed, join_pieces, may_hold, tokens

if TYPE_CHECKING:
    from vstate.values.tracing import Tracer

OUT_OF_BAND_BYTES = 1024
"""A contiguous buffer from this size on leaves the pickle and is stored beside it."""

OUT_OF_BAND_LIMIT = 64
"""Buffers after this many stay in the pickle: the entry of a list of a million arrays stays short."""

LONG_BYTEARRAY = 4 * 1024 * 1024
"""From this size on a bytearray that is a value is a buffer beside its pickle: loading it copies nothing.

A shorter one is copied into the pickle in one step, so that another thread can change its length meanwhile.
"""

NAMES = 0x93
"""The opcode STACK_GLOBAL, which is before each class in a pickle of protocol 4 or later."""

EMPTY_SET, FROZENSET = 0x8F, 0x91
"""The opcodes before the items of a set, and behind those of a frozenset."""

_EXTENSIONS = 0x82, 0x83, 0x84
"""The opcodes for classes with a short code, which an unpickler remembers and does not look for again."""

_SHORT = 4096  # bytes; a Loader of a pickle up to here takes less time than a look for names

_RETRIES = 20
_LONG_SWITCH_SECONDS = 10.0


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """The value as a frameless pickle and its large contiguous buffers, not copied.

    Classes and functions that another process cannot import, above all those of `__main__`, are stored by
    value. The first value of a class is loaded once, so that none is stored that cannot be read. Passes on
    every error of pickling; raises CannotLoad for a value that does not load.
    """
    return _steadily(_dumps, value)


_T = TypeVar("_T")


def _steadily(function: Callable[[Any], _T], value: Any) -> _T:
    """The result of a function that walks the value."""
    try:
        return function(value)
    except RuntimeError as error:
        # Another thread edited a dict or set of the value during the walk.
        if "during iteration" not in str(error):
            raise
    with _undisturbed():
        for _ in range(_RETRIES):
            try:
                return function(value)
            except RuntimeError as error:
                if "during iteration" not in str(error):
                    raise
        return function(value)


_switching = new_lock()
_usual_seconds = sys.getswitchinterval()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep other threads from running, as far as the interpreter allows."""
    global _usual_seconds
    with _switching:
        usual = sys.getswitchinterval()
        if usual != _LONG_SWITCH_SECONDS:
            _usual_seconds = usual
        sys.setswitchinterval(_LONG_SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(usual)


def _switch_as_usual(switching: Any) -> None:
    if not is_mine(switching) and sys.getswitchinterval() == _LONG_SWITCH_SECONDS:
        sys.setswitchinterval(_usual_seconds)


renew_in_child(_switching, _switch_as_usual)


class _Pickler(definitions.Pickler):
    """Puts the definitions of classes beside the pickle, and notes the classes that were never loaded."""

    unproven: Set[Any] = frozenset()
    """The classes and the code in the pickle of which nothing was loaded yet."""
    settles = False
    """Whether the first pickling of a value in it may change the value."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _PROVEN_CLASSES:
            return NotImplemented
        self.settles = self.settles or kind in _SETTLING
        part: Any = kind
        if kind is FunctionType:  # it may be the function that makes the values of a class
            part = obj.__code__
        elif kind is BuiltinFunctionType and isinstance(obj.__self__, ModuleType):
            part = obj
        if issubclass(kind, type):
            return definitions.reduce_class(obj)
        if part not in _PROVEN:
            self.unproven |= {part}
        return super().reducer_override(obj)


_PROVEN_CLASSES: set[type] = set()
_PROVEN: set[Any] = set()
"""Parts of pickles that were loaded once. Instances of the first ones need no reducer of ours."""

_SETTLING: set[type] = set()
"""Classes in whose first pickle something differs from the next ones: they fill a cache for it, say."""
_RESTLESS: set[type] = set()
"""Classes of which no two pickles of one value are alike: they count their picklings, say."""
_STEADY_MODULES: Final = frozenset({"builtins", "collections", "datetime", "numpy", "pandas"})

_MOST_PROVEN: Final = 10_000
_REDUCED_HERE: Final = (BaseException, FunctionType, BuiltinFunctionType)


def _prove(unproven: Iterable[Any], data: bytes, buffers: Sequence[memoryview]) -> None:
    """Load a pickle that was just made. Its parts are proven then; CannotLoad."""
    try:
        loads(data, [buffer.toreadonly() for buffer in buffers])  # not copied: they may be long
    except CannotLoad:
        if not buffers:
            raise
        loads(data, [bytearray(buffer) for buffer in buffers])  # some classes write to their buffers
    met.update(part for part in unproven if isinstance(part, type))
    for proven in (_PROVEN_CLASSES, _PROVEN, met):
        if len(proven) > _MOST_PROVEN:  # a program that makes classes all the time
            proven.clear()
    for part in unproven:
        quick = isinstance(part, type) and not issubclass(part, _REDUCED_HERE)
        (_PROVEN_CLASSES if quick else _PROVEN).add(part)


def may_be_restless() -> bool:
    """Whether this process pickled a value whose pickles differ each time."""
    return bool(_RESTLESS)


met: Final[set[type]] = set()
"""The classes whose objects this process pickled."""


def _dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    data, buffers, pickler = _pickled(_Pickler, value)
    if pickler.unproven:
        _prove(pickler.unproven, data, buffers)
        first, (data, buffers, _) = data, _pickled(_Pickler, value)
        if data != first:
            settled, (data, buffers, _) = data, _pickled(_Pickler, value)
            (_SETTLING if data == settled else _RESTLESS).update(
                part
                for part in pickler.unproven
                if isinstance(part, type) and str(part.__module__).partition(".")[0] not in _STEADY_MODULES
            )
            _PROVEN_CLASSES.difference_update(_SETTLING)
            _PROVEN.update(_SETTLING)
    elif pickler.settles:
        data, buffers, _ = _pickled(_Pickler, value)
    return data, buffers


def dumps_unproven(value: Any, make: Callable[..., Any] = _Pickler) -> tuple[bytes, list[memoryview]]:
    """As `dumps`, but loads nothing: for a value that is compared, or by a pickler that loads nothing."""
    data, buffers, _ = _pickled(make, value)
    return data, buffers


class _Pieces(list[bytes | bytearray]):
    """A file that keeps each piece that a pickler writes, not copied."""

    __slots__ = ()
    write = list.append


def _pickled(make: Callable[..., Any], value: Any) -> tuple[bytes, list[memoryview], Any]:
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        small = raw.nbytes < OUT_OF_BAND_BYTES and not isinstance(raw.obj, definitions.Definition)
        if small or len(buffers) == OUT_OF_BAND_LIMIT:
            return True
        buffers.append(raw)
        return False

    file = _Pieces()
    pickler = make(file, protocol=5, buffer_callback=keep_in_band)
    is_long = type(value) is bytearray and len(value) >= LONG_BYTEARRAY
    pickler.dump(pickle.PickleBuffer(value) if is_long else value)
    return join_pieces(file), buffers, pickler


def dumps_inside(value: bytearray) -> tuple[bytes, list[memoryview]]:
    """As `dumps`, for a long bytearray in the form of earlier versions: inside its pickle."""
    file = _Pieces()
    pickle.Pickler(file, protocol=5).dump(value)
    return join_pieces(file), []


def loads(
    data: bytes | bytearray, buffers: Sequence[bytearray | memoryview] = (), *, allow: Allow | None = None
) -> Any:
    """The value that `dumps` stored in `data` and `buffers`.

    Unpickling runs the code that the pickle names: any, or with `allow` only names that it covers. Raises
    CannotLoad with the name of the class or function that cannot be loaded.
    """
    return load_value(data, buffers, allow)[0]


def load_value(
    data: bytes | bytearray,
    buffers: Sequence[bytearray | memoryview] = (),
    allow: Allow | None = None,
    names: list[str] | None = None,
) -> tuple[Any, bool]:
    """As `loads`, with whether objects in it got fields that they were not stored with.

    `names` gets the names in the pickle.
    """
    if allow is not None:
        # Late: it imports this module, and a program without an allow-list never needs it.
        from vstate.values.guarded import loads_allowed

        return loads_allowed(data, buffers, allow, names)
    if not buffers and (NAMES not in data or (len(data) > _SHORT and not may_hold(data, NAMES))):
        return load_plain(data), False  # it names no class, and needs no Loader: a third of its time
    tracer = partial(_tracer, data, buffers)
    loader = Loader(io.BytesIO(framed(data)), buffers=buffers)
    loader.names = names
    try:
        value = loaded(loader.load, tracer)
        if not loader.evolving or not evolution.lacks_fields(value, loader.evolving):
            return value, False
    except evolution.UpgradeNeeded:
        pass
    except (AttributeError, CannotLoad):
        if not loader.evolving:  # else a key may have lacked the field that its hash needs
            raise
    evolving = tracer()
    evolving.names = names
    return loaded(evolving.load, tracer), evolving.evolved


def is_plain(data: bytes) -> bool:
    """Whether a short pickle, of protocol 4 or later, surely names no class and holds no set."""
    if NAMES not in data and EMPTY_SET not in data and FROZENSET not in data:
        return True
    return not may_hold(data, NAMES, EMPTY_SET, FROZENSET)  # a float may have these bytes, and so may text


def load_plain(data: bytes | bytearray | memoryview) -> Any:
    """The value of a pickle that names no class; CannotLoad."""
    try:
        return pickle.loads(data)
    except Exception as error:  # a damaged pickle may raise anything
        explain(error, partial(_tracer, data, ()))
        raise


class _PlainUnpickler(pickle.Unpickler):
    """Loads nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        raise CannotLoad(f"{module}.{name}", "only plain data is loaded here")


def load_only_plain(data: bytes | bytearray) -> Any:
    """The value of any pickle of plain data. CannotLoad, and no code has run, if it names something else.

    It takes less time than a look for names, because data may have the bytes of one.
    """
    if getattr(copyreg, "_inverted_registry", None) and may_hold(bytes(data), *_EXTENSIONS):
        found = tokens(bytes(data))
        if found is None or any(token[0] in _EXTENSIONS for token in found):
            raise CannotLoad("copyreg", "only plain data is loaded here")
    try:
        return _PlainUnpickler(io.BytesIO(framed(bytes(data)))).load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise CannotLoad("its pickle", f"{type(error).__name__}: {error}") from error


def _tracer(data: bytes | bytearray | memoryview, buffers: Sequence[bytearray | memoryview]) -> Tracer:
    from vstate.values.tracing import Tracer  # late: only errors need it

    return Tracer(io.BytesIO(data), buffers=buffers)


def loaded(load: Callable[[], Any], tracer: Callable[[], Tracer]) -> Any:
    """The result of `load`, with errors as `explain` tells them."""
    try:
        return load()
    except Exception as error:  # the code that a pickle names may raise anything
        explain(error, tracer)
        raise


def explain(error: Exception, tracer: Callable[[], Tracer]) -> None:
    """Raise CannotLoad for an error of loading, with the name that fails once more in a `tracer`.

    An error that does not come again is not the value's: a signal handler raised it, say. The caller raises
    it as it is, and so MemoryError.
    """
    if isinstance(error, CannotLoad | MemoryError):
        return
    tracing = tracer()
    try:
        tracing.load()
    except Exception:  # as above
        reason = f"{type(error).__name__}: {error}"
        name = tracing.calling or tracing.last_global or "its pickle"
        raise CannotLoad(name, reason, called=bool(tracing.calling)) from error


class Finder:
    """Finds classes as pickle does, but for a class of `__main__` it takes the running program's own.

    cloudpickle would make a second class of the same name. In a program that was started again, isinstance()
    with the program's own class would then be False.
    """

    names: list[str] | None = None
    """Gets each name that the pickle finds."""
    last_global = ""
    builders: definitions.Builders | None = None
    """Made at the first name that needs one: most pickles have none."""

    def record(self, module: str, name: str) -> None:
        self.last_global = f"{module}.{name}"
        if self.names is not None:
            self.names.append(self.last_global)

    def find_class(self, module: str, name: str) -> Any:
        self.record(module, name)
        if module in definitions.MODULES:
            if self.builders is None:
                self.builders = definitions.Builders(loads, self.note)
            builder = self.builders.find(module, name)
            if builder is not None:
                return builder
        new = evolution.present(self.last_global)
        if new is None:
            found = super().find_class(module, name)  # type: ignore[misc]  # an unpickler is the next base
        else:
            found = evolution.find(new, self.last_global)
        self.note(found)
        return found

    def note(self, found: Any) -> None:
        """The pickle names this class or function."""


class Loader(Finder, pickle.Unpickler):
    """The unpickler in C. It stops with UpgradeNeeded at a class whose fields the program upgrades."""

    evolving: tuple[type, ...] = ()
    """The classes in the pickle that have fields with defaults."""

    def note(self, found: Any) -> None:
        """The pickle names this class or function."""
        if isinstance(found, type):
            if self.names is not None and found.__module__ == "__main__":
                self.names.append(f"__main__.{found.__qualname__}")
            if evolution.has_upgrade(found):
                raise evolution.UpgradeNeeded(self.last_global, "the program upgrades its fields")
            if evolution.defaults(found):
                self.evolving += (found,)
