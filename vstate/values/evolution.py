"""Evolution: from the class that a stored object had to the class that the program has now.

A class may have another name now, and it may have other fields. History stays as it is: values become those
of the present class when they are loaded, and take the present form when they are stored again.
"""

from __future__ import annotations

import copyreg
import dataclasses
import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from enum import Enum, EnumType
from functools import partial
from pkgutil import resolve_name
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, Final, is_typeddict

from vstate.arguments import require_plain
from vstate.errors import CannotLoad, InvalidInput
from vstate.forks import new_lock
from vstate.values.fields import by_class, field_names, is_by_name, make, set_fields, slots_of

Fields = dict[str, Any]
Upgrade = Callable[[Fields], Fields]

_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, as by every `class` statement
_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray, complex})
_PRIVATE: Final = "__pydantic_private__"  # a slot of each model, with a dict or None
_NO_FIELDS: Final[Fields] = {}
_GIVEN: Final = "__pydantic_fields_set__"
_MODEL: Final[Fields] = {"__pydantic_extra__": None, _PRIVATE: None}
"""The state of a model besides its fields."""
_OUTSIDE: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)

# Where some versions of Python have a class of the standard library; all have the new name.
_names: dict[str, str | type] = {
    "pathlib._local": "pathlib",
    "re.PatternError": "re.error",
    "zipfile._path.CompleteDirs": "zipfile.CompleteDirs",
    "zipfile._path.Path": "zipfile.Path",
}
_roots: set[str] = {name.partition(".")[0] for name in _names}
"""The beginnings of the old names."""
_upgrades: dict[str, Upgrade] = {}
_registering = new_lock()


# What the program says


def renamed(old: str, new: str | type, *, upgrade: Upgrade | None = None) -> None:
    """Load stored objects of the class `old` as objects of the class `new`, in this process.

    `old` is the full name that the class had, `"old.module.Old"`. `new` is the present class or its full
    name. The names of two modules serve for all classes and functions in them. `upgrade` is as in `upgrade`.
    The stored values stay as they are: reading them is no change. InvalidInput for text that is no name.
    """
    if not isinstance(old, str):
        raise TypeError(f"the old class is given by its full name, not as {type(old).__name__}")
    _check_name(old)
    if isinstance(new, str):
        _check_name(new)
    elif not isinstance(new, type):
        raise TypeError(f"the present class is a class or its full name, not {type(new).__name__}")
    if new == old:
        raise InvalidInput(f"{old} is both the old name and the new one; for other fields use vstate.upgrade")
    with _registering:
        _roots.add(old.partition(".")[0])
        _names[old] = new
    if upgrade is not None:
        _register(new, upgrade)


def upgrade(cls: str | type, function: Upgrade) -> None:
    """Pass the stored fields of each loaded object of the class through `function`, in this process.

    `function` takes the fields by name, a dict, and returns the fields that the class has now. It gets the
    fields of up-to-date objects too. It is called before the class sees the fields. A member of an enum has
    one field, `value`. A value with such objects takes some ten times as long to load. InvalidInput for text
    that is no name, and for a class whose objects pickle stores as no fields: one with a `__reduce__` of its
    own, an exception, a TypedDict, a built-in class. If only its name is given, loading raises CannotLoad.
    """
    if isinstance(cls, str):
        _check_name(cls)
    elif not isinstance(cls, type):
        raise TypeError(f"a class is a class or its full name, not {type(cls).__name__}")
    _register(cls, function)


def _register(cls: str | type, function: Upgrade) -> None:
    require_plain("the function of upgrade", function)
    if isinstance(cls, type) and not _has_fields(cls):
        raise InvalidInput(f"{_full_name(cls)} is not stored as fields, so no function can upgrade them")
    with _registering:
        _upgrades[cls if isinstance(cls, str) else _full_name(cls)] = function


def _has_fields(cls: type) -> bool:
    """Whether pickle stores the objects of the class as fields."""
    if issubclass(cls, Enum) or is_by_name(cls):
        return True
    pickled: Any = cls.__reduce_ex__, cls.__reduce__
    made = bool(cls.__flags__ & _HEAP_TYPE) and not is_typeddict(cls) and cls not in copyreg.dispatch_table
    for name in ("__getnewargs__", "__getnewargs_ex__"):  # that of a named tuple too, which has a `__new__`
        made = made and not isinstance(getattr(cls, name, None), FunctionType)
    return made and pickled == (object.__reduce_ex__, object.__reduce__)


def _check_name(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"{name!r} is not the full name of a class; write it as in 'app.models.Plan'")


def _full_name(cls: type) -> str:
    """The name of the class. Pydantic makes a class of its own for `Model[int]`, which counts as `Model`."""
    cls = vars(cls).get("__pydantic_generic_metadata__", _NO_FIELDS).get("origin") or cls
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"


# Names


