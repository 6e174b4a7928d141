"""Definitions: classes and functions that no other process can import, above all those of `__main__`.

A value refers to such a class by its name, and the definition lies beside the value, as a buffer. So equal
definitions are stored once, and a program that has the class does not read the definition.

Code takes along the modules, definitions and numbers that it uses. Other values of globals stay in their
program: they may be secret, long, or locks. A definition is whole, and loads in a process that lacks the
class: or there is none, and the objects of the class are data elsewhere.

`builders.py` makes the classes and functions again.
"""

from __future__ import annotations

import abc
import copyreg
import gc
import io
import pickle
import re
import sys
import typing
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum, EnumType
from functools import cached_property, lru_cache, partial
from logging import Logger
from numbers import Number
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    NoneType,
    NotImplementedType,
    UnionType,
)
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from cloudpickle import cloudpickle

from vstate.errors import CannotLoad
from vstate.values import builders
from vstate.values.builders import MAINS, NAMED, is_of_python, module_of
from vstate.values.exceptions import reduce_exception
from vstate.values.fields import is_by_name, reduce_by_name
from vstate.values.opcodes import frameless, pickle_file

_CLOUDPICKLES: Final[dict[type, Any]] = cloudpickle.Pickler._dispatch_table
_SINGLE: Final = (NoneType, EllipsisType, NotImplementedType)
_CONSTANTS, _FILE_NAME = 7, 10  # places among the fields of a code object
_ADDRESS: Final = re.compile(rb":(\d{6,20})(?!\d)")
_VARIABLES: Final = (TypeVar, typing.ParamSpec, typing.TypeVarTuple)
_CACHED: Final = type(lru_cache(len))
_MOST_KNOWN: Final = 10_000
_MADE_ANEW: Final = frozenset(
    (
        "__dict__",
        "__module__",
        "__qualname__",
        "__weakref__",
        "__slotnames__",
        "__annotate_func__",
        "__new_member__",
        "_inverted_",
    )
    + ("_generate_next_value_", "_member_names_", "_member_map_", "_member_type_", "_value2member_map_")
    # pydantic's copy of the variables around a class
    + ("__pydantic_parent_namespace__",)
)
"""Attributes that are not stored with a class: making it gives them, or nobody needs them elsewhere."""
_OF_MEMBERS: Final = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_DESCRIPTORS: Final = (MemberDescriptorType, GetSetDescriptorType)
_KINDS_OF_CODE: Final = (type, FunctionType, _CACHED, Enum, Logger, EllipsisType, NotImplementedType)
_ALIASES: Final = (GenericAlias, UnionType, typing._BaseGenericAlias)  # type: ignore[attr-defined]


def needs_definition(obj: Any) -> bool:
    """Whether this class or function is stored by value, because no other process can import it."""
    if getattr(obj, "__module__", None) == "__mp_main__":
        return True
    return not cloudpickle._should_pickle_by_reference(obj)


def reduce_class(cls: type) -> Any:
    """How a value refers to a class, as `reducer_override` returns it."""
    if cls in cloudpickle._BUILTIN_TYPE_NAMES or cls in _SINGLE:
        return cloudpickle._class_reduce(cls)
    if not needs_definition(cls):
        return NotImplemented
    name = module_of(cls), cls.__qualname__
    return builders.stored_class, (builders.MAGIC, *name, pickle.PickleBuffer(definition(cls)))


class _NamedError(pickle.PicklingError):
    """The program names a global that cannot be pickled."""


class Definition(bytes):
    """A pickle beside a value: a class with everything that it needs, or numbers that a function uses.

    A change of it is no change of the value.
    """


def definition(cls: type) -> Definition:
    """The definition of a class. Equal classes have equal definitions.

    It is empty if it cannot be pickled, or would not load in another process.
    """
    pickler = ByValue()
    for _ in range(2):  # an error that does not come again is not the class's: say, of a signal handler
        with _failing():
            return Definition(_proven(_dump(pickler := ByValue(), cls)))
    for name, value in pickler.named.items():
        with _failing():
            _proven(_dump(ByValue(), value))
            continue
        raise _NamedError(f"the global {name}, which {NAMED} names, would not load again")
    with builders.registering:
        builders.undefined_classes.add(cls)
    return Definition()


@contextmanager
def _failing() -> Iterator[None]:
    """Code of a class or of its parts runs, which may raise anything."""
    try:
        yield
    except (_NamedError, MemoryError, RecursionError):
        raise
    except Exception:
        pass


_loaded: set[str] = set()
"""Hashes of definitions that a trial loaded."""


