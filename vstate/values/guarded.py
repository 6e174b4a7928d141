"""Guarded: unpickling with an allow-list.

That a pickle finds no other names is not enough: it can also edit what it found. BUILD sets attributes, of
classes and functions too, for the whole process. The C unpickler has no place to look at that, so it gets
only pickles all of whose names are of things that nobody can edit. For the others there is CPython's
unpickler in Python, which does the same opcode by opcode and can be told what not to do.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, NoReturn

from vstate.errors import CannotLoad
from vstate.values.allow import Allow
from vstate.values.opcodes import framed
from vstate.values.pickling import Loader, loaded, own_builder

Buffers = Sequence[bytearray | memoryview]

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: no attribute of the class can be set
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Enum)


class _EditableError(Exception):
    """The pickle names something that it could edit."""


def loads_allowed(data: bytes | bytearray, buffers: Buffers, allow: Allow) -> Any:
    """The value of the pickle, which gets no name that `allow` does not cover, and edits none of them.

    Raises CannotLoad, as `pickling.loads` does.
    """
    if not _extensions():
        fast = _Fast(bytes(data), buffers, allow)
        try:
            return loaded(fast.load, lambda: fast.last_global)
        except CannotLoad as error:
            if not isinstance(error.__cause__, _EditableError):
                raise
    careful = _Careful(bytes(data), buffers, allow)
    value = loaded(careful.load, lambda: careful.last_global)
    if isinstance(value, MethodType) and value.__func__ is Allow.attribute:
        raise CannotLoad("builtins.getattr", "a pickle may use it on a class, and not have it")
    return value


def _extensions() -> bool:
    """Whether the process uses copyreg's registry of short codes for classes.

    Unpicklers keep what a code stood for, and then give it out without asking `find_class`.
    """
    return bool(getattr(copyreg, "_extension_cache", None) or getattr(copyreg, "_inverted_registry", None))


def _find(allow: Allow, module: str, name: str) -> Any:
    if (module, name) == ("builtins", "getattr") and not allow.names("builtins.getattr"):
        return allow.attribute
    found = allow.find(module, name)
    return own_builder(module, name) or found


def _refuse_persistent() -> NoReturn:
    raise CannotLoad("its pickle", "it refers to something outside of the store, by a persistent id")


class _Fast(Loader):
    """The C unpickler; it stops with _EditableError at a name of what could be edited."""

    def __init__(self, data: bytes, buffers: Buffers, allow: Allow) -> None:
        super().__init__(io.BytesIO(framed(data)), buffers=buffers, fix_imports=False)
        self._allow = allow

    def find_class(self, module: str, name: str) -> Any:
        self.last_global = f"{module}.{name}"
        found = _find(self._allow, module, name)
        fixed = isinstance(found, type) and found.__flags__ & _IMMUTABLE_TYPE
        if fixed or isinstance(found, BuiltinFunctionType):
            return found
        raise _EditableError

    def persistent_load(self, pid: Any) -> Any:
        _refuse_persistent()


class _Careful(pickle._Unpickler):
    """The unpickler in Python, which uses what it found and never edits it."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    last_global = ""

    def __init__(self, data: bytes, buffers: Buffers, allow: Allow) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers, fix_imports=False)
        self._allow = allow
        self._found: dict[int, tuple[Any, str]] = {}
        """What was found, by its address, and its name. Held here so that nothing else gets that address."""

    def find_class(self, module: str, name: str) -> Any:
        self.last_global = f"{module}.{name}"
        found = _find(self._allow, module, name)
        self._found[id(found)] = found, self.last_global
        return found

    def persistent_load(self, pid: Any) -> Any:
        _refuse_persistent()

    def get_extension(self, code: int) -> None:
        raise CannotLoad(f"the class with the extension code {code}", "only names can be allowed, not codes")

    def refuse_edit(self, target: Any, build: bool) -> None:
        """CannotLoad if `target` was there before the pickle: a class, a function, a member of an Enum."""
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
    # These take everything from the mark on, and edit what lies below it.
    pickle.APPENDS: lambda loader: loader.metastack[-1][-1],
    pickle.SETITEMS: lambda loader: loader.metastack[-1][-1],
    pickle.ADDITEMS: lambda loader: loader.metastack[-1][-1],
}.items():
    _code = _opcode[0]
    _Careful.dispatch[_code] = _editing(_Careful.dispatch[_code], _target, _opcode == pickle.BUILD)