def present(name: str) -> str | type | None:
    """The present class, or its name, for the full name of a class in a pickle; None if it is the same."""
    if name.partition(".")[0] not in _roots:
        return None
    found: str | type | None = None
    followed: set[str] = set()  # each name is followed once, so that the search ends
    while True:
        end = len(name)
        while end > 0 and (name[:end] not in _names or name[:end] in followed):
            end = name.rfind(".", 0, end)
        if end <= 0:
            return found
        followed.add(name[:end])
        new, rest = _names[name[:end]], name[end + 1 :]
        if isinstance(new, type):
            for part in rest.split(".") if rest else ():
                new = getattr(new, part)
            return new
        name = found = f"{new}.{rest}" if rest else new


def find(new: str | type, old: str) -> Any:
    """The class or function that `present` gave for the name `old`; CannotLoad, which has both names."""
    if isinstance(new, type):
        return new
    try:
        return resolve_name(new)
    except Exception as error:  # an import runs the module's code, which may raise anything
        reason = f"{old} was renamed to it, and {type(error).__name__}: {error}"
        raise CannotLoad(new, reason) from error


def has_upgrade(cls: type) -> bool:
    """Whether the fields of its objects go through a function of the program."""
    return bool(_upgrades) and _full_name(cls) in _upgrades


# Fields


Defaults = Mapping[str, Callable[[Any], Any]]
"""For each field with a default: the function that makes it for an object."""


@by_class
def defaults(cls: type) -> Defaults:
    """The fields of a dataclass, or of a class of attrs or pydantic, that have defaults; else none."""
    return dict(_find_defaults(cls))


