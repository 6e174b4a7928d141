"""Allow: which classes and functions a pickle may name, when the writer of the store is not trusted.

A pickle is a program that imports names and calls them. With an `Allow` it gets only the names that the
patterns cover, and those that plain data needs. Two names are checked: the one in the pickle, before the
import, and the own name of the object that the import found. They may differ: `numpy.testing.os.system` is a
name under `numpy`.

It is not enough to limit the names that a pickle finds, because a pickle can also edit the named things:
BUILD sets attributes, even of classes and functions, for the whole process. The C unpickler cannot forbid
that. So it gets only pickles without names. Other pickles go to CPython's unpickler in Python, which runs the
same opcodes and lets us check each.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable
from enum import Enum, EnumMeta
from fnmatch import translate
from functools import partial, wraps
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Final, NoReturn

from vstate.errors import CannotLoad, InvalidInput
from vstate.values import builders, evolution
from vstate.values.builders import Builders
from vstate.values.exceptions import restore_exception
from vstate.values.fields import set_fields
from vstate.values.loading import Buffers, Tracer, loaded
from vstate.values.opcodes import load_only_plain

_PATHS: Final = ("PurePath", "PurePosixPath", "PureWindowsPath", "Path", "PosixPath", "WindowsPath")

ALWAYS: Final = frozenset(
    f"{module}.{name}"
    for module, names in {
        "builtins": "list dict set frozenset tuple bytearray bytes str int float bool complex range slice "
        "object",
        "collections": "OrderedDict defaultdict deque Counter",
        "copyreg": "_reconstructor __newobj__",
        "datetime": "date datetime time timedelta timezone tzinfo",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "uuid": "UUID",
        "array": "array _array_reconstructor",
        "pathlib": " ".join(_PATHS),
        "pathlib._local": " ".join(_PATHS),  # their module in Python 3.13
        "vstate.values.exceptions": "new_exception restore_exception",
        "vstate.values.fields": "make set_fields",
    }.items()
    for name in names.split()
)
"""The names that plain data needs. Each only makes a value of its own type; docs/security.md says how far a
hostile pickle gets with them."""

CODE: Final = "cloudpickle.cloudpickle._builtin_type"
"""Where this name is allowed, a pickle may hold any code."""

SINGLETONS: Final = {"builtins.Ellipsis": ..., "builtins.NotImplemented": NotImplemented}

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Enum)
_WILDCARDS: Final = frozenset("*?[")
_NOT_NAMED: Final = "`allow` does not name it; add it only if every writer of the store may call it"


class Allow:
    """The classes and functions that a pickle may name, by patterns.

    - `"app"` or `"app.models.Plan"`: the module with everything in it and below it, or that one class or
      function. Names that a module only imports from elsewhere are not in it.
    - `"app.*.Plan"`: `*`, `?` and `[...]` match in the full name, dots included, as in fnmatch. The first
      part, the package, has no wildcards.

    A pattern is trust in everything that it covers: a pickle may call it with any arguments.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        self._covered = re.compile("|".join(map(_expression, self.patterns)) or r"(?!)", re.DOTALL)

    def names(self, name: str) -> bool:
        """Whether a pattern covers `name`: a module, a dot, and a qualified name."""
        return self._covered.fullmatch(name) is not None

    def require(self, found: Any) -> None:
        """CannotLoad if no pattern covers a class of the program, nor the code that would define it."""
        name = _name_of(found)
        if not self._permits(name) and not self.names(CODE):
            self._refuse(name or repr(found))

    def find_present(self, new: str | type, old: str) -> Any:
        """The present class for the name `old`. The present name has to be allowed; CannotLoad."""
        if isinstance(new, str) and not self._permits(new):
            self._refuse(new)
        return self._checked(evolution.find(new, old), new if isinstance(new, str) else f"{_name_of(new)}")

    def find(self, module: str, name: str) -> Any:
        """The class or function that a pickle names. If it is not allowed: CannotLoad, and no import."""
        full = f"{module}.{name}"
        parts = name.split(".")
        if not all(map(str.isidentifier, [*module.split("."), *parts])):
            raise CannotLoad(ascii(full)[1:-1][:200], "this is not the name of a class or function")
        if full in SINGLETONS:
            return SINGLETONS[full]
        # Importing a module such as app.__main__ would run a program.
        hidden = module != "__main__" and any(part.startswith("__") for part in module.split("."))
        if hidden or not self._permits(full):
            self._refuse(full)
        try:
            found = getattr(import_module(module), parts[0])
            for part in parts[1:]:
                found = self._member(found, part, full)
        except CannotLoad:
            raise
        except Exception as error:  # the module's own code runs, and may raise anything
            raise CannotLoad(full, f"{type(error).__name__}: {error}") from error
        return self._checked(found, full)

    def attribute(self, owner: Any, name: Any) -> Any:
        """The pickle's `getattr`: it finds only members of classes, and only those that the patterns cover.

        Pickle writes it for members of enumerations and for class methods, such as those of ZoneInfo.
        """
        if not isinstance(owner, type) or type(name) is not str:
            self._refuse("builtins.getattr")
        full = f"{_name_of(owner)}.{name}"
        return self._checked(self._member(owner, name, full), full)

    def _permits(self, name: str | None) -> bool:
        return name is not None and (name in ALWAYS or self.names(name))

    def _member(self, owner: Any, part: str, full: str) -> Any:
        """The attribute of a class. The class that defines it must be allowed."""
        if not isinstance(owner, type):
            # Through a module, a function or an instance a pickle could reach everything else.
            kind = "a module" if isinstance(owner, ModuleType) else f"a {type(owner).__qualname__}"
            raise CannotLoad(full, f"the name leads through {kind}, not through classes alone")
        if isinstance(owner, EnumMeta) and part in owner.__members__:
            return owner.__members__[part]
        for base in owner.__mro__:  # getattr would also find the methods of the metaclass
            if part in vars(base):
                defined = f"{_name_of(base)}.{part}"
                if not self._permits(defined):
                    self._refuse(full, defined)
                return getattr(owner, part)
        raise CannotLoad(full, f"{_name_of(owner)} has no {part}")

    def _checked(self, found: Any, full: str) -> Any:
        """`found`, if its own name is allowed; CannotLoad otherwise."""
        own = _name_of(found)
        if isinstance(found, ModuleType):
            self._refuse(full, f"the module {found.__name__}")
        if own is None:
            # An instance. A pickle could edit a plain container that a module happens to hold.
            kind = _name_of(type(found))
            if kind is None or not self.names(kind):
                self._refuse(full, f"a {kind}")
        elif not self._permits(own):
            self._refuse(full, own)
        return found

    def _refuse(self, full: str, found: str | None = None) -> NoReturn:
        if found is None or found == full:
            raise CannotLoad(full, _NOT_NAMED)
        raise CannotLoad(full, f"it is {found}: {_NOT_NAMED}")

    def __eq__(self, other: object) -> bool:
        return self.patterns == other.patterns if isinstance(other, Allow) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.patterns)

    def __repr__(self) -> str:
        return f"Allow({list(self.patterns)!r})"


