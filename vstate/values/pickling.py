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
from types import FunctionType, MemberDescriptorType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from vstate.errors import CannotLoad
from vstate.forks import is_mine, new_lock, renew_in_child
from vstate.values import builders, definitions
from vstate.values.allow import Allow, loads_allowed
from vstate.values.definitions import needs_definition
from vstate.values.fields import by_class, field_names, is_by_name
from vstate.values.loading import Buffers, load_any
from vstate.values.opcodes import frameless

OUT_OF_BAND_BYTES = 1024
"""A contiguous buffer from this size on leaves the pickle and is stored beside it.

Part of the format, as are OUT_OF_BAND_LIMIT and LONG_BYTEARRAY: with another number, equal values would have
other entries.
"""

OUT_OF_BAND_LIMIT = 64
"""Buffers after this many stay in the pickle: the entry of a list of a million arrays stays short."""

LONG_BYTEARRAY = 4 * 1024 * 1024
"""From this size on a bytearray that is a value is a buffer beside its pickle: loading it copies nothing.

A shorter one is copied into the pickle in one step, so that another thread can change its length meanwhile.
"""

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
            # Not copied: they may be long.
            load_any(self.data, [buffer.toreadonly() for buffer in self.buffers])
        except CannotLoad:
            if not self.buffers:
                raise
            load_any(self.data, [bytearray(buffer) for buffer in self.buffers])  # some classes write to them
        for kind in self.kinds:
            if not runs_code(kind):
                reduced = issubclass(kind, BaseException) or is_by_name(kind)
                met[kind] = _MEMBER if issubclass(kind, Enum) else _REDUCED if reduced else _PLAIN

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
        if clearing is _MEMBER:
            if not _is_member(obj):
                self.unproven.add(kind)
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

met: Final[dict[type, str | None]] = {}
"""The classes whose objects this process pickled. None: each pickle with an object is loaded, as at first; it
stays so for a class that runs code of its own."""
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


class _NotPlain(Exception):
    """A value is no plain data, or is long."""


class _OneFrame:
    """A file that takes one frame, 64 KB."""

    data = b""

    def write(self, data: bytes) -> None:
        if self.data:
            raise _NotPlain
        self.data = data


def _refuse(obj: Any) -> NoReturn:
    raise _NotPlain


class _PlainPickler(pickle.Pickler):
    """Pickles plain data alone. Python asks it for a reducer of anything else."""

    reducer_override = staticmethod(_refuse)


def plain_pickle(value: Any) -> bytes | None:
    """The pickle of a short list, tuple or dict of plain data, as `pickled` makes it in five times the time.

    None for any other value.
    """
    if type(value) in _CONTAINERS:
        file = _OneFrame()
        try:
            _PlainPickler(file, 5, buffer_callback=_refuse).dump(value)
            return frameless(file.data)
        except (_NotPlain, RuntimeError):  # or another thread edits the value: `pickled` tries again
            pass
    return None


_CONTAINERS: Final = frozenset({dict, list, tuple})


def dumps_unproven(value: Any, make: Callable[..., Any] = Pickler) -> tuple[bytes, list[memoryview]]:
    """As `dumps`, but loads nothing: for a value that is compared, or by a pickler that loads nothing."""
    data, buffers, _ = _pickled(make, value)
    return data, buffers


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

    file = io.BytesIO()
    pickler = make(file, protocol=5, buffer_callback=keep_in_band)
    is_long = type(value) is bytearray and len(value) >= LONG_BYTEARRAY
    pickler.dump(pickle.PickleBuffer(value) if is_long else value)
    return frameless(file.getvalue()), buffers, pickler


def loads(data: bytes | bytearray, buffers: Buffers = (), *, allow: Allow | None = None) -> Any:
    """The value that `dumps` stored in `data` and `buffers`.

    Unpickling runs the code that the pickle names: any, or with `allow` only names that it covers. Raises
    CannotLoad with the name of the class or function that cannot be loaded.
    """
    if allow is None:
        return load_any(data, buffers)[0]
    return loads_allowed(data, buffers, allow)[0]