def _proven(data: bytes) -> bytes:
    """The definition, after a new one was loaded once, as a process without its classes does that."""
    digest = _hash(data)
    if digest not in _loaded:
        _try(data)
        gc.collect(1)  # else the subclasses of a base are twice in its `__subclasses__()`
        if len(_loaded) > _MOST_KNOWN:
            _loaded.clear()
        _loaded.add(digest)
    return data


class _Trial(pickle.Unpickler):
    """Loads a definition without the classes of `__main__`."""

    def find_class(self, module: str, name: str) -> Any:
        if module in MAINS:
            raise CannotLoad(f"{module}.{name}", "no other program has it")
        if module == builders.__name__:
            return builders.Alone(_try).find(name)
        return super().find_class(module, name)


def _try(data: bytes) -> Any:
    return _Trial(pickle_file(data)).load()


def _dump(pickler: ByValue, obj: Any) -> bytes:
    pickle.Pickler.dump(pickler, obj)  # cloudpickle's own would hide a RecursionError
    data = frameless(pickler.file.getvalue())
    return _ADDRESS.sub(pickler.label, data) if pickler.has_models else data


def _hash(data: bytes) -> str:
    import hashlib  # late, for a quick `import vstate`: it loads OpenSSL

    return hashlib.blake2b(data, digest_size=16).hexdigest()


def token(cls: type) -> str:
    """The id of a class among equal ones: a hash of its definition. Two classes of a process never share one.

    A class that was loaded keeps the id that it was stored with.
    """
    known = builders.ids.get(cls)
    if known is not None:
        return known
    base = made = _hash(_dump(ByValue(tokens=False), cls))
    number = 1
    with builders.registering:
        while builders.by_id.get(made) is not None:
            number += 1
            made = f"{base}-{number}"
        builders.track(cls, made)
    return made


def reduce_code(code: CodeType) -> tuple[Any, ...]:
    """A code object, with the magic number of the Python that can run it, and without its file."""
    _, fields = cloudpickle._code_reduce(code)
    fields = list(fields)
    fields[_CONSTANTS] = tuple(map(_ordered, code.co_consts))
    fields[_FILE_NAME] = code.co_filename if _is_of_attrs(code) else "<stored>"
    return builders.stored_code, (builders.MAGIC, *fields)


_codes: WeakKeyDictionary[CodeType, bytes] = WeakKeyDictionary()
"""The pickles of code objects, which never change."""


def _pickled_code(code: CodeType) -> bytes:
    data = _codes.get(code)
    if data is None:
        data = _codes[code] = _dump(ByValue(), code)
    return data


def _reduce_variable(variable: Any) -> Any:
    if _is_importable(variable):
        return getattr, (sys.modules[variable.__module__], variable.__name__)
    options = {
        name: getattr(variable, f"__{name}__")
        for name in ("bound", "covariant", "contravariant")
        if hasattr(variable, f"__{name}__")
    }
    limits = getattr(variable, "__constraints__", ())
    # Equal variables of a module are one variable.
    identity = f"{variable.__module__}.{variable}: {options.get('bound')} {limits}"
    return builders.make_variable, (type(variable), variable.__name__, limits, options, identity)


def _reduce_new_type(made: Any) -> Any:
    return made.__reduce__() if _is_importable(made) else (type(made), (made.__name__, made.__supertype__))


def _reduce_alias(alias: Any) -> Any:
    if _is_importable(alias):
        return alias.__reduce__()
    kind: Any = type(alias)
    return partial(kind, type_params=alias.__type_params__), (alias.__name__, alias.__value__)


def _is_importable(obj: Any) -> bool:
    """Whether other processes find this under the name that it has in its module."""
    return (
        obj.__module__ not in MAINS and cloudpickle._lookup_module_and_qualname(obj, obj.__name__) is not None
    )


def _reduce_cached_property(found: cached_property[Any]) -> Any:
    # Without the lock that it has before Python 3.12.
    return cached_property, (found.func,), {"attrname": found.attrname}


def _reduce_lru_cache(found: Any) -> Any:
    if _is_importable(found):
        return found.__reduce__()
    return builders.make_cached, (found.cache_parameters(), found.__wrapped__)