def _name_of(found: Any) -> str | None:
    """The own name of a class or a function; None for anything else."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if module is None and isinstance(found, BuiltinFunctionType):
        # A built-in method of a class, such as dict.fromkeys, or of an instance, such as [].append.
        owner = found.__self__ if isinstance(found.__self__, type) else type(found.__self__)
        module = owner.__module__
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else None


def _expression(pattern: object) -> str:
    if not isinstance(pattern, str) or not pattern or not pattern.isprintable() or " " in pattern:
        raise InvalidInput(f"{pattern!r} is not a pattern of names; use 'app', 'app.models.Plan' or 'app.*'")
    package, dot, rest = pattern.partition(".")
    if not package.isidentifier():
        raise InvalidInput(f"the pattern {pattern!r} names no package; begin with its name, as in 'app.*'")
    if not _WILDCARDS.isdisjoint(rest):
        return translate(pattern)
    if dot and not all(part.isidentifier() for part in rest.split(".")):
        raise InvalidInput(f"{pattern!r} is not the name of a module, a class or a function")
    return rf"{re.escape(pattern)}(?:\..*)?"


# Unpickling with an allow-list


def loads_allowed(
    data: bytes | bytearray, buffers: Buffers, allow: Allow, names: list[str] | None = None
) -> tuple[Any, bool]:
    """The value of the pickle, and whether objects in it got fields that they were not stored with.

    The pickle gets only names that `allow` covers, and cannot edit the named things. `names` gets the names.
    Raises CannotLoad, as `pickling.loads` does.
    """
    try:
        if not buffers:
            return load_only_plain(data), False
    except CannotLoad:
        pass  # it has a name, or is damaged
    careful = partial(_Careful, bytes(data), buffers, allow)
    loader = careful()
    loader.names = names
    value = loaded(loader.load, careful)
    if isinstance(value, MethodType) and value.__func__ is Allow.attribute:
        raise CannotLoad("builtins.getattr", "a pickle may call it on a class, but not return it")
    return value, loader.evolved


class _Careful(Tracer):
    """The unpickler in Python; it never edits a named thing."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(Tracer.dispatch)

    def __init__(self, data: bytes, buffers: Buffers, allow: Allow) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers, fix_imports=False)
        self._allow = allow
        self._builders = Builders(lambda data: loads_allowed(data, (), allow)[0], allow.require)
        self._found: dict[int, tuple[Any, str]] = {}
        """Each named object and its name, by the object's id; holding the object keeps its id from reuse."""

    def find_class(self, module: str, name: str) -> Any:
        self.record(module, name)
        found = self._find(module, name)
        if found is restore_exception or found is set_fields:  # they edit, as BUILD does
            found = self._checked(found)
        self._found[id(found)] = found, self.last_global
        return found

    def _find(self, module: str, name: str) -> Any:
        allow = self._allow
        if (module, name) == ("builtins", "getattr") and not allow.names("builtins.getattr"):
            return allow.attribute
        if module == builders.__name__:
            # `stored_class` asks for the name of the class itself.
            if name != "stored_class" and not allow.names(CODE):
                raise CannotLoad(CODE, "the pickle holds code, and `allow` does not name it")
            return self._builders.find(name)
        old = f"{module}.{name}"
        new = evolution.present(old)
        return allow.find(module, name) if new is None else allow.find_present(new, old)

    def _checked(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @wraps(function)
        def checked(obj: Any, state: Any) -> Any:
            self.refuse_edit(obj, True)
            return function(obj, state)

        return checked

    def persistent_load(self, pid: Any) -> Any:
        raise CannotLoad("its pickle", "a persistent id in it refers to something outside the store")

    def get_extension(self, code: int) -> None:
        raise CannotLoad(f"the class with the extension code {code}", "only names can be allowed, not codes")

    def refuse_edit(self, target: Any, build: bool) -> None:
        """CannotLoad if `target` existed before the pickle: a class, a function, a member of an Enum."""
        name = self._found[id(target)][1] if id(target) in self._found else ""
        if not name and build and isinstance(target, _SHARED):
            name = self.last_global
        if name:
            raise CannotLoad(name, "the pickle would change it, for the whole process")


def _editing(
    load: Callable[[Any], None], target: Callable[[Any], Any], build: bool
) -> Callable[[_Careful], None]:
    def checked(loader: _Careful) -> None:
        loader.refuse_edit(target(loader), build)
        load(loader)

    return checked


for _opcode, _target in {
    pickle.BUILD: lambda loader: loader.stack[-2],
    pickle.APPEND: lambda loader: loader.stack[-2],
    pickle.SETITEM: lambda loader: loader.stack[-3],
    # These take everything above the mark, and edit the object below the mark.
    pickle.APPENDS: lambda loader: loader.metastack[-1][-1],
    pickle.SETITEMS: lambda loader: loader.metastack[-1][-1],
    pickle.ADDITEMS: lambda loader: loader.metastack[-1][-1],
}.items():
    _code = _opcode[0]
    _Careful.dispatch[_code] = _editing(_Careful.dispatch[_code], _target, _opcode == pickle.BUILD)
