"""Builders: the functions that a stored pickle calls to make classes and functions of no module.

The names of most functions below are in stored pickles. `definitions.py` writes them.

Code is bytecode, and only the minor version of Python that compiled it can run it: another one crashes. So
each code object is stored with `MAGIC`, the magic number of its Python.
"""

from __future__ import annotations

import builtins
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib.util import MAGIC_NUMBER
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from vstate.errors import CannotLoad
from vstate.forks import new_lock
from vstate.values import evolution

MAGIC: Final = MAGIC_NUMBER

NAMED: Final = "__vstate_globals__"
"""The global in which a module names the globals whose values go along with its code."""

MAINS: Final = ("__main__", "__mp_main__")
"""The second is the first, in a process of multiprocessing."""

registering = new_lock()
ids: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
by_id: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The classes and type variables that were stored or loaded by value."""
undefined_classes: WeakSet[type] = WeakSet()
"""Classes of this process that are stored without a definition."""
_unfinished: WeakSet[Any] = WeakSet()
"""Classes and functions that were made, and have no attributes yet."""


def python_of(magic: bytes) -> str:
    """The version of Python that has this magic number, for people: `Python 3.12`."""
    number = int.from_bytes(magic[:2], "little")
    if 3450 <= number < 4000:  # each minor version begins a new fifty
        return f"Python 3.{11 + (number - 3450) // 50}"
    return f"a Python with the magic number {number}"


def module_of(obj: Any) -> str:
    """The module of a class or function, as its program calls the module."""
    return "__main__" if obj.__module__ in MAINS else str(obj.__module__)


def track(made: Any, identity: str | None) -> Any:
    """The class or variable of this id: `made`, or an earlier one."""
    if identity is None:
        return made
    with registering:
        made = by_id.setdefault(identity, made)
        ids[made] = identity
    return made


def stored_class(*_: object) -> NoReturn:
    """The class that a pickle refers to: see `Builders`."""
    raise CannotLoad("its code", "only vstate loads classes and functions that are stored by value")


def stored_code(magic: bytes, *args: Any) -> CodeType:
    """The code object with these fields; CannotLoad for code of another Python."""
    if magic != MAGIC:
        names = [value for value in args if type(value) is str]
        raise CannotLoad(f"__main__.{names[-1]}" if names else "a function", _reason(magic))
    return CodeType(*args)


def stored_function(*_: object) -> NoReturn:
    """The function that a pickle holds, without what `set_function` gives it: see `Builders`."""
    stored_class()


class _Builtins(dict[str, Any]):
    """The builtins of functions that miss globals: they say where these are."""

    def __init__(self) -> None:
        super().__init__(vars(builtins))
        self.missing: set[str] = set()

    def __missing__(self, name: str) -> Any:
        if name not in self.missing:
            raise KeyError(name)
        raise NameError(
            f"the global {name!r} stayed in the program that stored this code: values of globals do not go "
            f"along. Define the class or function in this program, or name the global where it is stored: "
            f"{NAMED} = ({name!r},)",
            name=name,
        )


def set_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function that was made just now the rest of its parts."""
    if function not in _unfinished:
        return
    _unfinished.discard(function)
    attributes, own, cells, code, _ = state
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(own)
    for cell, stored in zip(function.__closure__ or (), cells, strict=True):
        with suppress(ValueError):  # the stored cell is empty
            cell.cell_contents = stored.cell_contents
    function.__globals__.update(code)


def make_class(kind: Any, name: str, bases: Any, names: dict[str, Any], identity: str | None) -> type:
    """The class of this id, without its attributes if it is new. No code of the stored classes runs."""
    resolved = types.resolve_bases(bases)

    def make() -> type:
        library = _library(kind)
        body = library.__prepare__(name, resolved)
        body.update(names)
        made: type = library.__new__(kind, name, resolved, body)
        library.__init__(made, name, resolved, body)
        return made

    return _one(make, resolved, identity)