def _find_defaults(cls: type) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING:
                yield field.name, partial(_constant, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                yield field.name, partial(_made, field.default_factory)
    for attribute in getattr(cls, "__attrs_attrs__", ()):
        default = attribute.default
        if type(default).__name__ == "Factory":
            yield attribute.name, default.factory if default.takes_self else partial(_made, default.factory)
        elif getattr(default, "name", None) != "NOTHING":
            yield attribute.name, partial(_constant, default)
    models: Mapping[str, Any] = getattr(cls, "__pydantic_fields__", None) or {}
    for name, model in models.items():
        if not model.is_required():
            yield name, partial(_modelled, model)
    if _private(cls):
        yield _PRIVATE, _with_private


def _private(cls: type) -> Fields:
    """The private attributes of a model of pydantic that have defaults, without their values."""
    attributes: Mapping[str, Any] = getattr(cls, "__private_attributes__", None) or {}
    undefined = ("PydanticUndefinedType", "UndefinedType")
    return {
        name: attribute
        for name, attribute in attributes.items()
        if attribute.default_factory is not None or type(attribute.default).__name__ not in undefined
    }


def _with_private(obj: Any) -> Fields:
    made = dict(obj.__pydantic_private__ or {})
    for name, attribute in _private(type(obj)).items():
        if name in made:
            continue
        if attribute.default_factory is None:
            made[name] = deepcopy(attribute.default)
        elif getattr(attribute, "default_factory_takes_validated_data", False):
            made[name] = attribute.default_factory(obj.__dict__)
        else:
            made[name] = attribute.default_factory()
    return made


def _constant(value: Any, _: Any) -> Any:
    return value


def _made(factory: Callable[[], Any], _: Any) -> Any:
    return factory()


def _modelled(field: Any, obj: Any) -> Any:
    return field.get_default(call_default_factory=True, validated_data=obj.__dict__)


def _lacks(obj: Any, name: str) -> bool:
    fields = getattr(obj, "__dict__", None)
    if fields is not None and name in fields:
        return False
    if name == _PRIVATE:
        return not _private(type(obj)).keys() <= (getattr(obj, _PRIVATE, None) or {}).keys()
    for base in type(obj).__mro__:
        slot = vars(base).get(name)
        if isinstance(slot, MemberDescriptorType):
            try:
                slot.__get__(obj)
            except AttributeError:
                return True
            return False
    return fields is not None


def lacks_fields(value: Any, classes: Collection[type]) -> bool:
    """Whether objects of these classes in a value lack fields that have defaults.

    Looks at one object of each class. One program wrote the value as a whole, so the others have the same
    fields.
    """
    left = set(classes)
    ways = [iter([value])]  # the parts that are not looked at yet, of each object on the way to this one
    seen: set[int] = set()
    while ways:
        for obj in ways[-1]:
            kind = type(obj)
            if kind in _ATOMS or id(obj) in seen or isinstance(obj, _OUTSIDE):
                continue
            if kind in left:
                fields, needed = getattr(obj, "__dict__", _NO_FIELDS), defaults(kind)
                if not needed.keys() <= fields.keys() and any(_lacks(obj, name) for name in needed):
                    return True
                left.remove(kind)
                if not left:
                    return False
            seen.add(id(obj))
            ways.append(iter(gc.get_referents(obj)))
            break
        else:
            ways.pop()
    return False


def fill(obj: Any) -> None:
    """Give the object the defaults of the fields that it lacks."""
    for name, default in defaults(type(obj)).items():
        if _lacks(obj, name):
            object.__setattr__(obj, name, default(obj))


def fields_in(state: Any) -> Fields | None:
    """The fields in the state of an object as a pickle has it; None if it has none."""
    match state:
        case {"__dict__": dict(fields), "__pydantic_fields_set__": set()} | dict(fields):
            return fields
        case (dict() | None as fields, dict(slots)):
            return {**(fields or {}), **slots}
    return None


def state_with(cls: type, fields: Fields, state: Any) -> Any:
    """The state with these fields in the place of its own, as an object of the class takes it."""
    if hasattr(cls, "__pydantic_fields__") and hasattr(cls, "__pydantic_private__"):
        old = state if type(state) is dict and _GIVEN in state else _MODEL
        given = old.get(_GIVEN, fields.keys()) & fields.keys()
        return {**old, "__dict__": fields, _GIVEN: {*given}}
    if hasattr(cls, "__setstate__") and type(state) is dict:
        return fields
    slots = {name: value for name, value in fields.items() if name in slots_of(cls)}
    return ({name: value for name, value in fields.items() if name not in slots} or None, slots)


def call_upgrade(cls: type, fields: Fields) -> Fields:
    """The fields as the function of the program returns them."""
    new = _upgrades[_full_name(cls)](dict(fields))
    if not isinstance(new, dict):
        raise TypeError(f"the upgrade of {_full_name(cls)} returned a {type(new).__name__}, not the fields")
    return new


class UpgradeNeeded(CannotLoad):  # no error: it says which unpickler to use
    """A value has objects of a class with an upgrade."""


class Evolving:
    """The part of an unpickler in Python that brings objects to the present form of their classes."""

    stack: list[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._made: list[tuple[Any, bool]] = []
        """The objects whose fields may have changed; True for one that a call made, and not NEWOBJ."""
        self._built: set[int] = set()
        self._upgraded = False
        self._sets = False
        """Whether the call gives an object its fields, and returns the object."""
        self.evolved = False
        """Whether an object may differ from its stored form."""

    def before_call(self) -> None:
        """The function and the arguments on top of the stack are about to be called."""
        function, args = self.stack[-2:]
        function = getattr(function, "__wrapped__", function)  # below an allow-list it is checked
        self._sets = function is set_fields
        self._upgraded = False
        if function is make and has_upgrade(args[0]):
            self._pass_on(args[0], call_upgrade(*args))
        elif function is make:
            self.evolved = self.evolved or len(args[1]) < len(field_names(args[0]) or ())
        elif self._sets and has_upgrade(type(args[0])):
            self._pass_on(args[0], call_upgrade(type(args[0]), args[1]))
        elif isinstance(function, EnumType) and len(args) == 1 and has_upgrade(function):
            self._pass_on(call_upgrade(function, {"value": args[0]})["value"])

    def _pass_on(self, *args: Any) -> None:
        self.stack[-1] = args
        self._upgraded = self.evolved = True

    def after_call(self) -> None:
        """The result of the call is on top of the stack."""
        made = self.stack[-1]
        if self._upgraded:
            self._built.add(id(made))
        if self._sets:
            self._fill(made)
        elif defaults(type(made)) or has_upgrade(type(made)):
            self._made.append((made, True))

    def note_made(self) -> None:
        """The object on top of the stack was made just now, without a call."""
        made = self.stack[-1]
        if defaults(type(made)) or has_upgrade(type(made)):
            self._made.append((made, False))

    def before_build(self) -> bool:
        """The state on top of the stack is about to become that of the object below it. True: it did."""
        obj, state = self.stack[-2:]
        kind, fields = type(obj), fields_in(state)
        if has_upgrade(kind) and id(obj) not in self._built:
            if fields is None:
                raise TypeError(f"its state is a {type(state).__name__}, which has no fields for the upgrade")
            fields = call_upgrade(kind, fields)
            state = state_with(kind, fields, state)
            self._built.add(id(obj))
        elif type(state) is dict and slots_of(kind) and not hasattr(kind, "__setstate__"):
            state = state_with(kind, state, state)  # the class gained slots
        if fields is not None and field_names(kind) is None and is_by_name(kind):
            set_fields(obj, fields)  # its `__setstate__` takes values by their places
            self.evolved = True
            self.stack.pop()
            return True
        self.stack[-1] = state
        return False

    def after_build(self) -> None:
        """The object on top of the stack has its state. It may become a key next, and need its hash."""
        self._fill(self.stack[-1])

    def _fill(self, obj: Any) -> None:
        needed = defaults(type(obj))
        if needed and any(_lacks(obj, name) for name in needed):
            self.evolved = True
            fill(obj)

    def complete(self) -> None:
        """Finish the objects, at the end of the pickle. CannotLoad for one whose upgrade nothing called."""
        for made, called in self._made:
            kind = type(made)
            if has_upgrade(kind) and id(made) not in self._built:
                if called or not _has_fields(kind):
                    reason = "the program upgrades its fields, but the pickle calls a function to make it"
                    raise CannotLoad(_full_name(kind), reason)
                self.evolved = True  # the pickle has no state for an object without fields
                set_fields(made, call_upgrade(kind, {}))
            self._fill(made)
