"""StateModule: an object whose attributes are saved as plain data; SessionBase, which saves such objects."""

from __future__ import annotations

import copy
import inspect
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeGuard

from vstate.arguments import called
from vstate.errors import InvalidInput, NotFound
from vstate.patterns.fields import path_to
from vstate.values.pickle_errors import own_error

ToJson = Callable[[Any], Any]
FromJson = Callable[[Any], Any]

_log = logging.getLogger("vstate")


class Module(Protocol):
    """An object that sessions save and load: a StateModule, or a module of another framework."""

    def state_dict(self) -> Any:
        """The state, as plain data."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Load a state that `state_dict` made."""


class SessionBase(ABC):
    """Subclass it for another storage. Modules are passed by name: `agent=agent, memory=memory`.

    A module is a StateModule, or any object with `state_dict` and `load_state_dict`, such as an agent of
    AgentScope.
    """

    @abstractmethod
    async def save_session_state(self, session_id: str, user_id: str = "", **modules: Module) -> None:
        """Save the state of these modules. Other modules of the session stay as they were saved."""

    @abstractmethod
    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: Module
    ) -> None:
        """Load the modules, all or none.

        A module that was never saved stays as it is, with a warning in the log. So do all modules of a
        session that was never saved; if `allow_not_exist` is False, that raises ValueError.
        """


class Step(NamedTuple):
    """A change of an attribute, and its undoing, also if half done. The state is checked before."""

    take: Callable[[], object]
    undo: Callable[[], object]


class _NoState(TypeError):
    """The data to load is not the state of a module."""


