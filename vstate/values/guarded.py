"""Guarded: unpickling with an allow-list.

It is not enough to limit the names that a pickle finds, because a pickle can also edit the named things:
BUILD sets attributes, even of classes and functions, for the whole process. The C unpickler cannot forbid
that. So it gets only pickles whose names are all of immutable things. Other pickles go to CPython's
unpickler in Python, which runs the same opcodes and lets us check each.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from enum import Enum
from functools import partial, wraps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, NoReturn

from vstate.errors import CannotLoad
from vstate.values import builders, evolution
from vstate.values.allow import CODE, Allow
from vstate.values.builders import Builders
from vstate.values.exceptions import restore_exception
from vstate.values.fields import set_fields
from vstate.values.loading import Buffers, Loader, Tracer, loaded
from vstate.values.opcodes import framed

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: no attribute of the class can be set
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Enum)


class _EditableError(CannotLoad):
    """The pickle names something that it could edit."""


def loads_allowed(
    data: bytes | bytearray, buffers: Buffers, allow: Allow, names: list[str] | None = None
) -> tuple[Any, bool]:
    """The value of the pickle, and whether objects in it got fields that they were not stored with.

    The pickle gets only names that `allow` covers, and cannot edit the named things. `names` gets the names.
    Raises CannotLoad, as `pickling.loads` does.
    """
    careful = partial(_Careful, bytes(data), buffers, allow)
    if not _extensions():
        fast = _Fast(bytes(data), buffers, allow)
        fast.names = names
        try:
            return loaded(fast.load, careful), False  # no class of the program is in it
        except _EditableError:
            pass
    evolving = careful()
    evolving.names = names
    value = loaded(evolving.load, careful)
    if isinstance(value, MethodType) and value.__func__ is Allow.attribute:
        raise CannotLoad("builtins.getattr", "a pickle may call it on a class, but not return it")
    return value, evolving.evolved


def _extensions() -> bool:
    """Whether the process uses copyreg's registry of short codes for classes.

    Unpicklers remember the class of a code, and then return it without a call of `find_class`.
    """
    return bool(getattr(copyreg, "_extension_cache", None) or getattr(copyreg, "_inverted_registry", None))


def _builders(allow: Allow) -> Builders:
    return Builders(lambda data: loads_allowed(data, (), allow)[0], allow.require)


def _find(allow: Allow, own: Builders, module: str, name: str) -> Any:
    if (module, name) == ("builtins", "getattr") and not allow.names("builtins.getattr"):
        return allow.attribute
    if module == builders.__name__:
        # `stored_class` asks for the name of the class itself.
        if name != "stored_class" and not allow.names(CODE):
            raise CannotLoad(CODE, "the pickle holds code, and `allow` does not name it")
        return own.find(module, name) or getattr(builders, name)
    old = f"{module}.{name}"
    new = evolution.present(old)
    if new is not None:
        return allow.find_present(new, old)
    return allow.find(module, name)


def _refuse_persistent() -> NoReturn:
    raise CannotLoad("its pickle", "a persistent id in it refers to something outside the store")


class _Fast(Loader):
    """The C unpickler; it stops with _EditableError at the name of anything that can be edited."""

    def __init__(self, data: bytes, buffers: Buffers, allow: Allow) -> None:
        super().__init__(io.BytesIO(framed(data)), buffers=buffers, fix_imports=False)
        self._allow = allow
        self.builders = self._builders = _builders(allow)

    def find_class(self, module: str, name: str) -> Any:
        self.record(module, name)
        found = _find(self._allow, self._builders, module, name)
        fixed = isinstance(found, type) and found.__flags__ & _IMMUTABLE_TYPE
        if fixed or isinstance(found, BuiltinFunctionType):
            return found
        raise _EditableError(self.last_global, "the pickle could change it")

    def persistent_load(self, pid: Any) -> Any:
        _refuse_persistent()


class _Careful(Tracer):
    """The unpickler in Python; it never edits a named thing."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(Tracer.dispatch)

    def __init__(self, data: bytes, buffers: Buffers, allow: Allow) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers, fix_imports=False)
        self._allow = allow
        self.builders = self._builders = _builders(allow)
        self._found: dict[int, tuple[Any, str]] = {}
        """Each named object and its name, by the object's id; holding the object keeps its id from reuse."""

    def find_class(self, module: str, name: str) -> Any:
        self.record(module, name)
        found = _find(self._allow, self._builders, module, name)
        if found is restore_exception or found is set_fields:  # they edit, as BUILD does
            found = self._checked(found)
        self._found[id(found)] = found, self.last_global
        return found

    def _checked(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @wraps(function)
        def checked(obj: Any, state: Any) -> Any:
            self.refuse_edit(obj, True)
            return function(obj, state)

        return checked

    def persistent_load(self, pid: Any) -> Any:
        _refuse_persistent()

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