class _Call(NamedTuple):
    """Stands for the result of a call in a pickle."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple(self)


def _ordered(value: Any) -> Any:
    """The value, or a frozenset so that its pickle does not depend on the hashes of this process."""
    if type(value) is not frozenset or len(value) < 2:
        return value
    return _Call(frozenset, (sorted(value, key=repr),))


REDUCERS: Final[Mapping[type, Any]] = ChainMap(
    {
        # An open file is refused, as pickle does: cloudpickle would store a copy of its content.
        **{kind: reduce for kind, reduce in _CLOUDPICKLES.items() if kind is not io.TextIOWrapper},
        **dict.fromkeys(_VARIABLES, _reduce_variable),
        CodeType: reduce_code,
        typing.NewType: _reduce_new_type,
        cached_property: _reduce_cached_property,
        # Its text alone: its value may be the class that it is in.
        typing.ForwardRef: lambda found: (typing.ForwardRef, (found.__forward_arg__,)),
        _CACHED: _reduce_lru_cache,
        **({typing.TypeAliasType: _reduce_alias} if hasattr(typing, "TypeAliasType") else {}),
    },
    copyreg.dispatch_table,
)
"""How picklers reduce objects that have no class of their own to say so."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no annotations
    """cloudpickle's pickler, but exceptions load again, objects keep the names of their fields, and functions
    leave values of globals out.
    """

    dispatch_table = REDUCERS
    named: dict[str, Any] | None = None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, BaseException):
            return reduce_exception(obj)
        return reduce_by_name(obj) if is_by_name(kind) else super().reducer_override(obj)

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        home = _home(function)
        code, plain, missing = ({}, {}, ()) if home else self.globals_of(function)
        beside = None
        if plain or missing:
            beside = pickle.PickleBuffer(Definition(_dump(ByValue(), (plain, missing))))
        cells = map(cloudpickle._get_cell_contents, function.__closure__ or ())
        submodules = cloudpickle._find_imported_submodules(function.__code__, [*code.values(), *cells])
        modules = list(filter(_is_code, submodules))
        attributes = {
            "__annotations__": function.__annotations__,
            "__defaults__": function.__defaults__,
            "__doc__": function.__doc__,
            "__kwdefaults__": function.__kwdefaults__,
            "__name__": "".join(function.__name__),  # a copy: pickles differ in the texts that they share
        }
        own = {"".join(name): value for name, value in function.__dict__.items()}
        names = module_of(function), "".join(function.__qualname__)
        args = (
            builders.MAGIC,
            *names,
            _pickled_code(function.__code__),
            home or self._shared(function),
            beside,
        )
        state = attributes, own, function.__closure__ or (), code, modules
        return builders.stored_function, args, state, None, None, builders.set_function

    def _shared(self, function: FunctionType) -> dict[str, Any]:
        """The globals that functions of one program share again when they are loaded."""
        names = function.__globals__
        kept = {name: names[name] for name in ("__name__", "__package__", "__path__") if name in names}
        if kept.get("__name__") in MAINS:
            kept["__name__"] = "__main__"
        shared: dict[str, Any] = self.globals_ref.setdefault(id(names), kept)
        return shared

    def globals_of(self, function: FunctionType) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
        """The globals that a function uses: code and imported things; plain values; names of the rest."""
        names, named = function.__globals__, function.__globals__.get(NAMED, ())
        absent: Iterable[str] = getattr(names.get("__builtins__"), "missing", ())
        for name in [named] if isinstance(named, str) else named:
            if name not in names:
                raise _NamedError(
                    f"{NAMED} names {name!r}, and the module has no such global: correct the name"
                )
        code, plain, missing = {}, {}, []
        for used in cloudpickle._extract_code_globals(function.__code__):
            name = "".join(used)
            if name not in names:
                missing += [name] if name in absent else []
                continue
            value = names[name]
            is_named = name == named or (name in named and not isinstance(named, str))
            if is_named and _obstacle(value):
                raise _NamedError(f"the global {name}, which {NAMED} names, cannot be pickled")
            if is_named and self.named is not None:
                self.named[name] = value
            if _is_number(value) or (is_named and not _obstacle(value, _Plain)):
                plain[name] = value
            elif is_named or _is_of_attrs(function.__code__) or (_is_code(value) and not _obstacle(value)):
                code[name] = value
            elif (imported := _imported(name, value)) is not None:
                code[name] = imported
            else:
                missing.append(name)
        return code, plain, tuple(missing)


def _home(function: FunctionType) -> ModuleType | None:
    """The module whose globals the function has, if other processes can import it."""
    name = function.__globals__.get("__name__")
    found = sys.modules.get(name) if isinstance(name, str) and name not in MAINS else None
    if not isinstance(found, ModuleType) or vars(found) is not function.__globals__:
        return None
    return found if cloudpickle._should_pickle_by_reference(found) else None