def is_of_python(cls: type) -> bool:
    """Whether the class is of the standard library."""
    return str(cls.__module__).partition(".")[0] in sys.stdlib_module_names


def _library(kind: type) -> Any:
    """The nearest of Python's own metaclasses. Others ran for the definition, and may list their classes."""
    return next(filter(is_of_python, kind.__mro__))


def make_struct(
    kind: Any, name: str, bases: Any, names: dict[str, Any], identity: str | None, fields: Any, options: Any
) -> type:
    """As `make_class`, for a class of msgspec, which has the fields that it was made with."""
    import msgspec  # late: it is not one of vstate's requirements

    given = [(field, Any, msgspec.field(name=encoded, **default)) for field, encoded, default in fields]
    return _one(
        lambda: msgspec.defstruct(name, given, bases=bases, namespace=dict(names), **options), bases, identity
    )


def make_enum(
    kind: Any, name: str, bases: Any, names: dict[str, Any], identity: str | None, members: Any
) -> type:
    """As `make_class`, for an enumeration with its members."""
    following = iter(members)

    def new(cls: Any, *_: Any) -> Any:
        _, value, args = next(following)
        made = (cls._member_type_.__new__)(cls, *args)
        made._value_ = value
        return made

    def make() -> type:
        library = _library(kind)
        body = library.__prepare__(name, bases)
        body.update(names)  # an EnumDict would take each other way for a member
        body["__new__"], body["__init__"] = new, lambda *_: None
        for index, (member, *_) in enumerate(members):
            body[member] = index
        made: type = library.__new__(kind, name, bases, body)
        for temporary in ("__init__", "__new_member__"):
            type.__delattr__(made, temporary)
        return made

    return _one(make, bases, identity)


def _one(make: Callable[[], type], bases: Iterable[type], identity: str | None) -> type:
    with registering:
        known: type | None = by_id.get(identity) if identity else None
        if known is None:
            with _quiet(bases):
                made = make()
            _unfinished.add(made)
            known = track(made, identity)
        return known


@contextmanager
def _quiet(bases: Iterable[type]) -> Iterator[None]:
    """Keep a stored class from the `__init_subclass__` of a base: it ran for the definition."""
    owners = (owner for base in bases for owner in base.__mro__ if "__init_subclass__" in vars(owner))
    owner = next(owners, object)
    if is_of_python(owner):
        yield
        return
    original, thread = vars(owner)["__init_subclass__"], threading.get_ident()

    def init_subclass(cls: type, /, **options: Any) -> None:
        if threading.get_ident() != thread:
            original.__get__(None, cls)(**options)

    type.__setattr__(owner, "__init_subclass__", classmethod(init_subclass))
    try:
        yield
    finally:
        type.__setattr__(owner, "__init_subclass__", original)


def set_class(cls: Any, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    """Give a class that was made just now its attributes."""
    attributes, members = state
    if cls not in _unfinished:
        return
    for name, value in attributes.items():
        if name == "_abc_impl":
            for subclass in value:
                cls.register(subclass)
        else:
            type.__setattr__(cls, name, value)
    if "__firstlineno__" in attributes:  # setting another attribute may remove it
        type.__setattr__(cls, "__firstlineno__", attributes["__firstlineno__"])
    for name, own in members.items():
        vars(cls.__members__[name]).update(own)
    _unfinished.discard(cls)


def make_variable(kind: Any, name: str, limits: Any, options: dict[str, Any], identity: str | None) -> Any:
    """The type variable of this id."""
    return track(kind(name, *limits, **options), identity)


def make_cached(parameters: dict[str, Any], function: Callable[..., Any]) -> Any:
    """The function with its results kept, as `functools.lru_cache` keeps them."""
    return lru_cache(**parameters)(function)


def own_definition(name: str) -> Any:
    """The running program's own class or function of this qualified name in `__main__`; None without one."""
    found: Any = sys.modules.get("__main__")
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type | FunctionType) or found.__module__ not in MAINS:
        return None
    return found if found.__qualname__ == name else None


