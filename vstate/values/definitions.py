"""Definitions: classes and functions that no other process can import, above all those of `__main__`.

A value refers to such a class by its name, and the definition lies beside the value, as a buffer. So equal
definitions are stored once, and a program that has the class does not read the definition.

Code is bytecode, and only the minor version of Python that compiled it can run it: another one crashes. So
each code object is stored with `MAGIC`, the magic number of its Python. The names of the functions
`stored_class` and `stored_code` are in stored pickles.
"""

from __future__ import annotations

import copyreg
import dis
import io
import opcode
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib.util import MAGIC_NUMBER
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, TypeVar

from cloudpickle import cloudpickle as by_value

from vstate.errors import CannotLoad
from vstate.forks import new_lock, renew_in_child
from vstate.values import evolution
from vstate.values.exceptions import reduce_exception
from vstate.values.opcodes import frameless

MAGIC: Final = MAGIC_NUMBER

MODULES: Final = frozenset({__name__, by_value.__name__, "dataclasses"})
"""The modules some of whose names in a pickle are replaced during a load: see `Builders.find`."""

_MAINS: Final = ("__main__", "__mp_main__")  # the second is the first, in a process of multiprocessing
_CLOUDPICKLES: Final[dict[type, Any]] = by_value.Pickler._dispatch_table
_TRACKER_PLACES: Final = {by_value._make_skeleton_class: 4, by_value._make_skeleton_enum: 5}
_SINGLE: Final = (type(None), type(...), type(NotImplemented))
_CODE_FIELDS: Final = 18  # of a code object, since Python 3.11
_CODE_FIELD: Final = 6  # the bytecode among them
_CONSTANTS: Final = 7
# Between Python 3.11 and 3.12: instructions whose number or caches differ, and numbers with two meanings.
_TELLING: Final = frozenset(
    ("BINARY_SLICE", "BINARY_SUBSCR", "CALL", "COMPARE_OP", "FOR_ITER", "LOAD_ATTR", "LOAD_FAST_CHECK")
    + ("LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SUPER_ATTR", "PRECALL", "RETURN_CONST", "SEND", "STORE_SLICE")
    + ("YIELD_VALUE",)
)
_AMBIGUOUS: Final = frozenset({87, 173, 174, 175, 176})


def python_of(magic: bytes) -> str:
    """The version of Python that has this magic number, for people: `Python 3.12`."""
    number = int.from_bytes(magic[:2], "little")
    if 3450 <= number < 4000:  # each minor version begins a new fifty
        return f"Python 3.{11 + (number - 3450) // 50}"
    return f"a Python with the magic number {number}"


# Writing


def is_class(obj: Any) -> bool:
    """Whether `obj` is a class, of any metaclass."""
    return issubclass(type(obj), type)


def needs_definition(obj: Any) -> bool:
    """Whether this class or function is stored by value, because no other process can import it."""
    if getattr(obj, "__module__", None) == "__mp_main__":
        return True
    return not by_value._should_pickle_by_reference(obj)


def reduce_class(cls: type) -> Any:
    """How a value refers to a class, as `reducer_override` returns it."""
    if cls in by_value._BUILTIN_TYPE_NAMES or cls in _SINGLE:
        return by_value._class_reduce(cls)
    if not needs_definition(cls):
        return NotImplemented
    module = "__main__" if cls.__module__ in _MAINS else str(cls.__module__)
    return stored_class, (MAGIC, module, cls.__qualname__, pickle.PickleBuffer(definition(cls)))


class Definition(bytes):
    """A class as a pickle that holds it and everything that it needs by value."""


def definition(cls: type) -> Definition:
    """The definition of a class. Equal classes have equal definitions, in all processes."""
    return Definition(_pickled(cls, tokens=True))


def _pickled(obj: Any, *, tokens: bool) -> bytes:
    file = io.BytesIO()
    pickler = ByValue(file, tokens=tokens)
    pickler.dump(obj)
    data = frameless(file.getvalue())
    for model in pickler.models:
        address = str(id(model))
        import hashlib  # late, for a quick `import vstate`: it loads OpenSSL

        number = int.from_bytes(hashlib.blake2b(model.__qualname__.encode()).digest(), "big")
        # Of the same length, because the length of each text stands before the text.
        label = str(number % 10 ** len(address)).zfill(len(address))
        data = data.replace(f":{address}".encode(), f":{label}".encode())
    return data


_registering = new_lock()
# cloudpickle has a lock of its own, which it holds while it looks a class up.
renew_in_child(_registering, lambda _: by_value._DYNAMIC_CLASS_TRACKER_LOCK._at_fork_reinit())


