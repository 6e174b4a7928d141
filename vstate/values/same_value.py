"""Same value: whether a value that the program has in hand is still the stored one.

A pickle alone does not tell. A class may pickle its own address, as the storage of a tensor does: then the
pickle right after the loading tells. And reading an object may change it: the object caches a result, or
counts its readers. `compare` says which parts of a class count; `_said` begins with well-known libraries.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from vstate.arguments import require_plain
from vstate.errors import InvalidInput, VStateError
from vstate.values import definitions
from vstate.values.fields import make as make_by_name
from vstate.values.opcodes import tokens
from vstate.values.pickle_errors import own_error
from vstate.values.pickling import dumps_unproven, met

Parts = Callable[[Any], Any]

_KNOWN_MODULES: Final = frozenset(
    {"builtins", "collections", "copyreg", "datetime", "decimal", "numpy", "pandas", "pathlib", "uuid"}
)
"""Their classes pickle alike each time. A look at the first value would take as long as loading it."""

_MOST_KNOWN: Final = 10_000

_alike: dict[frozenset[str], bool] = {}
"""Whether copies pickle alike, by the classes and functions in their pickles."""


# Copies that nobody has touched


def copies_are_alike(names: Iterable[str], value: Any, load: Callable[[], Any]) -> bool:
    """Whether the untouched `value` and the copy that `load` makes have one pickle.

    The classes and functions `names` of the pickle decide, so that few values are loaded twice.
    """
    kind = frozenset(names)
    known = _alike.get(kind)
    if known is None:
        known = all(name.partition(".")[0] in _KNOWN_MODULES for name in kind) or _look(value, load)
        if len(_alike) > _MOST_KNOWN:
            _alike.clear()
        _alike[kind] = known
    return known


def _look(value: Any, load: Callable[[], Any]) -> bool:
    def are_alike() -> bool:
        copy = load()  # both are in memory at the same time, so they share no address
        return dumps_unproven(value) == dumps_unproven(copy)

    try:
        return are_alike()
    except VStateError:
        return False
    except Exception as error:  # the classes' own code may raise anything
        own_error(are_alike, error)
        return False


# Parts that count


def compare(cls: str | type, parts: Parts | None = None, *, without: Iterable[str | int] = ()) -> None:
    """Say which parts of a class count when vstate asks whether a value was edited, in this process.

    An object that differs from the stored one in other parts only was read, and not edited. `cls` is the
    class or its full name. `without` names the attributes that reading changes: all others count, those of
    subclasses too. A number is a place in a state that is a tuple. Or `parts` is a function from an object to
    the parts that count, anything that pickle takes. It serves objects of exactly this class. An object that
    was edited is stored as a whole. InvalidInput for neither or both.
    """
    if not isinstance(cls, str | type):
        raise TypeError(f"a class is a class or its full name, not {type(cls).__name__}")
    if isinstance(without, str):
        raise TypeError(f"without is a list of names, as in [{without!r}], not a text")
    names = frozenset(without)
    if (parts is None) != bool(names):
        raise InvalidInput("give either the parts that count or, with without=, those that do not")
    if parts is not None:
        require_plain("the function of compare", parts)
    _said[cls] = parts or names
    _rules.clear()


class _Rule(NamedTuple):
    """The parts of an object that count: `parts`, or all but `without` and the `results` of a read."""

    parts: Parts | None
    without: frozenset[str | int]
    results: frozenset[str]


_rules: dict[type, _Rule | None] = {}


def _rule(kind: type) -> _Rule | None:
    """The rule for objects of the class; None if all of an object counts."""
    if kind in _rules:
        return _rules[kind]
    said = [_said.get(base) or _said.get(_full_name(base)) for base in kind.__mro__]
    found = _Rule(
        None if isinstance(said[0], frozenset) else said[0],
        frozenset[str | int]().union(*(names for names in said if isinstance(names, frozenset))),
        frozenset(name for base in kind.__mro__ for name, member in vars(base).items() if _is_cached(member)),
    )
    if len(_rules) > _MOST_KNOWN:  # a program that makes classes all the time
        _rules.clear()
    _rules[kind] = rule = found if any(found) else None
    return rule


_CACHED: Final = ("cachedproperty", "lazyproperty", "reify")
"""Those of Django, werkzeug, Pyramid and astropy, and those that a program wrote for itself."""


def _is_cached(member: Any) -> bool:
    """Whether a class has this member to keep results, and the program does not set it by a setter."""
    kind = type(member)
    known = isinstance(member, cached_property) or kind.__name__.replace("_", "").lower() in _CACHED
    settable = member.fset if isinstance(member, property) else hasattr(kind, "__set__")
    return known and not settable


def results_of(kind: type) -> frozenset[str]:
    """The attributes in which objects of the class keep the results of cached properties."""
    rule = _rule(kind)
    return frozenset() if rule is None else rule.results


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def may_count_partly() -> bool:
    """Whether this process pickled an object of which only parts count."""
    return any(_rule(kind) for kind in met.keys() - _rules.keys()) or any(_rules.values())


def is_alike_in_parts(value: Any, load: Callable[[], Any]) -> bool:
    """Whether the value is like the untouched copy that `load` makes, in all parts that count.

    A result of a cached property is an edit, unless the copy has an equal one or computes an equal one.
    """
    pickled = _counted(value)
    return any(found.leaves for found in pickled.found) and _are_alike(pickled, _counted(load()))


def are_alike(one: Any, other: Any) -> bool:
    """Whether two values, of two copies that nobody has touched, are alike in all parts that count."""
    return _are_alike(_counted(one), _counted(other))


class _Found(NamedTuple):
    """An object with a rule, its results, and whether the pickle of all that counts leaves out some part."""

    obj: Any
    results: dict[str, Any]
    leaves: bool


class _Pickled(NamedTuple):
    """The pickle of all that counts, and the objects with a rule."""

    data: bytes
    buffers: list[memoryview]
    found: list[_Found]


def _counted(value: Any) -> _Pickled:
    found: list[_Found] = []
    return _Pickled(*dumps_unproven(value, partial(_Counting, found)), found)


def _are_alike(one: _Pickled, other: _Pickled) -> bool:
    if one.buffers != other.buffers:
        return False
    if one.data != other.data and _in_full(one.data) != _in_full(other.data):
        return False
    return all(
        _is_read(name, now, before, untouched)
        for (_, now, *_), (untouched, before, *_) in zip(one.found, other.found, strict=True)
        for name in now | before
    )


def _is_read(name: str, now: dict[str, Any], before: dict[str, Any], untouched: Any) -> bool:
    """Whether the result is as before, or as reading the untouched object gives it."""
    if name not in now:
        return before[name] is None
    stored = before.get(name)
    return _have_one_pickle(
        now[name], partial(getattr, untouched, name) if stored is None else lambda: stored
    )


def _have_one_pickle(result: Any, make: Callable[[], Any]) -> bool:
    """Whether a result is like the one that `make` gives. One that no pickle can hold is no edit to store."""
    one = _counted_if_possible(result)
    if one is None and type(result) not in _CONTAINERS:
        return True  # `make` may open a connection
    made = make()
    if one is None:
        return _counted_if_possible(made) is None
    return _are_alike(one, _counted(made))


def _counted_if_possible(value: Any) -> _Pickled | None:
    try:
        return _counted(value)
    except Exception as error:  # the classes' own code may raise anything
        own_error(partial(_counted, value), error)
        return None


_CONTAINERS: Final = frozenset({dict, list, set, tuple})


def _in_full(data: bytes) -> list[bytes]:
    """The opcodes of a pickle, with each text in the place of a reference to it.

    A program may have one text where a copy that was loaded has two equal ones.
    """
    found: list[bytes] = []
    memo: list[bytes] = []
    objects = 0
    for token in tokens(data) or [data]:
        if token[:1] in _GETS:
            found.append(memo[int.from_bytes(token[1:], "little")])
        elif token != pickle.MEMOIZE:
            found.append(token)
        elif found[-1][:1] in _TEXTS:
            memo.append(found[-1])
        else:
            memo.append(b"\0%d" % objects)  # no opcode begins so
            objects += 1
    return found


_GETS: Final = frozenset({pickle.BINGET, pickle.LONG_BINGET})
_TEXTS: Final = frozenset(
    {
        pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8,
        pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8,
    }
)  # fmt: skip


class _Counted:
    """Stands for an object with a rule, in a pickle that nothing loads."""


class _Counting(definitions.Pickler):
    """Pickles the parts that count."""

    def __init__(self, found: list[_Found], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._found = found
        self._dtype: Any = getattr(sys.modules.get("numpy"), "dtype", ())

    def persistent_id(self, obj: Any) -> bytes | None:
        """The pickle of a data type of numpy: one object stands for equal ones here, and not in a copy."""
        return pickle.dumps(obj, 5) if issubclass(type(obj), self._dtype) else None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, type):
            return definitions.reduce_class(obj)
        rule = _rule(kind)
        if rule is None:
            return super().reducer_override(obj)
        if rule.parts is not None:
            self._found.append(_Found(obj, {}, True))
            return _Counted, (_full_name(kind),), rule.parts(obj)
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            reduce = self.dispatch_table.get(kind)
            reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reduce is None else reduce(obj)
        if type(reduced) is not tuple:  # a name
            return reduced
        make, args, state, items, entries = (*reduced, None, None, None)[:5]
        if make is make_by_name:
            args, state = args[:1], (args[1], state or {})
        fields, without = _fields(state), rule.without | rule.results
        results = {name: fields[name] for name in rule.results & fields.keys()}
        places = range(len(state)) if type(state) is tuple else ()
        self._found.append(_Found(obj, results, not without.isdisjoint({*fields, *places})))
        left = _left(state, fields, without)
        parts = make, args, left, None if items is None else [*items], entries and dict(entries)
        return _Counted, (_full_name(kind),), parts


def _fields(state: Any) -> dict[str, Any]:
    """The attributes in a state as pickle takes it, if it has any; those of a model of pydantic as well."""
    found: dict[str, Any] = {}
    for part in state if type(state) is tuple else (state,):
        if type(part) is dict:
            found |= part
    for holder in ("__dict__", "__pydantic_private__"):
        if type(inner := found.get(holder)) is dict:
            found = {**found, **inner, holder: None}
    return found


def _left(state: Any, fields: dict[str, Any], without: frozenset[str | int]) -> Any:
    """The parts of a state that count: its attributes, and its other parts."""
    others: Any = None if type(state) is dict else state
    if type(state) is tuple:
        others = [part for at, part in enumerate(state) if at not in without and type(part) is not dict]
    return {name: part for name, part in fields.items() if name not in without}, others


def _drawn(figure: Any) -> Any:
    """The picture of a figure of matplotlib, and its texts that may be shown later, as labels in a legend.

    Reading computes limits, ticks and transforms, and keeps them. So a copy is drawn.
    """
    twin = object.__new__(type(figure))
    state = {name: part for name, part in figure.__getstate__().items() if name != "_restore_to_pylab"}
    twin.__setstate__(copy.deepcopy(state, {id(figure): twin}))
    file = io.StringIO()
    with sys.modules["matplotlib"].rc_context({"svg.hashsalt": "", "svg.fonttype": "none"}):
        twin.savefig(file, format="svg", metadata={"Date": None})
    artists = [artist for axes in figure.axes for artist in axes.get_children()]
    texts = [
        {name: part for name, part in vars(thing).items() if type(part) is str and name != "_tick_position"}
        for thing in (figure, *figure.axes, *artists)
    ]
    return file.getvalue(), figure.dpi, texts


def _sorted(matrix: Any) -> Any:
    """The attributes of a sparse matrix of scipy with its entries in order: reading may sort them."""
    twin = matrix.copy()
    twin.sum_duplicates()
    return vars(twin)


_TREE: Final = frozenset({7, 8, 9, 10})
"""The counters of queries in the state of a tree of scikit-learn."""

# By name: vstate imports none of these libraries.
_said: dict[str | type, Parts | frozenset[str | int]] = {
    "httpx.Headers": frozenset({"_encoding"}),
    "httpx.Response": frozenset({"_cookies", "_encoding", "_text"}),
    "matplotlib.figure.Figure": _drawn,
    "pandas._libs.arrays.NDArrayBacked": frozenset({"_cache"}),
    "scipy.sparse._bsr.bsr_array": _sorted,
    "scipy.sparse._bsr.bsr_matrix": _sorted,
    "scipy.sparse._csc.csc_array": _sorted,
    "scipy.sparse._csc.csc_matrix": _sorted,
    "scipy.sparse._csr.csr_array": _sorted,
    "scipy.sparse._csr.csr_matrix": _sorted,
    "scipy.sparse._compressed._cs_matrix": frozenset({"_has_canonical_format", "_has_sorted_indices"}),
    "sklearn.neighbors._ball_tree.BinaryTree32": _TREE,
    "sklearn.neighbors._ball_tree.BinaryTree64": _TREE,
    "sklearn.neighbors._kd_tree.BinaryTree32": _TREE,
    "sklearn.neighbors._kd_tree.BinaryTree64": _TREE,
}
