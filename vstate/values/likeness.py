"""Likeness: whether a value that the program has in hand is still the stored one.

A pickle alone does not tell. A class may pickle its own address, as the storage of a tensor does: then the
pickle right after the loading tells. And reading an object may change it: the object caches a result, or
counts its readers. `compare` says which parts of a class count; `_said` begins with well-known libraries.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from vstate.arguments import require_plain
from vstate.errors import InvalidInput, VStateError
from vstate.values import definitions
from vstate.values.culprits import own_error
from vstate.values.opcodes import is_number, tokens
from vstate.values.pickling import dumps_unproven, loads, met

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


def is_alike_at_rest(value: Any, data: bytes, buffers: Sequence[bytes | bytearray | memoryview]) -> bool:
    """Whether the pickle of the value is `data`, apart from numbers that differ each time it is pickled.

    A figure of matplotlib counts its picklings, for example. Such a number carries no edit.
    """
    one, held = dumps_unproven(value)
    other, _ = dumps_unproven(value)
    if one == other or list(held) != [memoryview(buffer) for buffer in buffers]:
        return False
    parts = tokens(one), tokens(other), tokens(data)
    if None in parts or len({len(part or ()) for part in parts}) > 1:
        return False
    return all(
        first == wanted or (first != second and is_number(first) and is_number(second) and is_number(wanted))
        for first, second, wanted in zip(*(part or () for part in parts), strict=True)
    )


def definitions_in(value: Any) -> frozenset[int]:
    """The places, among the parts of the value's entry, of the definitions of classes."""
    _, held = dumps_unproven(value)
    return frozenset(i for i, buffer in enumerate(held, 1) if isinstance(buffer.obj, definitions.Definition))


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
        frozenset(
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, cached_property)
            # Those of Django, werkzeug, Pyramid and astropy, and those that a program wrote for itself.
            or type(member).__name__.replace("_", "").lower() in _CACHED
        ),
    )
    if len(_rules) > _MOST_KNOWN:  # a program that makes classes all the time
        _rules.clear()
    _rules[kind] = rule = found if any(found) else None
    return rule


_CACHED: Final = ("cachedproperty", "lazyproperty", "reify")


def results_of(kind: type) -> frozenset[str]:
    """The attributes in which objects of the class keep the results of cached properties."""
    rule = _rule(kind)
    return frozenset() if rule is None else rule.results


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def may_count_partly() -> bool:
    """Whether this process pickled an object of which only parts count."""
    return any(_rule(kind) for kind in met - _rules.keys()) or any(_rules.values())


def is_alike_in_parts(value: Any, load: Callable[[], Any]) -> bool:
    """Whether the value is like the untouched copy that `load` makes, in all parts that count.

    A result of a cached property that the copy has too, and that differs in the value, is an edit.
    """
    (one, held), added = _counted(value)
    if not added:
        return False
    (other, wanted), stored = _counted(load())
    if (one, held) != (other, wanted) and _settled(one, held) != _settled(other, wanted):
        return False
    return all(
        name in now and dumps_unproven(now[name]) == dumps_unproven(result)
        for now, before in zip(added, stored, strict=True)
        for name, result in before.items()
    )


def _counted(value: Any) -> tuple[tuple[bytes, list[memoryview]], list[dict[str, Any]]]:
    """The pickle of all that counts, and the results that were left out of each object with a rule."""
    results: list[dict[str, Any]] = []
    return dumps_unproven(value, partial(_Counting, results)), results


def _settled(data: bytes, buffers: Sequence[memoryview]) -> tuple[list[bytes], list[memoryview]]:
    """The opcodes of a pickle after one more loading, with each text in the place of a reference to it.

    A program may have one object, or one text, where a copy that was loaded has two equal ones.
    """
    (data, again), _ = _counted(loads(data, [bytearray(buffer) for buffer in buffers]))
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
    return found, again


_GETS: Final = frozenset({pickle.BINGET, pickle.LONG_BINGET})
_TEXTS: Final = frozenset(
    {
        pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8,
        pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8,
    }
)  # fmt: skip


class _Counted:
    """Stands for an object with a rule: the name of its class, and the parts that count."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: Any = None

    def __setstate__(self, parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _Counted, (self._name,), self._parts


class _Counting(definitions.Pickler):
    """Pickles the parts that count."""

    def __init__(self, results: list[dict[str, Any]], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._results = results

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if issubclass(kind, type):
            return definitions.reduce_class(obj)
        rule = _rule(kind)
        if rule is None:
            return super().reducer_override(obj)
        results: dict[str, Any] = {}
        self._results.append(results)
        if rule.parts is not None:
            return _Counted, (_full_name(kind),), rule.parts(obj)
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            reduce = self.dispatch_table.get(kind)
            reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reduce is None else reduce(obj)
        if type(reduced) is not tuple:  # a name
            return reduced
        make, args, state, items, entries = (*reduced, None, None, None)[:5]
        for name in rule.results & (fields := _fields(state)).keys():
            if fields[name] is not None:
                results[name] = fields[name]
        left = _left(state, fields, rule.without | rule.results)
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