def _is_of_attrs(code: CodeType) -> bool:
    """Whether the globals of the code are its own: attrs made both."""
    return code.co_filename.startswith("<attrs generated")


def _is_number(value: Any) -> bool:
    kind = type(value)
    if kind in (NoneType, bool, int, float):
        return True
    if not issubclass(kind, Number) or issubclass(kind, Enum):
        return False
    return (is_of_python(kind) or kind.__module__ == "numpy") and not hasattr(value, "__dict__")


def _is_code(value: Any) -> bool:
    """Whether a global is a module, a definition or a name, so that it goes along with code."""
    kind = type(value)  # isinstance() would run the code of a proxy
    parts: Iterable[Any]
    if issubclass(kind, _KINDS_OF_CODE):
        return True
    if issubclass(kind, ModuleType):
        return bool(cloudpickle._should_pickle_by_reference(value))
    if kind is BuiltinFunctionType:
        return value.__self__ is None or isinstance(value.__self__, ModuleType | type)
    if kind is partial:
        parts = value.func, *value.args, *value.keywords.values(), *vars(value).values()
    elif kind in _VARIABLES:
        parts = getattr(value, "__bound__", None), *getattr(value, "__constraints__", ())
    elif kind is typing.NewType:
        parts = (value.__supertype__,)
    elif issubclass(kind, _ALIASES):
        parts = *getattr(value, "__args__", ()), *getattr(value, "__metadata__", ())
    else:
        return False
    return all(_is_number(part) or _is_code(part) for part in parts)


def _imported(name: str, value: Any) -> _Call | None:
    """Where a global was imported from; None for text, and for a value that no module has under this name."""
    if type(value) in (str, bytes):  # equal texts may be one object
        return None
    found = _place(name, id(value), len(sys.modules))
    return _Call(getattr, (found, name)) if found and vars(found).get(name) is value else None


@lru_cache(_MOST_KNOWN)  # each commit asks for the same
def _place(name: str, identity: int, _: int) -> ModuleType | None:
    """The outermost module that has this object under this name, and that other processes can import."""
    modules = [
        module
        for label, module in list(sys.modules.items())
        if type(module) is ModuleType and module.__name__ == label and label not in MAINS
        if id(vars(module).get(name)) == identity and cloudpickle._should_pickle_by_reference(module)
    ]
    return min(modules, key=lambda module: (module.__name__.count("."), module.__name__), default=None)


class ByValue(Pickler):
    """Pickles classes and functions with their definitions. Equal definitions give equal bytes.

    Each class has the id `token`, or none.
    """

    def __init__(self, *, tokens: bool = True) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self._tokens = tokens
        self.named: dict[str, Any] = {}
        """The values that the program named."""
        self.has_models = False
        """Whether it holds models of pydantic: labels in their schemas end in the addresses of classes."""
        self._classes: dict[int, type] = {}

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), type):
            return self._reduce_class(obj)
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        self._classes[id(cls)] = cls
        self.has_models = self.has_models or "__pydantic_core_schema__" in cls.__dict__
        if cls in cloudpickle._BUILTIN_TYPE_NAMES or cls in _SINGLE:
            return cloudpickle._class_reduce(cls)
        return self.reduce_whole(cls) if needs_definition(cls) else NotImplemented

    def label(self, found: re.Match[bytes]) -> bytes:
        """The number that stands for the address of a class, with as many digits: a text has its length."""
        digits, address = len(found[1]), int(found[1])
        cls = self._classes.get(address)
        if cls is None:
            return found[0]
        if not self._tokens:  # in the order of their appearance
            number = list(self._classes).index(address)
        else:
            name = token(cls) if needs_definition(cls) else f"{cls.__module__}.{cls.__qualname__}"
            number = int(_hash(name.encode()), 16) % 10**digits
        return b":%0*d" % (digits, number)

    def reduce_whole(self, cls: type) -> Any:
        """How a class is pickled with all its parts."""
        identity = token(cls) if self._tokens else builders.ids.get(cls)
        attributes = _attributes(cls)
        names: dict[str, Any] = {
            "__module__": module_of(cls),
            "__qualname__": "".join(cls.__qualname__),
        }
        if "__orig_bases__" in attributes:
            names["__orig_bases__"] = attributes["__orig_bases__"]
        base = type(cls), cls.__name__, _bases(cls), names, identity
        members: dict[str, Any] = dict(cls.__members__) if isinstance(cls, EnumType) else {}
        own = {
            name: {key: value for key, value in vars(member).items() if key not in _OF_MEMBERS}
            for name, member in members.items()
        }
        make: Any
        if members:
            values = [(name, member._value_, _arguments(member)) for name, member in members.items()]
            make = (builders.make_enum, (*base, values))
        elif type(cls).__module__ == "msgspec._core":
            make = (builders.make_struct, (*base, *_struct_fields(cls)))
        else:
            if "__slots__" in attributes:
                names["__slots__"] = tuple(
                    sorted(name for name, value in vars(cls).items() if _is_slot(cls, value))
                )
            make = (builders.make_class, base)
        return *make, (attributes, own), None, None, builders.set_class