def token(cls: type) -> str:
    """The id of a class among equal ones: a hash of its definition. Two classes of a process never share one.

    A class that was loaded keeps the id that it was stored with.
    """
    known: str | None = by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls)
    if known is not None:
        return known
    import hashlib

    base = made = hashlib.blake2b(_pickled(cls, tokens=False), digest_size=16).hexdigest()
    number = 1
    with _registering:
        while by_value._DYNAMIC_CLASS_TRACKER_BY_ID.get(made) is not None:
            number += 1
            made = f"{base}-{number}"
        by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = made
        by_value._DYNAMIC_CLASS_TRACKER_BY_ID[made] = cls
    return made


def reduce_code(code: CodeType) -> tuple[Any, ...]:
    """A code object, with the magic number of the Python that can run it, and without its directory."""
    _, fields = by_value._code_reduce(code.replace(co_filename=_file_name(code.co_filename)))
    before, constants, after = fields[:_CONSTANTS], fields[_CONSTANTS], fields[_CONSTANTS + 1 :]
    return stored_code, (MAGIC, *before, tuple(map(_ordered, constants)), *after)


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _reduce_typevar(variable: TypeVar) -> Any:
    # Its random id would make equal definitions differ. Equal variables of a module are one variable.
    known = f"{variable.__module__}.{variable}: {variable.__bound__} {variable.__constraints__}"
    by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.setdefault(variable, known)
    return by_value._typevar_reduce(variable)


def _reduce_cached_property(found: cached_property[Any]) -> Any:
    # Without the lock that it has before Python 3.12.
    return cached_property, (found.func,), {"attrname": found.attrname}


class _LruCache:
    """The decorator that `functools.lru_cache` returns for these parameters, and its pickle."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters

    def __call__(self, function: Callable[..., Any]) -> Any:
        return lru_cache(**self._parameters)(function)

    def __reduce__(self) -> tuple[Any, ...]:
        return lru_cache, tuple(self._parameters.values())


def _reduce_lru_cache(found: Any) -> Any:
    # By itself it is pickled as the name that it has in its module.
    if found.__module__ not in _MAINS and by_value._lookup_module_and_qualname(found) is not None:
        return found.__reduce__()
    return _LruCache(found.cache_parameters()), (found.__wrapped__,)


class _Ordered:
    """A frozenset whose pickle does not depend on the hashes of this process."""

    def __init__(self, members: frozenset[Any]) -> None:
        self._members = members

    def __reduce__(self) -> tuple[Any, ...]:
        return frozenset, (sorted(self._members, key=repr),)


def _ordered(value: Any) -> Any:
    return _Ordered(value) if type(value) is frozenset and len(value) > 1 else value


REDUCERS: Final[Mapping[type, Any]] = ChainMap(
    {
        # An open file is refused, as pickle does: cloudpickle would store a copy of its content.
        **{kind: reduce for kind, reduce in _CLOUDPICKLES.items() if kind is not io.TextIOWrapper},
        CodeType: reduce_code,
        TypeVar: _reduce_typevar,
        cached_property: _reduce_cached_property,
        type(lru_cache(is_class)): _reduce_lru_cache,
    },
    copyreg.dispatch_table,
)
"""How picklers reduce objects that have no class of their own to say so."""


class Pickler(by_value.Pickler):  # type: ignore[misc]  # it has no annotations
    """cloudpickle's pickler, but exceptions load again, and functions hold no directory of the program."""

    dispatch_table = REDUCERS

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException):
            return reduce_exception(obj)
        return super().reducer_override(obj)

    def _function_getnewargs(self, function: FunctionType) -> Any:
        args = super()._function_getnewargs(function)
        args[1].pop("__file__", None)  # which the module has no longer while the program ends
        return args


class ByValue(Pickler):
    """Pickles classes and functions with their definitions. Equal definitions give equal bytes.

    cloudpickle gives each class a random id. It is replaced by `token`, or by None if there is none.
    """

    def __init__(self, file: io.BytesIO, *, tokens: bool) -> None:
        super().__init__(file, protocol=5)
        self._tokens = tokens
        self.models: set[type] = set()
        """Models of pydantic in it: labels in their schemas end in the addresses of classes."""

    def reducer_override(self, obj: Any) -> Any:
        if is_class(obj):
            return self._reduce_class(obj)
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        if "__pydantic_core_schema__" in cls.__dict__:
            self.models.add(cls)
        if cls in by_value._BUILTIN_TYPE_NAMES or cls in _SINGLE:
            return by_value._class_reduce(cls)
        if not needs_definition(cls):
            return NotImplemented
        known = by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls)
        build, args, state, *rest = by_value._dynamic_class_reduce(cls)
        place = _TRACKER_PLACES[build]
        if known is None:
            by_value._DYNAMIC_CLASS_TRACKER_BY_ID.pop(args[place], None)
            by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS.pop(cls, None)
        tracker = (known or token(cls)) if self._tokens else None
        attributes = {name: _ordered(value) for name, value in state[0].items() if name != "__slotnames__"}
        if "__static_attributes__" in attributes:  # a tuple of Python 3.13, in the order of hashes
            attributes["__static_attributes__"] = tuple(sorted(attributes["__static_attributes__"]))
        return (build, (*args[:place], tracker, *args[place + 1 :]), (attributes, state[1]), *rest)


