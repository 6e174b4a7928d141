"""Deep: three versions of a value, merged by path: by the entries of dicts and by the fields of objects.

An object is taken apart and put together as pickle does it. So its fields are the stored ones, which `diff`
shows, and no `__init__` of a dataclass, a model or a plain class runs.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple

from vstate.values.absent import ABSENT, Unmergeable
from vstate.values.fields import FIELDS_SET, HOLDERS, field_names, is_by_name, reduce_by_name, set_fields
from vstate.values.fields import make as make_by_name
from vstate.values.instance import printable
from vstate.values.pickle_errors import own_error
from vstate.values.preview import preview
from vstate.values.same_value import results_of
from vstate.values.tokens import CLASH, Tokens

DICTS: Final = (dict, OrderedDict, defaultdict, Counter)

_SHOWN: Final = 60  # characters of a key in a path
_BEGUN: Final = object()
_NOTHING: Final = (None, ABSENT)

_Fields = Mapping[Any, Any]
_Path = tuple["_Path | None", object, bool]
"""The steps to a value, the last one first; True for a field. Most paths are never written out."""


def is_one_of(value: Any, kinds: Sequence[type]) -> bool:
    """Whether the value is of exactly one of these types."""
    # Not `in`, which would ask the `__eq__` of a metaclass.
    return any(type(value) is kind for kind in kinds)


def merge_by_path(base: Any, ours: Any, theirs: Any, *, inner: bool) -> Any:
    """The merged value; base may be ABSENT. Without `inner`, only the entries of the outermost dict.

    Raises Unmergeable with the path of a value that both sides changed and that has no parts. Changes none of
    the three; the result may share parts with them.
    """
    try:
        return _Merger(inner=inner).merge(base, ours, theirs, None)
    except RecursionError:
        raise Unmergeable("it is nested too deep to be merged") from None


class _Merger:
    def __init__(self, *, inner: bool) -> None:
        self._inner = inner
        self._tokens = Tokens()
        # By ids: a value that is in several places, or in itself, is merged once.
        self._made: dict[tuple[int, int, int], Any] = {}
        self._kept: list[object] = []  # the parts of objects: their ids must not be given again

    def merge(self, base: Any, ours: Any, theirs: Any, path: _Path | None) -> Any:
        """The merge of three values, of which both sides differ from the base."""
        triple, kind = (id(base), id(ours), id(theirs)), type(ours)
        if triple in self._made:
            if self._made[triple] is _BEGUN:
                raise Unmergeable("an immutable object that holds itself cannot be merged", _written(path))
            return self._made[triple]
        clash = partial(_clash, base, ours, theirs, path)
        present = [ours, theirs] if base is ABSENT else [ours, theirs, base]
        if any(type(side) is not kind for side in present):
            raise clash()
        has_attributes = any(getattr(side, "__dict__", None) for side in present)
        if is_one_of(ours, DICTS) and not has_attributes:
            self._made[triple] = made = self._empty(base, ours, theirs, path)
            fields = path is not None and path[2] and path[1] in HOLDERS
            self._fill(made, (base, ours, theirs), path, fields=fields)
            return made
        if not self._inner:
            raise Unmergeable("a dict with attributes cannot be merged by key", _written(path))
        names = None if has_attributes else field_names(kind)
        if names:
            self._made[triple] = _BEGUN
            sides = [
                {name: getattr(side, name) for name in names} if side is not ABSENT else {}
                for side in (base, ours, theirs)
            ]
            by_name: dict[str, Any] = {}
            self._fill(by_name, sides, path, fields=True)
            self._made[triple] = made = make_by_name(kind, by_name)
            return made
        return self._objects(triple, [*map(_take_apart, (base, ours, theirs))], path, clash)

    def _objects(
        self,
        triple: tuple[int, int, int],
        sides: list[_Parts | None],
        path: _Path | None,
        clash: Callable[[], Unmergeable],
    ) -> Any:
        parts = [side for side in sides if side is not None]
        if len(parts) < len(sides):
            raise clash()
        self._kept.append(parts)
        versions = zip(*(side[:4] for side in parts), strict=True)
        whole = [self._tokens.only_change(*trio) for trio in versions]
        has_fields = any(side.attributes or side.slots or side.entries for side in parts)
        if any(part is CLASH for part in whole) or not has_fields:
            raise clash()
        make, args, items, state = whole
        if state is not None and any(side.attributes or side.slots for side in parts):
            raise clash()
        self._made[triple] = made = make(*args)
        attributes, slots, entries = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
        self._fill(attributes, [side.attributes for side in parts], path, fields=True)
        self._fill(slots, [side.slots for side in parts], path, fields=True)
        self._fill(entries, [side.entries for side in parts], path, fields=False)
        if state is None and (attributes or slots):
            state = (attributes or None, slots) if slots else attributes
        _put_together(made, state, items, entries)
        return made

    def _fill(
        self, target: dict[Any, Any], sides: Sequence[Any], path: _Path | None, *, fields: bool
    ) -> None:
        """Put the merged entries into the target; the keys are names of fields, or keys of a dict."""
        count = 0
        for key, before, mine, other in self._entries(sides, path):
            value = self._tokens.only_change(before, mine, other)
            if value is CLASH and fields and key == FIELDS_SET and before is not ABSENT:
                value = mine | other  # a field is given if either side gave it
            elif value is CLASH:
                step = (path, key, fields)
                if not self._inner:
                    raise _clash(before, mine, other, step)
                value = self.merge(before, mine, other, step)
            if value is not ABSENT:
                target[key] = value
                count += 1
        if len(target) < count:
            raise Unmergeable(
                "it has keys that are equal but not the same, such as 1 and True", _written(path)
            )

    def _empty(self, base: Any, ours: Any, theirs: Any, path: _Path | None) -> Any:
        if type(ours) is not defaultdict:
            return type(ours)()
        old = base.default_factory if base is not ABSENT else ABSENT
        factory = self._tokens.only_change(old, ours.default_factory, theirs.default_factory)
        if factory is CLASH:
            raise Unmergeable("both sides changed the default_factory", _written(path))
        return defaultdict(factory)

    def _entries(self, trio: Sequence[Any], path: _Path | None) -> Iterator[tuple[Any, Any, Any, Any]]:
        """The keys of base, ours and theirs, in the order of the result, each with its three values or
        ABSENT.
        """
        sides = []
        for entries in ({} if value is ABSENT else value for value in trio):
            # By token: an object that is a key need not equal its copy, and 1 is not True.
            sides.append({self._tokens.of(key): (key, value) for key, value in entries.items()})
            if len(sides[-1]) < len(entries):
                raise Unmergeable("several of its keys are the same", _written(path))
        old, mine, other = sides
        first, second = (other, mine) if list(old) == list(mine) else (mine, other)
        for token in (*first, *(token for token in second if token not in first)):
            key, value = mine.get(token) or (other[token][0], ABSENT)
            yield key, old.get(token, _NOTHING)[1], value, other.get(token, _NOTHING)[1]


class _Parts(NamedTuple):
    """An object as pickle takes it apart. The first four are merged as wholes, the mappings by key.

    `state` is a state that has no fields.
    """

    make: Any
    args: Any
    items: Any
    state: Any
    attributes: _Fields = MappingProxyType({})
    slots: _Fields = MappingProxyType({})
    entries: _Fields = MappingProxyType({})


def _take_apart(value: Any) -> _Parts | None:
    """The parts of an object; None if pickle stores it under a name, or only cloudpickle can store it."""
    if value is ABSENT:
        return _Parts(ABSENT, ABSENT, ABSENT, ABSENT)
    kind = type(value)
    reduce = partial(value.__reduce_ex__, pickle.HIGHEST_PROTOCOL)
    if is_by_name(kind) and field_names(kind) is None:
        reduce = partial(reduce_by_name, value)
    try:
        reduced = reduce()
    except Exception as error:  # the code of a class may raise anything
        own_error(reduce, error)
        return None
    if not isinstance(reduced, tuple) or (len(reduced) > 5 and reduced[5] is not set_fields):
        return None
    make, args, state, items, entries = (*reduced, None, None, None)[:5]
    items = None if items is None else [*items]
    entries = {} if entries is None else dict(entries)
    attributes: Any = {}
    slots: Any = {}
    if type(state) is dict:
        attributes, state = state, None
    elif type(state) is tuple and len(state) == 2 and all(type(part) in (dict, NoneType) for part in state):
        attributes, slots, state = state[0] or {}, state[1] or {}, None
    attributes = _without_results(attributes, results_of(kind))
    return _Parts(make, args, items, state, attributes, slots, entries)


def _without_results(attributes: dict[Any, Any], results: frozenset[str]) -> dict[Any, Any]:
    """The attributes without cached properties, which would keep the result for one side's fields."""
    found = {name: value for name, value in attributes.items() if name not in results}
    if type(fields := found.get("__dict__")) is dict:
        found["__dict__"] = _without_results(fields, results)
    return found