# Classes that run code
#
# Pickle makes most objects without their classes: it allocates them and fills in their attributes. Such an
# object loads whatever it holds, once its class is found. A class with a `__setstate__`, a `__hash__` or a
# `__setitem__` of its own is asked for each object. So a pickle with such an object is loaded before it is
# stored.

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as by every `class` statement
_LIBRARIES: Final = sys.stdlib_module_names | {"cloudpickle", "numpy", "pandas", "vstate"}
"""The packages whose own classes load all their pickles. A class that a program derives does not count."""
_TRUSTED: Final = frozenset({"", "builtins", "pydantic", "msgspec"})
_LOOKING: Final = ("__hash__", "__getattr__", "__getattribute__")
_HOOKS: Final = (
    *_LOOKING, "__getstate__", "__setstate__", "__setattr__",
    "__new__", "__getnewargs__", "__getnewargs_ex__",
)  # fmt: skip
_FILLING: Final = ("__setitem__", "__iter__", "append", "extend", "items")
_ENUM: Final = ("__reduce_ex__", "__hash__", "_missing_")
_OF_EXCEPTIONS: Final = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", *_LOOKING)
"""`reduce_exception` makes an exception without its `__init__` and its `__new__`."""
_PLAIN_VALUES: Final = frozenset({bool, bytes, int, str, type(None)})


@by_class
def runs_code(kind: type) -> bool:
    """Whether loading an object of the class may run code that a program wrote, so that it may fail.

    False is certain. Hashing counts: an object in a set of its own cycle is hashed before it has its state.
    """
    if issubclass(kind, type) or kind is FunctionType:
        return True  # those that are stored by value
    reducer = copyreg.dispatch_table.get(kind)
    if reducer is not None and _root(reducer.__module__) not in _LIBRARIES:
        return True
    pickled: Any = kind.__reduce_ex__, kind.__reduce__
    is_built = pickled == (object.__reduce_ex__, object.__reduce__)
    if _root(kind.__module__) in _LIBRARIES and not (kind.__flags__ & _HEAP_TYPE and needs_definition(kind)):
        # A UserString may be in a set that it holds itself.
        is_hashed = kind.__dictoffset__ != 0 and isinstance(kind.__hash__, FunctionType)
        return is_built and is_hashed and _root(kind.__module__) in sys.stdlib_module_names
    if issubclass(kind, Enum):
        plain = all(type(member._value_) in _PLAIN_VALUES for member in kind.__members__.values())
        return not plain or _packages(kind, _ENUM) - _TRUSTED != {"enum"}
    if issubclass(kind, BaseException):
        return bool(_packages(kind, _OF_EXCEPTIONS) - _TRUSTED)
    if is_by_name(kind):
        # Called are the generated function of a named tuple, and the metaclass of a struct.
        is_struct = field_names(kind) is not None and not issubclass(kind, tuple)
        called = {_root(type(kind).__module__)} if is_struct else set()
        return hasattr(kind, "__post_init__") or bool((called | _packages(kind, _LOOKING)) - _TRUSTED)
    hooks = (*_HOOKS, *_FILLING) if issubclass(kind, dict | list) else _HOOKS
    if not is_built or _packages(kind, hooks) - _TRUSTED:
        return True
    slots: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]  # as pickle itself asks
    return any(type(_member(kind, name)[1]) is not MemberDescriptorType for name in slots)


def _packages(kind: type, names: tuple[str, ...]) -> set[str]:
    """The packages that define these attributes of the class; "" for one that no class has."""
    return {_package(*_member(kind, name)) for name in names}


def _package(owner: type, member: Any) -> str:
    if member is None:  # none has it, or it is switched off, as `__hash__` often is
        return ""
    function = getattr(member, "__func__", member)
    if isinstance(function, FunctionType):
        return _root(function.__module__)
    found = getattr(
        function, "__objclass__", owner
    )  # of a slot of a built-in class, which `owner` may borrow
    package = _root(found.__module__)
    return "?" if package == "builtins" and found.__flags__ & _HEAP_TYPE else package


def _member(kind: type, name: str) -> tuple[type, Any]:
    return next(((base, vars(base)[name]) for base in kind.__mro__ if name in vars(base)), (object, None))


def _root(module: object) -> str:
    return str(module).partition(".")[0]