# Reading


def stored_class(magic: bytes, module: str, name: str, definition: Any) -> Any:
    """The class that a pickle refers to, for a program that reads the pickle without vstate's loader."""
    return Builders(pickle.loads, lambda found: None).stored_class(magic, module, name, definition)


def stored_code(magic: bytes, *args: Any) -> CodeType:
    """The code object with these fields, for a program that reads the pickle without vstate's loader."""
    if magic != MAGIC:
        raise CannotLoad("code", _reason(magic))
    return CodeType(*args)


def own(name: str) -> Any:
    """The running program's own class or function of this qualified name in `__main__`; None without one."""
    found: Any = sys.modules.get("__main__")
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type | FunctionType) or found.__module__ not in _MAINS:
        return None
    return found if found.__qualname__ == name else None


class Foreign(NamedTuple):
    """The place of a code object that this Python cannot run."""

    name: str
    magic: bytes | None


class _Unneeded:
    """Stands for the private parts of a dataclass that is not made: versions of Python differ in them."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class Builders:
    """The functions that a pickle calls to make classes and functions, during one load.

    `load` unpickles a definition, and `note` learns of each class that the program has itself. Code of
    another Python is never made. It may lie in a definition that is not needed, because the program has the
    class itself; `check` raises CannotLoad if it does not.
    """

    def __init__(self, load: Callable[[bytes], Any], note: Callable[[Any], None]) -> None:
        self._load = load
        self._note = note
        self._foreign: list[Foreign] = []
        self._found: list[FunctionType] = []
        """The program's own functions, which stand for stored ones."""
        self._marks: dict[int, int] = {}
        """The length of `_foreign` before the definition of a class, by the id of the program's own class."""

    def find(self, module: str, name: str) -> Callable[..., Any] | None:
        """The function to use for this name in a pickle; None for the one that the name says."""
        if module == __name__:
            return {"stored_class": self.stored_class, "stored_code": self._stored_code}.get(name)
        if module == by_value.__name__:
            function: Callable[..., Any] | None = getattr(self, f"_old{name}", None)
            return function
        if self._marks and module == "dataclasses" and name.startswith("_"):
            return _Unneeded
        return None

    def check(self) -> None:
        """CannotLoad if the value holds code of another Python."""
        for name, magic in self._foreign:
            raise CannotLoad(name, _reason(magic))

    def stored_class(self, magic: bytes, module: str, name: str, definition: Any) -> Any:
        """The program's own class of this name, or the stored one if this Python can run it."""
        found = self._own(module, name)
        if isinstance(found, type):
            return found
        if magic == MAGIC:
            return self._load(bytes(definition))
        raise CannotLoad(f"{module}.{name}", _reason(magic))

    def _own(self, module: str, name: str) -> Any:
        """The program's class, or function, that has or replaces this name; None without one."""
        full = f"{module}.{name}"
        new = evolution.present(full)
        if new is not None:
            found = evolution.find(new, full)
        else:
            found = own(name) if module == "__main__" else None
        if found is not None:
            self._note(found)
        return found

    def _stored_code(self, magic: bytes, *args: Any) -> CodeType | Foreign:
        return CodeType(*args) if magic == MAGIC else self._refuse(magic, args)

    def _refuse(self, magic: bytes | None, args: tuple[Any, ...]) -> Foreign:
        names = [value for value in args if type(value) is str]
        for inner in next((value for value in args if type(value) is tuple), ()):
            if isinstance(inner, Foreign):
                self._forget(inner)
        # The texts among the fields are the file, the name and, since Python 3.11, the qualified name.
        foreign = Foreign(f"__main__.{names[-1]}" if names else "a function", magic)
        self._foreign.append(foreign)
        return foreign

    def _forget(self, foreign: Foreign) -> None:
        self._foreign = [other for other in self._foreign if other is not foreign]

    # The functions of cloudpickle. Earlier versions stored code by them alone, without a magic number.

    def _old_builtin_type(self, name: str) -> Any:
        return self._old_code if name == "CodeType" else by_value._builtin_type(name)

    def _old_code(self, *args: Any) -> CodeType | Foreign:
        return CodeType(*args) if runs_here(args) else self._refuse(None, args)

    def _old_make_function(self, code: Any, names: Any, *rest: Any) -> Any:
        if not isinstance(code, Foreign):
            return by_value._make_function(code, names, *rest)
        found = None
        if names.get("__name__") in _MAINS:
            found = self._own("__main__", code.name.removeprefix("__main__."))
        if not isinstance(found, FunctionType):
            return code
        self._forget(code)
        self._found.append(found)
        return found

    def _old_function_setstate(self, function: Any, state: Any) -> None:
        if not isinstance(function, Foreign) and not any(function is found for found in self._found):
            by_value._function_setstate(function, state)

    def _old_make_skeleton_class(
        self, metaclass: Any, name: str, bases: Any, options: dict[str, Any], *rest: Any
    ) -> Any:
        found = self._old_own(options.get("__module__"), name)
        if found is not None:
            return self._mark(found)
        return by_value._make_skeleton_class(metaclass, name, bases, options, *rest)

    def _old_make_skeleton_enum(
        self, bases: Any, name: str, qualname: str, members: Any, module: str, *rest: Any
    ) -> Any:
        found = self._old_own(module, name)
        if found is not None:
            return self._mark(found)
        return by_value._make_skeleton_enum(bases, name, qualname, members, module, *rest)

    def _old_own(self, module: str | None, name: str) -> type | None:
        found = self._own(module or "", name) or _own_class(module, name)
        return found if isinstance(found, type) else None

    def _mark(self, found: type) -> type:
        self._marks[id(found)] = len(self._foreign)
        return found

    def _old_class_setstate(self, made: type, state: Any) -> type:
        if id(made) in self._marks:  # everything since is the stored definition, which nobody needs
            del self._foreign[self._marks[id(made)] :]
            return made
        return by_value._class_setstate(made, state)  # type: ignore[no-any-return]