class _Sketch(ByValue):
    """Finds out whether a part of a definition can be pickled, without the definitions that it needs."""

    def reduce_whole(self, cls: type) -> Any:
        """A stand-in for the class."""
        return tuple, ()

    def globals_of(self, function: FunctionType) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
        """None: a global that cannot be pickled stays in the program."""
        return {}, {}, ()


class _Plain(_Sketch):
    """Finds out whether a value can be pickled and needs no definitions."""

    def reduce_whole(self, cls: type) -> Any:
        """Refused."""
        raise pickle.PicklingError(f"{cls.__qualname__} needs a definition")

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        return self.reduce_whole(type(function))


def _obstacle(value: Any, make: Callable[[], ByValue] = _Sketch) -> bool:
    """Whether a part of a definition cannot be pickled."""
    kind = type(value)
    if kind in (NoneType, bool, int, float, str, bytes, ModuleType):
        return False
    if kind is FunctionType and make is _Sketch:
        parts = value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__
        if not any(parts):  # mostly so
            return False
    for _ in range(2):  # an error that does not come again is not the value's
        with suppress(Exception):
            pickle.Pickler.dump(make(), value)
            return False
    return True


def _attributes(cls: type) -> dict[str, Any]:
    """The attributes of a class that making it anew does not give."""
    found: dict[str, Any] = cloudpickle._extract_class_dict(cls)
    for name in _MADE_ANEW.union(getattr(cls, "__members__", ()) if isinstance(cls, EnumType) else ()):
        found.pop(name, None)
    if isinstance(cls, abc.ABCMeta):
        subclasses = (reference() for reference in abc._get_dump(cls)[0])  # type: ignore[attr-defined]
        found["_abc_impl"] = sorted(filter(None, subclasses), key=lambda cls: cls.__qualname__)
    if "__static_attributes__" in found:  # a tuple of Python 3.13, in the order of hashes
        found["__static_attributes__"] = tuple(sorted(found["__static_attributes__"]))
    return {name: _ordered(value) for name, value in found.items() if not _is_slot(cls, value)}


def _is_slot(cls: type, value: Any) -> bool:
    return isinstance(value, _DESCRIPTORS) and value.__objclass__ is cls


def _bases(cls: type) -> tuple[Any, ...]:
    if type(cls).__name__ == "_TypedDictMeta":  # its base is dict, and making it takes another one
        return (sys.modules[type(cls).__module__].TypedDict,)
    return cls.__bases__


def _arguments(member: Enum) -> tuple[Any, ...]:
    """The arguments that make the text, or the date, that a member of an enumeration is."""
    reduced: Any = object.__reduce_ex__(member, 2)
    if hasattr(type(member), "__setstate__") or not isinstance((*reduced, None)[2], dict | None):
        raise pickle.PicklingError(f"{member!r} has a state besides its attributes")
    is_first_the_class = reduced[0] is copyreg.__newobj__  # type: ignore[attr-defined]
    return tuple(reduced[1][is_first_the_class:])


def _struct_fields(cls: Any) -> tuple[Any, ...]:
    """The fields that a class of msgspec adds to its bases, and its options."""
    import msgspec  # late: the program has it, and vstate does not require it

    defaults = dict(zip(reversed(cls.__struct_fields__), reversed(cls.__struct_defaults__), strict=False))
    fields = []
    for name, encoded in zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True):
        default = defaults.get(name, msgspec.NODEFAULT)
        given = {"default_factory": default.factory} if hasattr(default, "factory") else {"default": default}
        if isinstance(vars(cls).get(name), MemberDescriptorType):
            fields.append((name, encoded, {} if default is msgspec.NODEFAULT else given))
    config = cls.__struct_config__
    options = {name: getattr(config, name) for name in sorted(dir(config)) if not name.startswith("_")}
    options["kw_only"] = not {name for name, *_ in fields} <= set(cls.__match_args__)
    return fields, options