class Builders:
    """The functions that a pickle calls to make classes and functions, during one load.

    `load` unpickles a definition, and `note` learns of each class that the program has itself.
    """

    def __init__(self, load: Callable[[bytes], Any], note: Callable[[Any], object] = id) -> None:
        self._load = load
        self._note = note

    def find(self, name: str) -> Callable[..., Any]:
        """The function to use for a name of this module in a pickle."""
        if name in _MAKERS:
            return partial(self._make, _MAKERS[name])
        own = name in ("stored_class", "stored_function")
        found: Callable[..., Any] = getattr(self if own else sys.modules[__name__], name)
        return found

    def stored_class(self, magic: bytes, module: str, name: str, definition: Any) -> Any:
        """The program's own class of this name, or the stored one if this Python can run it."""
        found = self._own(module, name)
        if isinstance(found, type):
            return found
        if magic == MAGIC and len(definition):
            return self._load(bytes(definition))
        with registering:
            known = [cls for cls in undefined_classes if (module_of(cls), cls.__qualname__) == (module, name)]
        if len(known) == 1 and not len(definition):
            self._note(known[0])
            return known[0]
        raise CannotLoad(f"{module}.{name}", _reason(magic) if magic != MAGIC else _NO_DEFINITION)

    def stored_function(
        self, magic: bytes, module: str, name: str, code: bytes, scope: Any, beside: Any
    ) -> FunctionType:
        """The stored function if this Python can run it, or the program's own function of this name."""
        if magic != MAGIC:
            found = self._own(module, name)
            if isinstance(found, FunctionType):
                return found
            raise CannotLoad(f"{module}.{name}", _reason(magic))
        made, names = self._load(code), vars(scope) if isinstance(scope, ModuleType) else scope
        if names is scope:
            plain, missing = self._load(bytes(beside)) if beside is not None else ({}, ())
            names.update(plain)
            if missing and not isinstance(names.get("__builtins__"), _Builtins):
                names["__builtins__"] = _Builtins()
            if missing:
                names["__builtins__"].missing.update(missing)
            names.setdefault("__builtins__", vars(builtins))
        cells = tuple(CellType() for _ in made.co_freevars)
        function = FunctionType(made, names, None, None, cells or None)
        function.__module__, function.__qualname__ = module, name
        _unfinished.add(function)
        return function

    def _make(self, make: Callable[..., type], *args: Any) -> type:
        names = args[3]
        found = self._own(names["__module__"], names["__qualname__"])
        return found if isinstance(found, type) else make(*args)

    def _own(self, module: str, name: str) -> Any:
        """The program's class, or function, that has or replaces this name; None without one."""
        full = f"{module}.{name}"
        new = evolution.present(full)
        if new is not None:
            found = evolution.find(new, full)
        else:
            found = own_definition(name) if module == "__main__" else None
        if found is not None:
            self._note(found)
        return found


_MAKERS: Final = {make.__name__: make for make in (make_class, make_enum, make_struct)}


class Alone(Builders):
    """Those of a process that has none of the classes, and keeps none."""

    def find(self, name: str) -> Callable[..., Any]:
        """See `Builders`."""
        return partial(self._make, make_variable) if name == "make_variable" else super().find(name)

    def _make(self, make: Callable[..., type], *args: Any) -> type:
        return make(*args[:4], None, *args[5:])

    def _own(self, module: str, name: str) -> None:
        return None


_NO_DEFINITION: Final = (
    "it was stored without its definition, which cannot be pickled or would not load. Define it in this "
    "program, or tell `vstate.renamed` where it is now, or read the data alone with `state.inert(key)`"
)


def _reason(magic: bytes) -> str:
    return (
        f"{python_of(magic)} wrote its bytecode, which {python_of(MAGIC)} cannot run. Define it in this "
        "program, or tell `vstate.renamed` where it is now, or read the data alone with `state.inert(key)`"
    )