def _put_together(made: Any, state: Any, items: Any, entries: _Fields) -> None:
    """Give a new object its state, items and entries, as unpickling does."""
    for item in items or ():
        made.append(item)
    for key, value in entries.items():
        made[key] = value
    if state is None:
        return
    if type(state) is dict and is_by_name(type(made)):
        set_fields(made, state)
        return
    if (restore := getattr(made, "__setstate__", None)) is not None:
        restore(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    if attributes:
        made.__dict__.update(attributes)
    for name, value in slots.items():
        setattr(made, name, value)


def _clash(base: Any, ours: Any, theirs: Any, path: _Path | None) -> Unmergeable:
    if ours is ABSENT or theirs is ABSENT:
        reason = "one side removed it, the other changed it"
    else:
        reason = f"both sides {'added' if base is ABSENT else 'changed'} it, differently"
    return Unmergeable(reason, _written(path))


def _written(path: _Path | None) -> str:
    """The path as Python would write it: `["a"].b`."""
    steps = []
    while path is not None:
        path, key, is_field = path
        if is_field:
            steps.append("" if key in HOLDERS else f".{printable(str(key)[:_SHOWN])}")
        elif type(key) is str:
            shown = printable(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}…").replace('"', '\\"')
            steps.append(f'["{shown}"]')
        else:
            steps.append(f"[{preview(key, width=None, max_depth=3, max_items=5)[:_SHOWN]}]")
    return "".join(reversed(steps))
