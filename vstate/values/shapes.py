"""Shapes: how well-known classes are pickled, recognised by name alone.

A shape gets the arguments of a call that loading would make. It returns plain data, an Instance or a
Global; or None for arguments that the class itself never writes, and then the call is shown as a call.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from vstate.values.arrays import Array, array_from_buffer, fill_array, scalar
from vstate.values.budget import Budget, InertError
from vstate.values.fields import dicts_of_fields
from vstate.values.instance import Global, Instance

Shape = Callable[[str, tuple[object, ...], Budget], object]

_LONGEST_NAME: Final = 1000
_RECORD_BYTES: Final = 300
_SET_BYTES: Final = 200
# Pickles make these by a call of the class. They are data, so they are shown without angle brackets.
_DATA: Final = frozenset(
    {
        "builtins.range",
        "builtins.slice",
        "collections.Counter",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "decimal.Decimal",
        "fractions.Fraction",
        "numpy.dtype",
        "types.CodeType",
        "uuid.UUID",
    }
)
_DATA_ENDINGS: Final = ("Error", "Exception", "Group", "Warning", "Path")


_SHAPES: Final[dict[str, Shape]] = {
    "numpy.core.multiarray.scalar": lambda _, args, budget: scalar(args, budget),
    "numpy.core.numeric._frombuffer": lambda _, args, budget: array_from_buffer(args, budget),
}
"""By the name of the function that the pickle calls."""


def _shape(*names: str) -> Callable[[Shape], Shape]:
    """Use the decorated shape for calls of these functions."""

    def register(shape: Shape) -> Shape:
        _SHAPES.update(dict.fromkeys(names, shape))
        return shape

    return register


def make_global(module: str, name: str, budget: Budget) -> Global:
    """The global `name` of `module`."""
    if len(module) + len(name) > _LONGEST_NAME:
        raise InertError("it has a name that is too long")
    budget.take_bytes(_RECORD_BYTES + 4 * (len(module) + len(name)))
    full = f"{module}.{name}" if module else name
    budget.names.setdefault(full, b"")
    return Global(full)


def new(function: object, args: object, kwargs: object, budget: Budget) -> Instance:
    """The object that `cls.__new__(cls, *args, **kwargs)` would make."""
    name = _name_of(function, budget)
    if not isinstance(args, tuple):
        raise InertError("the arguments of an object are not a tuple")
    budget.take_bytes(_RECORD_BYTES)
    if kwargs is None:
        return Instance(name, args=args)
    if not isinstance(kwargs, dict):
        raise InertError("the keyword arguments of an object are not a dict")
    return Instance(name, args=args, kwargs=_names(kwargs, budget))


def call(function: object, args: object, budget: Budget) -> object:
    """The value that stands for the result of `function(*args)`. Nothing is called."""
    name = _name_of(function, budget)
    if not isinstance(args, tuple):
        raise InertError("the arguments of a call are not a tuple")
    budget.take_bytes(_RECORD_BYTES)
    known = _tidy(name)
    built = _SHAPES[known](known, args, budget) if known in _SHAPES else None
    if built is not None:
        return built
    if name.startswith(("builtins.", "pathlib.")) and name.endswith(_DATA_ENDINGS):
        return Instance(name, args=args)
    return Instance(name, args=args, called=name not in _DATA)


def _name_of(function: object, budget: Budget) -> str:
    if isinstance(function, Global):
        return function.name
    if isinstance(function, Instance):
        budget.take_bytes(4 * len(function.type))
        return f"{function.type}(…)"[:_LONGEST_NAME]
    raise InertError(f"it calls a {type(function).__name__}")


def _tidy(name: str) -> str:
    """The name by which _SHAPES knows it: the modules differ between releases of numpy and cloudpickle."""
    if name.startswith("numpy._core."):
        return f"numpy.core.{name[12:]}"
    if name.startswith("cloudpickle."):
        return f"cloudpickle.{name.rpartition('.')[2]}"
    return name


def build(target: object, state: object, budget: Budget) -> None:
    """Give `target` the state that BUILD would give it."""
    if isinstance(target, Array) and fill_array(target, state, budget):
        return
    if isinstance(target, Instance):
        if target.type == "uuid.UUID" and _fill_uuid(target, state):
            return
        _give_state(target, state, budget)
    elif isinstance(target, Global):
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                target.fields.update(_names(part, budget))
    elif state:
        raise InertError(f"it gives attributes to a {type(target).__name__}")


def set_state(instance: Instance, budget: Budget) -> None:
    """Apply `setter(target, state)`, a call whose result the pickle drops, to its target."""
    match instance.args:
        case (Instance() as target, state) if instance.called and target.state is None:
            _give_state(target, state, budget)


def _give_state(instance: Instance, state: object, budget: Budget) -> None:
    parts: tuple[dict[object, object], ...] = ()
    if isinstance(instance, Array):
        # Its fields come from a checked description: a state may not replace them.
        instance.state = state
        return
    match state:
        case dict(attributes):
            parts = tuple(dicts_of_fields(attributes) or (attributes,))
        # The state of an object with __slots__: (its __dict__ or None, its slots).
        case (dict() | None as attributes, dict(slots)):
            parts = (attributes, slots) if isinstance(attributes, dict) else (slots,)
    named = [_names(part, budget) for part in parts]
    if not parts or sum(map(len, named)) < sum(map(len, parts)):
        instance.state = state
        return
    for part in named:
        instance.fields.update(part)


def _names(entries: dict[object, object], budget: Budget) -> dict[str, object]:
    budget.take_bytes(100 * len(entries))
    return {name: value for name, value in entries.items() if isinstance(name, str)}


def _fill_uuid(instance: Instance, state: object) -> bool:
    match state:
        case {"int": int(number)} if 0 <= number < 2**128:
            digits = f"{number:032x}"
            cuts = (0, 8, 12, 16, 20, 32)
            instance.args = ("-".join(digits[start:end] for start, end in pairwise(cuts)),)
            return True
    return False


# --- builtins and their neighbours


@_shape("builtins.bytes", "builtins.bytearray")
def _copied(called: str, args: tuple[object, ...], budget: Budget) -> object:
    kind = bytes if called == "builtins.bytes" else bytearray
    match args:
        case ():
            return kind()
        case (bytes() | bytearray() | memoryview() as data,):
            budget.take_bytes(memoryview(data).nbytes)
            return kind(data)
    return None


@_shape("builtins.set", "builtins.frozenset")
def _collected(called: str, args: tuple[object, ...], budget: Budget) -> object:
    made: set[object] = set()
    match args:
        case ():
            pass
        case (list() | tuple() as members,):
            budget.take_bytes(_SET_BYTES)
            budget.add(made, members)
        case _:
            return None
    return made if called == "builtins.set" else frozenset(made)


@_shape("builtins.getattr", "copyreg._reconstructor")
def _object(called: str, args: tuple[object, ...], budget: Budget) -> object:
    match called, args:
        case "builtins.getattr", (Global(name=name), str(attribute)):
            return make_global(name, attribute, budget)
        # `super().__reduce__()` gives it: the class, its builtin base class, and the value of the base class.
        case "copyreg._reconstructor", (Global(name=name), Global(), list(items)):
            return Instance(name, items=items)
        case "copyreg._reconstructor", (Global(name=name), Global(), dict(entries)):
            return Instance(name, entries=entries)
        case "copyreg._reconstructor", (Global(name=name), Global(), value):
            return Instance(name, args=() if value is None else (value,))
    return None


_PATHS: Final = ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath")


@_shape(*(f"{module}.{kind}" for module in ("pathlib", "pathlib._local") for kind in _PATHS))
def _path(called: str, args: tuple[object, ...], budget: Budget) -> object:
    kind = called.rpartition(".")[2]
    separator = "\\" if "Windows" in kind else "/"
    budget.take_bytes(8 * len(args))
    parts = [part for part in args if isinstance(part, str)]
    if len(parts) != len(args):
        return None
    budget.take_bytes(4 * sum(map(len, parts)))
    # The first part of an absolute path ends with the separator.
    root = parts.pop(0) if parts and parts[0].endswith(separator) else ""
    return Instance(f"pathlib.{kind}", args=(root + separator.join(parts),))


# --- exceptions


@_shape("vstate.values.exceptions.new_exception", "vstate.errors._restore")
def _exception(called: str, args: tuple[object, ...], budget: Budget) -> object:
    match called, args:
        case "vstate.values.exceptions.new_exception", (Global(name=name), *rest):
            budget.take_bytes(8 * len(rest))
            return Instance(name, args=tuple(rest))
        case "vstate.errors._restore", (Global(name=name), str(message), dict(fields)):
            return Instance(name, args=(message,), fields=_names(fields, budget))
    return None


@_shape("vstate.values.fields.make", "pandas.core.indexes.base._new_Index")
def _made(called: str, args: tuple[object, ...], budget: Budget) -> object:
    match args:
        case (Global(name=name), dict(fields)):
            return Instance(name, fields=_names(fields, budget))
    return None


# --- collections


@_shape(*(f"collections.{name}" for name in ("OrderedDict", "defaultdict", "Counter", "deque")))
def _collection(name: str, args: tuple[object, ...], budget: Budget) -> object:
    match name.rpartition(".")[2], args:
        case "OrderedDict" | "Counter", ():
            return Instance(name, entries={})
        case "defaultdict", () | (_,):
            return Instance(name, args=args, entries={})
        case "Counter", (dict(entries),):
            return Instance(name, entries=entries)
        case "deque", () | ((),):
            return Instance(name, items=[])
        case "deque", (list(items),):
            return Instance(name, items=items)
        case "deque", (() | list() as items, int(maxlen)):
            items = items if isinstance(items, list) else []
            return Instance(name, fields={"maxlen": maxlen}, items=items)
    return None


# --- numbers and times: real values, whose constructors check the arguments


_REAL: Final[dict[str, tuple[Callable[..., object], list[tuple[type, ...]]]]] = {
    "builtins.complex": (complex, [(float, float)]),
    "datetime.timedelta": (datetime.timedelta, [(int, int, int)]),
    "datetime.timezone": (datetime.timezone, [(datetime.timedelta,), (datetime.timedelta, str)]),
}
"""The values that are made themselves, from arguments of these types."""


@_shape(*_REAL)
def _real(called: str, args: tuple[object, ...], budget: Budget) -> object:
    kind, signatures = _REAL[called]
    if tuple(map(type, args)) not in signatures or any(len(a) > 100 for a in args if isinstance(a, str)):
        return None
    try:
        return kind(*args)
    except (ValueError, OverflowError):
        return None


@_shape("datetime.date", "datetime.datetime", "datetime.time")
def _moment(called: str, args: tuple[object, ...], budget: Budget) -> object:
    match args:
        case (bytes(raw), *zones) if len(zones) <= 1:
            zone = zones[0] if zones else None
            known = zone if isinstance(zone, datetime.timezone) else None
            try:
                made: Any = getattr(datetime, called[9:])(raw)  # as pickle calls it
                # This checks the numbers: the call took the bytes as they are.
                made = made.replace() if called == "datetime.date" else made.replace(tzinfo=known)
            except (ValueError, TypeError):
                return None
            return made if zone is known else Instance(called, args=(made, zone))
    return None


# --- others that are known by their arguments


@_shape(
    "zoneinfo.ZoneInfo._unpickle",
    "numpy.core.multiarray._reconstruct",
    "pandas._libs.arrays.__pyx_unpickle_NDArrayBacked",
    "cloudpickle._builtin_type",
    "cloudpickle.dynamic_subimport",
    "cloudpickle.subimport",
)
def _other(called: str, args: tuple[object, ...], budget: Budget) -> object:
    match called.rpartition(".")[2], args:
        case "_unpickle", (str(key), _):
            return Instance("zoneinfo.ZoneInfo", args=(key,))
        case "_reconstruct", (Global(name=name), (0,), b"b"):
            return Array(name)
        case "__pyx_unpickle_NDArrayBacked", (Global(name=name), int(), state):
            return Instance(name, state=state)
        case "_builtin_type", (str(name),):
            return make_global("types", name, budget)
        case "dynamic_subimport" | "subimport", (str(name), *_):
            return make_global("", name, budget)
    return None


# --- classes and functions that are stored by value


@_shape(
    *(
        f"vstate.values.builders.{name}"
        for name in ("stored_class", "stored_function", "set_function", "stored_code")
    )
)
def _stored(called: str, args: tuple[object, ...], budget: Budget) -> object:
    match called.rpartition(".")[2], args:
        case "stored_class", (bytes(magic), str(module), str(name), bytes() | bytearray() | memoryview()):
            return _by_value(magic, module, name, budget)
        case "stored_function", (bytes(magic), str(module), str(name), bytes(code), *_):
            function = _by_value(magic, module, name, budget)
            function.fields["__code__"] = code
            return function
        case "set_function", (Global() as function, (dict(attributes), dict(own), cells, dict(names), _)):
            function.fields.update(_names(attributes, budget))
            function.fields.update({"__dict__": own, "__closure__": cells, "__globals__": names})
            return function
        case "stored_code", (bytes(), *code):
            return Instance("types.CodeType", args=tuple(code))
    return None


def _by_value(magic: bytes, module: str, name: str, budget: Budget) -> Global:
    made = make_global(module, name, budget)
    budget.names[made.name] = magic
    return made