def runs_here(fields: tuple[Any, ...]) -> bool:
    """Whether this Python compiled a code object of unknown origin, as its instructions show.

    Code of another Python has instructions that this one lacks, or caches in other places. Between 3.11 and
    3.12 a few functions show no difference. Of these, only functions that run alike on both are accepted.
    """
    code = fields[_CODE_FIELD] if len(fields) == _CODE_FIELDS else None
    if type(code) is not bytes:
        return False
    at, names, numbers = 0, set(), set()
    while at < len(code):
        name = dis.opname[code[at]]
        if name.startswith(("<", "INSTRUMENTED_")) or name == "CACHE":
            return False
        caches = bytes(2 * _CACHES.get(name, 0))
        if code[at + 2 : at + 2 + len(caches)] != caches:
            return False
        names.add(name)
        numbers.add(code[at])
        at += 2 + len(caches)
    if at != len(code) or "RESUME" not in names:
        return False
    if sys.version_info >= (3, 13) or not names.isdisjoint(_TELLING):  # RESUME has another number since 3.13
        return True
    # Python 3.12 does not check that a local variable is set, where it has been so on every way there.
    branches = "STORE_FAST" in names and any("JUMP" in name for name in names)
    return not branches and "DELETE_FAST" not in names and numbers.isdisjoint(_AMBIGUOUS)


def _caches() -> dict[str, int]:
    """The number of cache entries behind each instruction, by its name."""
    entries: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]  # no public name tells
    if isinstance(entries, dict):  # since Python 3.13
        return entries
    return {dis.opname[code]: count for code, count in enumerate(entries)}


_CACHES: Final = _caches()


def _reason(magic: bytes | None) -> str:
    writer = "another Python" if magic is None else python_of(magic)
    return (
        f"{writer} wrote its bytecode, which {python_of(MAGIC)} cannot run. Define it in this program, or "
        "tell `vstate.renamed` where it is now, or read the data alone with `state.inert(key)`"
    )


def _own_class(module: str | None, name: str) -> type | None:
    """The running program's class of this name, nested ones included, if there is exactly one.

    Earlier versions stored no more than the last part of the name.
    """
    main = sys.modules.get("__main__") if module == "__main__" else None
    if main is None:
        return None
    found = [cls for cls in _classes(vars(main), "") if cls.__name__ == name]
    return found[0] if len(found) == 1 else None


def _classes(names: Mapping[str, Any], path: str) -> Iterator[type]:
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ in _MAINS and value.__qualname__ == path + name:
            yield value
            yield from _classes(vars(value), f"{path}{name}.")