class StateModule:
    """An object with a state: its registered attributes, and the states of attributes that are StateModules.

    A StateModule registers itself when it becomes an attribute, to any depth. It is dropped when the
    attribute is deleted or set to something else. Set to None, the attribute stays registered, and is None in
    the state. Modules in lists and dicts do not count. An object of another framework with `state_dict` and
    `load_state_dict` is a module too, once `register_state` has named its attribute.
    """

    _module_dict: dict[str, Module]
    _attribute_dict: dict[str, tuple[ToJson | None, FromJson | None]]

    def __init__(self) -> None:
        object.__setattr__(self, "_module_dict", {})
        object.__setattr__(self, "_attribute_dict", {})

    def __setattr__(self, name: str, value: Any) -> None:
        modules = self.__dict__.get("_module_dict")
        if modules is None and isinstance(value, StateModule):
            raise AttributeError(f"call super().__init__() before setting {name!r} to a StateModule")
        super().__setattr__(name, value)
        if modules is None:
            return
        if isinstance(value, StateModule) or (name in modules and _is_module(value)):
            modules[name] = value
        elif value is not None:
            modules.pop(name, None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self.__dict__.get("_module_dict", {}).pop(name, None)
        self.__dict__.get("_attribute_dict", {}).pop(name, None)

    def register_state(
        self, attr_name: str, custom_to_json: ToJson | None = None, custom_from_json: FromJson | None = None
    ) -> None:
        """Make an attribute part of the state. A second call replaces the converters.

        `custom_to_json` converts the value to plain data, and `custom_from_json` converts it back. Raises
        AttributeError for a missing attribute, TypeError for a value that JSON cannot hold without a
        `custom_to_json`, and ValueError for a StateModule, which registers itself. Without converters, an
        object with `state_dict` and `load_state_dict` becomes a module of this one.
        """
        self._require_begun()
        value = getattr(self, attr_name)
        if isinstance(value, StateModule):
            raise InvalidInput(
                f"{attr_name!r} is a StateModule, which registers itself: leave register_state out"
            )
        if custom_to_json is None and custom_from_json is None and _is_module(value):
            self._module_dict[attr_name] = value
            return
        if custom_to_json is None:
            _copied_plain(attr_name, value)
        self._attribute_dict[attr_name] = custom_to_json, custom_from_json

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state, modules first.

        A value that JSON cannot hold is in the state as it is, so a subclass may convert it. The save of a
        session refuses it. A value that Python cannot copy is not copied.
        """
        return _State(self, (), ()).saved(_copied)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load a state that `state_dict` made: all of it or, on any error, nothing.

        With `strict`, the state must have all registered attributes, to any depth; otherwise missing ones
        stay as they are. Other entries are ignored. Raises NotFound, which is a KeyError, TypeError, and the
        errors of `custom_from_json`, each with the path of the attribute, such as `memory.content`.
        """
        apply(list(_State(self, (), ()).steps(state_dict, strict=strict)))

    def _require_begun(self) -> None:
        if "_module_dict" not in self.__dict__:
            raise AttributeError(f"call super().__init__() in {type(self).__name__}.__init__ first")


def _is_module(value: Any) -> TypeGuard[Module]:
    """Whether the class of the value has both methods. A mock has every attribute, but its class has not."""
    kind = type(value)
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


def load_found(
    session: str,
    modules: Mapping[str, Module],
    states: Mapping[str, Any] | None,
    wrong: Callable[[str, str], Exception],
    *,
    absent: str,
    allow_not_exist: bool,
    saved: Collection[str] | None = None,
) -> None:
    """Load modules as `SessionBase` promises. `states` are those that were found; None without a session.

    `absent` says that there is no session. `wrong` makes the error for data that is no state, from the name
    of the module and a reason: the caller knows where the data is stored. `saved` are the names of all
    modules of the session, if that has others than `states`.
    """
    if states is None:
        if not allow_not_exist:
            raise InvalidInput(f"{absent}; allow_not_exist=True ignores that")
        _log.warning("%s; the modules stay as they are", absent)
        return
    missing = [name for name in modules if name not in states]
    if missing:
        _log.warning(
            "the session %s has no module %s, which stays as it is; its modules are: %s",
            session,
            ", ".join(map(repr, missing)),
            ", ".join(sorted(states if saved is None else saved)) or "none",
        )
    steps = []
    for name in [name for name in modules if name in states]:
        try:
            steps += list(_State(modules[name], (name,), ()).steps(states[name], strict=True))
        except _NoState as error:
            raise wrong(name, str(error)) from None
    apply(steps)


def save_all(modules: Mapping[str, Module]) -> dict[str, Any]:
    """The states of several modules by name. Raises TypeError, with the path, if JSON cannot hold one."""
    return {name: _State(module, (name,), ()).saved(_copied_plain) for name, module in modules.items()}


def apply(steps: list[Step]) -> None:
    """Take all steps. If one fails or is interrupted, undo it and the steps before it."""
    begun: list[Step] = []
    try:
        for step in steps:
            begun.append(step)  # noted first: an interruption may come right after the step
            step.take()
    except BaseException:
        for step in reversed(begun):
            with suppress(Exception):
                step.undo()
        raise


class _State:
    """The state of one module at `path`, inside the modules `around`."""

    def __init__(self, module: Module, path: tuple[str, ...], around: tuple[Module, ...]) -> None:
        self._module = module
        self._path = path
        self._around = (*around, module)
        if not _is_module(module):
            raise TypeError(
                f"{self._name()} is a {type(module).__name__}, not a StateModule: a module has the methods "
                "state_dict and load_state_dict"
            )
        if isinstance(module, StateModule):
            module._require_begun()
        if any(module is other for other in around):
            raise InvalidInput(f"{self._name()} contains itself: remove the cycle")

    def _name(self, *more: str) -> str:
        return ".".join((*self._path, *more)) or type(self._module).__name__

    def _inner(self, name: str, module: Module) -> _State:
        return _State(module, (*self._path, name), self._around)

    def saved(self, copied: Callable[[str, Any], Any]) -> dict[str, Any]:
        """The state, each value as `copied(path, value)`."""
        module = self._module
        if not isinstance(module, StateModule) or (
            self._path and type(module).state_dict is not StateModule.state_dict
        ):
            with _noting(f"while {self._name()} was saved"):
                state = called("state_dict", module.state_dict)
                return copied(self._name(), state)  # type: ignore[no-any-return]
        found: dict[str, Any] = {}
        for name in _attributes(module):
            value = getattr(module, name)
            if name in module._module_dict:
                found[name] = None if value is None else self._inner(name, value).saved(copied)
                continue
            to_json, _ = module._attribute_dict[name]
            if to_json is not None:
                with _noting(f"while {self._name(name)} was converted"):
                    value = called("custom_to_json", to_json, value)
            found[name] = copied(self._name(name), value)
        return found

    def steps(self, state: Any, *, strict: bool) -> Iterator[Step]:
        """The steps that load a state. All errors of the state are raised here, before any step is taken."""
        module = self._module
        if not isinstance(module, StateModule) or (
            self._path and type(module).load_state_dict is not StateModule.load_state_dict
        ):
            yield self._own_step(copy.deepcopy(state), strict)
            return
        if not isinstance(state, Mapping):
            raise _NoState(f"the state of {self._name()} is a dict, not {type(state).__name__}")
        for name in _attributes(module):
            path = self._name(name)
            if name not in state:
                if strict:
                    raise NotFound(
                        f"the state has no {path!r}; strict=False leaves missing attributes as they are",
                        name=path,
                    )
                continue
            value: Any = None
            if name not in module._module_dict:
                value, (_, from_json) = copy.deepcopy(state[name]), module._attribute_dict[name]
                if from_json is not None:
                    with _noting(f"while {path} was converted"):
                        value = called("custom_from_json", from_json, value)
            elif state[name] is not None:
                value = module._module_dict[name]
                yield from self._inner(name, value).steps(state[name], strict=strict)
            yield _setting(module, name, value)

    def _own_step(self, state: Any, strict: bool) -> Step:
        """The step that calls the module's own `load_state_dict`, which may fail half way."""
        module = self._module
        before = _copied(self._name(), module.state_dict())

        def take() -> None:
            with _noting(f"while {self._name()} was loaded"):
                _load_own(module, state, strict)

        return Step(take, lambda: _load_own(module, before, False))


def _attributes(module: StateModule) -> list[str]:
    """The names of the modules in a module, then of the other registered attributes."""
    return [*module._module_dict, *(n for n in module._attribute_dict if n not in module._module_dict)]


def _setting(module: StateModule, name: str, value: Any) -> Step:
    before = getattr(module, name)
    return Step(lambda: setattr(module, name, value), lambda: setattr(module, name, before))


@contextmanager
def _noting(text: str) -> Iterator[None]:
    """Add a note to an error: the place where it happened."""
    try:
        yield
    except Exception as error:  # raised again
        error.add_note(text)
        raise


def _load_own(module: Module, state: Any, strict: bool) -> None:
    """Call the module's own `load_state_dict`, with `strict` if it takes that."""
    load: Callable[..., Any] = module.load_state_dict
    try:
        options = {"strict": strict} if "strict" in inspect.signature(load).parameters else {}
    except ValueError:  # a method in C without a signature
        options = {}
    called("load_state_dict", load, state, **options)


def _copied(path: str, value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # of the class of the value; a subclass of the module may convert it itself
        own_error(partial(copy.deepcopy, value), error)
        return value


def _copied_plain(path: str, value: Any) -> Any:
    """A copy of the value. Raises TypeError, with the path of the innermost part, if it is no JSON."""
    try:
        json.dumps(value)
        return copy.deepcopy(value)
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)
    raise TypeError(
        f"{path}{path_to(value, json.dumps)} cannot be saved as JSON ({reason}): register the attribute with "
        "custom_to_json and custom_from_json"
    )
