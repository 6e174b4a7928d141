"""Evolution: from the class that a stored object had to the class that the program has now.

A class may have another name now, and it may have other fields. History stays as it is: values become those
of the present class when they are loaded, and take the present form when they are stored again.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pkgutil import resolve_name
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, Final

from vstate.arguments import require_plain
from vstate.errors import CannotLoad, InvalidInput
from vstate.forks import new_lock

Fields = dict[str, Any]
Upgrade = Callable[[Fields], Fields]

_MOST_CLASSES: Final = 10_000
_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray, complex})
_PRIVATE: Final = "__pydantic_private__"  # a slot of each model, with a dict or None
_NO_FIELDS: Final[Fields] = {}
_OUTSIDE: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)

# Where some versions of Python have a class or function of the standard library; all have the new name.
_MOVED: Final[dict[str, str | type]] = {
    "_asyncio.current_task": "asyncio.current_task",
    "asyncio.tasks.current_task": "asyncio.current_task",
    "genericpath.isjunction": "os.path.isjunction",
    "genericpath.islink": "os.path.islink",
    "genericpath.lexists": "os.path.lexists",
    "importlib.resources._functional": "importlib.resources",
    "importlib.resources._legacy": "importlib.resources",
    "pathlib._local": "pathlib",
    "posix._path_normpath": "os.path.normpath",
    "posix._path_splitroot_ex": "os.path.splitroot",
    "re.PatternError": "re.error",
    "zipfile._path.CompleteDirs": "zipfile.CompleteDirs",
    "zipfile._path.Path": "zipfile.Path",
}
# Fields that classes of the standard library gained in a later version of Python.
_GAINED: Final[dict[str, Fields]] = (
    {"asyncio.queues.Queue": {"_is_shutdown": False}} if sys.version_info >= (3, 13) else {}
)
# The modules where earlier versions had the records of the managers.
_names: dict[str, str | type] = _MOVED | {
    f"vstate.managers.{old}": f"vstate.managers.{new}"
    for old, new in {
        "agent_records": "agents",
        "knowledge_records": "knowledge",
        "recoverable": "recovery",
        "speech_records": "speech",
        "speech_sessions": "speech",
        "state_config": "states",
        "team": "teams",
        "team_records": "teams",
        "team_records.Task": "task_queue.Task",
        "team_records.TaskQueueState": "task_queue.TaskQueueState",
        "team_records.TaskStatus": "task_queue.TaskStatus",
        "tool_executions": "tools",
        "tool_records": "tools",
        "tool_tally": "tools",
        "workflow": "workflows",
        "workflow_records": "workflows",
    }.items()
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
    fields of up-to-date objects too. It is called before the class sees the fields. A value with such objects
    takes some ten times as long to load. InvalidInput for text that is no name.
    """
    if isinstance(cls, str):
        _check_name(cls)
    elif not isinstance(cls, type):
        raise TypeError(f"a class is a class or its full name, not {type(cls).__name__}")
    _register(cls, function)


def _register(cls: str | type, function: Upgrade) -> None:
    require_plain("the function of upgrade", function)
    with _registering:
        _upgrades[cls if isinstance(cls, str) else _full_name(cls)] = function


def _check_name(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"{name!r} is not the full name of a class; write it as in 'app.models.Plan'")


def _full_name(cls: type) -> str:
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

_defaults: dict[type, Defaults] = {}  # not weak, which would take three times as long to look into


def defaults(cls: type) -> Defaults:
    """The fields of a dataclass, or of a class of attrs or pydantic, that have defaults; else none."""
    found = _defaults.get(cls)
    if found is None:
        if len(_defaults) > _MOST_CLASSES:  # a program that makes classes all the time
            _defaults.clear()
        found = _defaults[cls] = dict(_find_defaults(cls))
    return found


def _find_defaults(cls: type) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for base in cls.__mro__:
        for name, value in _GAINED.get(_full_name(base), _NO_FIELDS).items():
            yield name, partial(_constant, value)
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
    left = list(dict.fromkeys(classes))
    stack = [value]
    seen: set[int] = set()
    while True:
        obj = stack.pop()
        kind = type(obj)
        if kind in left:
            fields, needed = getattr(obj, "__dict__", _NO_FIELDS), defaults(kind)
            if not needed.keys() <= fields.keys() and any(_lacks(obj, name) for name in needed):
                return True
            left.remove(kind)
            if not left:
                return False
        if id(obj) not in seen:
            seen.add(id(obj))
            inside = gc.get_referents(obj)
            stack += [part for part in inside if type(part) not in _ATOMS and not isinstance(part, _OUTSIDE)]
        if not stack:
            return False


def fill(obj: Any) -> None:
    """Give the object the defaults of the fields that it lacks."""
    for name, make in defaults(type(obj)).items():
        if _lacks(obj, name):
            object.__setattr__(obj, name, make(obj))


def upgraded(cls: type, state: Any) -> Any:
    """The state of an object as a pickle has it, with its fields as the class has them now."""
    function = _upgrades[_full_name(cls)]
    match state:
        case {"__dict__": dict(fields), "__pydantic_fields_set__": set(given)}:
            new = _call(function, cls, fields)
            return {**state, "__dict__": new, "__pydantic_fields_set__": given & new.keys()}
        case dict(fields):
            return _call(function, cls, fields)
        case (dict() | None as fields, dict(slots)):
            new = _call(function, cls, {**(fields or {}), **slots})
            in_slots = {name for base in cls.__mro__ for name in getattr(base, "__slots__", ())}
            return (
                {name: value for name, value in new.items() if name not in in_slots} or None,
                {name: value for name, value in new.items() if name in in_slots},
            )
    return state


def _call(function: Upgrade, cls: type, fields: Fields) -> Fields:
    new = function(dict(fields))
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
        self._made: list[Any] = []
        self._built: set[int] = set()
        self.evolved = False
        """Whether an object may differ from its stored form."""

    def note_made(self) -> None:
        """The object on top of the stack was made just now."""
        made = self.stack[-1]
        kind = type(made)
        if defaults(kind) or has_upgrade(kind):
            self._made.append(made)

    def before_build(self) -> None:
        """The state on top of the stack is about to become that of the object below it."""
        kind = type(self.stack[-2])
        if has_upgrade(kind):
            self.stack[-1] = upgraded(kind, self.stack[-1])
            self._built.add(id(self.stack[-2]))

    def after_build(self) -> None:
        """The object on top of the stack has its state. It may become a key next, and need its hash."""
        self._fill(self.stack[-1])

    def _fill(self, obj: Any) -> None:
        needed = defaults(type(obj))
        if needed and any(_lacks(obj, name) for name in needed):
            self.evolved = True
            fill(obj)

    def complete(self) -> None:
        """Finish the objects, at the end of the pickle."""
        for made in self._made:
            kind = type(made)
            if has_upgrade(kind):
                self.evolved = True
                if id(made) not in self._built:  # the pickle has no state for an object without fields
                    for name, value in _call(_upgrades[_full_name(kind)], kind, {}).items():
                        object.__setattr__(made, name, value)
            self._fill(made)
