"""Pickling: any Python value as a frameless pickle and its out-of-band buffers, and back."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from vstate.errors import CannotLoad
from vstate.forks import is_mine, new_lock, renew_in_child
from vstate.values import builders, definitions, evolution
from vstate.values.allow import Allow
from vstate.values.code import runs_code
from vstate.values.fields import field_names, is_by_name, make, set_fields
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
    value. Passes on every error of pickling; raises CannotLoad for a value that does not load.
    """
    data, buffers, check = pickled(value)
    if check is not None:
        check.load()
    return data, buffers


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


class Check(NamedTuple):
    """A pickle that has to load once before it is stored, and the classes for which it has to."""

    kinds: set[type]
    data: bytes
    buffers: Sequence[memoryview]

    def load(self) -> None:
        """Load the pickle; CannotLoad. Its classes that run no code of their own are proven then."""
        try:
            loads(self.data, [buffer.toreadonly() for buffer in self.buffers])  # not copied: they may be long
        except CannotLoad:
            if not self.buffers:
                raise
            loads(self.data, [bytearray(buffer) for buffer in self.buffers])  # some classes write to them
        for kind in self.kinds:
            reduced = issubclass(kind, BaseException | FunctionType | type) or is_by_name(kind)
            if runs_code(kind):
                met[kind] = None if reduced else _CODED
            elif issubclass(kind, Enum):
                met[kind] = _MEMBER
            else:
                met[kind] = _REDUCED if reduced else _PLAIN

    @property
    def is_steady(self) -> bool:
        """Whether pickling an object of these classes surely changes nothing in it."""
        return all(kind in _STEADY or not runs_code(kind) for kind in self.kinds)

    def note_steady(self) -> None:
        """Two pickles of one value of these classes were alike."""
        if len(_STEADY) > _MOST_KNOWN:
            _STEADY.clear()
        _STEADY.update(self.kinds)


class Pickler(definitions.Pickler):
    """Puts the definitions of classes beside the pickle, and notes the classes that loading may refuse."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unproven: set[type] = set()
        """The classes that run code of their own, and those of which nothing was loaded yet."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        clearing = met.get(kind)
        if clearing is _PLAIN:
            return NotImplemented
        if clearing is _CODED or (clearing is _MEMBER and not _is_member(obj)):
            self.unproven.add(kind)
        if clearing is _CODED or clearing is _MEMBER:
            return NotImplemented
        if issubclass(kind, type):
            reduced = definitions.reduce_class(obj)
            if type(reduced) is tuple and reduced[0] is builders.stored_class and met.get(obj) is None:
                self.unproven.add(kind)
            return reduced
        reduced = super().reducer_override(obj)
        if clearing is None and (kind is not FunctionType or reduced is not NotImplemented):
            self.unproven.add(kind)
        return reduced


def _is_member(obj: Enum) -> bool:
    """Whether the class finds the member by its value."""
    return type(obj)._value2member_map_.get(obj._value_) is obj


_PLAIN: Final = "plain"
"""The objects of the class load whatever they hold, and need no reducer of ours."""
_REDUCED: Final = "reduced"
"""As plain, but a reducer of ours takes the objects apart."""
_MEMBER: Final = "member"
"""As plain, if the class, an enum, finds the object by its value."""
_CODED: Final = "coded"
"""The class runs code of its own, so that each pickle with an object of the class is loaded."""

met: Final[dict[type, str | None]] = {}
"""The classes whose objects this process pickled. None: each pickle with an object is loaded, as at first."""
_STEADY: Final[set[type]] = set()
"""Classes with code of their own of which two pickles of one object were alike."""

_MOST_KNOWN: Final = 10_000


def pickled(value: Any) -> tuple[bytes, list[memoryview], Check | None]:
    """As `dumps`, but nothing is loaded: the Check is left to the caller; None if the pickle surely loads."""
    data, buffers, pickler = _steadily(partial(_pickled, Pickler), value)
    if not pickler.unproven:
        return data, buffers, None
    if len(met) > _MOST_KNOWN:  # a program that makes classes all the time
        met.clear()
    for kind in pickler.unproven:
        met.setdefault(kind, None)
    return data, buffers, Check(pickler.unproven, data, buffers)


def dumps_unproven(value: Any, make: Callable[..., Any] = Pickler) -> tuple[bytes, list[memoryview]]:
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
    builders: builders.Builders | None = None
    """Made at the first name that needs one: most pickles have none."""

    def record(self, module: str, name: str) -> None:
        self.last_global = f"{module}.{name}"
        if self.names is not None:
            self.names.append(self.last_global)

    def find_class(self, module: str, name: str) -> Any:
        self.record(module, name)
        if module in builders.MODULES:
            if self.builders is None:
                self.builders = builders.Builders(self._load_definition, self.note)
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

    def _load_definition(self, data: bytes) -> Any:
        found = loads(data)
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
