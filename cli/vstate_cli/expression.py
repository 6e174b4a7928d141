"""Expressions: conditions on a value that people type, evaluated without running anything of Python's."""

from __future__ import annotations

import ast
import datetime
import functools
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from vstate.errors import InvalidInput
from vstate.values.inert import Global, Record, printable

__all__ = ["Expression"]

_LONGEST: Final = 2000  # characters of an expression
_DEEPEST: Final = 100  # of its parts inside each other
_MOST_STEPS: Final = 500_000  # of one evaluation: a second or so
_WIDEST_INT: Final = 4096  # bits
_DEEPEST_VALUE: Final = 200  # of values inside each other that are compared or hashed
_EXAMPLE: Final = 'such as \'len(value) < 10 and value["goal"] != ""\''

_Names = Mapping[str, object]


class Expression:
    """A condition over `value`, and `missing`: whether there is none.

    It is parsed by Python, and evaluated here: comparisons, and/or/not, arithmetic on numbers, subscripts and
    slices, the fields of objects (never attributes of Python's), `in`, some functions, some methods of texts and
    dicts, literals, conditional expressions and comprehensions. Work and sizes are bounded. Raises InvalidInput,
    which says in which column, for what is not one of these, and when it cannot be evaluated.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._root = _parse(self.text)

    def holds(self, value: object, *, missing: bool = False) -> bool:
        """Whether the condition is true of a value, as the inert reader gives it; None if it is missing."""
        evaluation = _Evaluation(self.text)
        try:
            return _truth(evaluation.of(self._root, {"value": value, "missing": missing}))
        except RecursionError:
            evaluation.fail("this is nested too deep")


# Parsing


def _parse(text: str) -> ast.expr:
    if not text:
        raise InvalidInput(f"an empty expression: write a condition on value, {_EXAMPLE}")
    if len(text) > _LONGEST:
        raise InvalidInput(f"an expression of {len(text)} characters is too long: the limit is {_LONGEST}")
    if not text.isprintable():
        raise InvalidInput("an expression is one line of printable characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in texts that have no meaning
            root = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        # Where it ends too early, Python gives no column.
        column, problem = (error.offset, error.msg) if error.offset else (len(text) + 1, "it ends too early")
        raise InvalidInput(f"column {column} of the expression: {problem}") from None
    except (RecursionError, MemoryError, ValueError):
        raise InvalidInput("the expression is nested too deep") from None
    _check(text, root)
    return root


def _check(text: str, root: ast.expr) -> None:
    """InvalidInput for whatever could not be evaluated with any value."""
    waiting: list[tuple[ast.AST, int, frozenset[str]]] = [(root, 1, frozenset({"value", "missing"}))]
    while waiting:
        node, depth, names = waiting.pop()
        if depth > _DEEPEST:
            raise InvalidInput("the expression is nested too deep")
        if isinstance(node, _COMPREHENSIONS):
            names |= {name for generator in node.generators for name in _targets(text, generator.target)}
        problem = _problem(node, names)
        if problem is not None:
            _fail(text, node, problem)
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            children.remove(node.func)
            if isinstance(node.func, ast.Attribute):
                children.append(node.func.value)
        waiting += [(child, depth + 1, names) for child in children]


def _problem(node: ast.AST, names: frozenset[str]) -> str | None:
    if isinstance(node, ast.Name):
        if node.id in names or isinstance(node.ctx, ast.Store):
            return None
        hint = f"; {node.id} is a function: {node.id}(…)" if node.id in _FUNCTIONS else ""
        return f"there is no {node.id!r} here, only value and missing{hint}"
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            known, kind = _FUNCTIONS, "function"
            name = node.func.id
        elif isinstance(node.func, ast.Attribute):
            known, kind = _METHODS, "method"
            name = node.func.attr
        else:
            return "only functions and methods can be called"
        if name not in known:
            return f"there is no {kind} {name!r}; there are {', '.join(sorted(known))}"
        least, most = _ARGUMENTS.get(name, (1, 1))
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            return f"{name} takes no such arguments"
        if not least <= len(node.args) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            return f"{name} takes {count} argument{'' if most == 1 else 's'}"
        return None
    if isinstance(node, ast.comprehension):
        return "a comprehension that waits is not possible" if node.is_async else None
    if isinstance(node, ast.Constant):
        allowed = isinstance(node.value, bool | int | float | str | bytes) or node.value is None
        return None if allowed else f"{node.value!r} is not possible"
    if isinstance(node, ast.Compare):
        sides = zip(node.ops, node.comparators, strict=True)
        if any(isinstance(op, ast.Is | ast.IsNot) and not _is_constant(side) for op, side in sides):
            return "what stands behind is or is not has to be None, True or False; compare with == or !="
        return None
    if isinstance(node, ast.BinOp):
        possible = type(node.op) in _ARITHMETIC
        return None if possible else f"{_WORDS.get(type(node.op), 'this')} is not possible: + - * / // % are"
    if isinstance(node, ast.UnaryOp):
        return "~ is not possible" if isinstance(node.op, ast.Invert) else None
    if isinstance(node, ast.Tuple) and any(isinstance(part, ast.Slice) for part in node.elts):
        return "a slice of several dimensions is not possible"
    if isinstance(node, ast.Dict):
        return None if None not in node.keys else "** is not possible"
    if isinstance(node, _POSSIBLE):
        return None
    return f"{_WORDS.get(type(node), f'{type(node).__name__}')} is not possible"


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _targets(text: str, target: ast.expr) -> list[str]:
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    for part in parts:
        if not isinstance(part, ast.Name) or part.id in ("value", "missing"):
            _fail(
                text,
                part,
                "what runs through a comprehension is a name, or some, other than value and missing",
            )
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _fail(text: str, node: ast.AST, problem: str) -> NoReturn:
    while isinstance(node, ast.comprehension | ast.operator | ast.cmpop | ast.unaryop | ast.boolop):
        node = getattr(node, "target", ast.Constant(0, lineno=1, col_offset=0))
    # An offset is one in UTF-8.
    before = text.encode()[: getattr(node, "col_offset", 0)].decode("utf-8", "replace")
    raise InvalidInput(f"column {len(before) + 1} of the expression: {problem}")


# Evaluating


class _Evaluation:
    """One evaluation, and how many steps it has left."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = _MOST_STEPS
        self._at: ast.AST = ast.Constant(0, lineno=1, col_offset=0)

    def fail(self, problem: str) -> NoReturn:
        _fail(self._text, self._at, problem)

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            self.fail(f"this takes more than {_MOST_STEPS:,} steps")

    def of(self, node: ast.expr, names: _Names) -> Any:
        """The value of a part of the expression."""
        self._at = node
        self.step()
        result = _EVALUATE[type(node)](self, node, names)
        self._at = node
        return result

    # --- names and literals

    def constant(self, node: ast.Constant, names: _Names) -> object:
        return node.value

    def name(self, node: ast.Name, names: _Names) -> object:
        if node.id not in names:  # a name of a comprehension, outside of it
            self.fail(f"there is no {node.id!r} here yet")
        return names[node.id]

    def list_(self, node: ast.List, names: _Names) -> list[object]:
        return [self.of(item, names) for item in node.elts]

    def tuple_(self, node: ast.Tuple, names: _Names) -> tuple[object, ...]:
        return tuple(self.of(item, names) for item in node.elts)

    def set_(self, node: ast.Set, names: _Names) -> set[object]:
        return {self.hashable(self.of(item, names)) for item in node.elts}

    def dict_(self, node: ast.Dict, names: _Names) -> dict[object, object]:
        return {
            self.hashable(self.of(key, names)): self.of(item, names)
            for key, item in zip(node.keys, node.values, strict=True)
            if key is not None
        }

    # --- logic

    def bool_op(self, node: ast.BoolOp, names: _Names) -> object:
        result: object = None
        for part in node.values:
            result = self.of(part, names)
            if _truth(result) == isinstance(node.op, ast.Or):
                return result
        return result

    def if_exp(self, node: ast.IfExp, names: _Names) -> object:
        chosen = node.body if _truth(self.of(node.test, names)) else node.orelse
        return self.of(chosen, names)

    def compare(self, node: ast.Compare, names: _Names) -> bool:
        left = self.of(node.left, names)
        for op, side in zip(node.ops, node.comparators, strict=True):
            right = self.of(side, names)
            self._at = node
            if not self._compare(op, left, right):
                return False
            left = right
        return True

    def _compare(self, op: ast.cmpop, left: object, right: object) -> bool:
        if isinstance(op, ast.Is | ast.IsNot):
            return (left is right) == isinstance(op, ast.Is)
        if isinstance(op, ast.Eq | ast.NotEq):
            return self.equal(left, right) == isinstance(op, ast.Eq)
        if isinstance(op, ast.In | ast.NotIn):
            return self._contains(right, left) == isinstance(op, ast.In)
        if isinstance(op, ast.Lt | ast.GtE):
            # Not one by the other's opposite: NaN is neither less nor not less.
            return (
                self.less(left, right, equal_too=False) if isinstance(op, ast.Lt) else self.less(right, left)
            )
        return self.less(left, right) if isinstance(op, ast.LtE) else self.less(right, left, equal_too=False)

    def equal(self, left: object, right: object, depth: int = 0) -> bool:
        """Whether two values are equal; records are if they have one class and equal parts."""
        self.step()
        if depth > _DEEPEST_VALUE:
            self.fail("these values are nested too deep to be compared")
        if left is right:
            return not (isinstance(left, float) and math.isnan(left))
        deeper = depth + 1
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            return (
                isinstance(left, list) == isinstance(right, list)
                and len(left) == len(right)
                and all(self.equal(a, b, deeper) for a, b in zip(left, right, strict=True))
            )
        if isinstance(left, dict) and isinstance(right, dict):
            return len(left) == len(right) and all(
                self.hashable(key) in right and self.equal(item, right[key], deeper)
                for key, item in left.items()
            )
        if isinstance(left, Record) and isinstance(right, Record):
            alike = left.type == right.type and left.called == right.called
            return alike and all(
                self.equal(a, b, deeper)
                for a, b in zip(_record_parts(left), _record_parts(right), strict=True)
            )
        if isinstance(left, Global) and isinstance(right, Global):
            return left.name == right.name
        if isinstance(left, set | frozenset) and isinstance(right, set | frozenset):
            return len(left) == len(right) and all(self.hashable(item) in right for item in left)
        if isinstance(left, _PARTS) or isinstance(right, _PARTS):
            return False
        self.step(_length(left) >> 10)
        return bool(left == right)

    def less(self, left: Any, right: Any, depth: int = 0, *, equal_too: bool = True) -> bool:
        self.step()
        if depth > _DEEPEST_VALUE:
            self.fail("these values are nested too deep to be compared")
        if (isinstance(left, list) and isinstance(right, list)) or (
            isinstance(left, tuple) and isinstance(right, tuple)
        ):
            for a, b in zip(left, right, strict=False):
                if not self.equal(a, b, depth + 1):
                    return self.less(a, b, depth + 1, equal_too=equal_too)
            return len(left) <= len(right) if equal_too else len(left) < len(right)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if not numbers and not (type(left) is type(right) and isinstance(left, _ORDERED)):
            self.fail(f"{_kind(left)} and {_kind(right)} have no order")
        self.step(_length(left) >> 10)
        try:
            return bool(operator.le(left, right) if equal_too else operator.lt(left, right))
        except TypeError:  # two times, one of them without a zone
            self.fail(f"{_kind(left)} and {_kind(right)} have no order")

    def _contains(self, container: object, item: object) -> bool:
        if isinstance(container, str | bytes | bytearray):
            if not isinstance(item, str if isinstance(container, str) else bytes | bytearray):
                self.fail(f"{_kind(item)} cannot be in {_kind(container)}")
            self.step(len(container) >> 10)
            return item in container  # type: ignore[operator]  # of one kind
        inside = _inside(container)
        if isinstance(inside, dict | set | frozenset):
            return self.hashable(item) in inside
        if inside is None:
            self.fail(f"nothing can be in {_kind(container)}")
        return any(self.equal(item, other) for other in inside)

    def hashable(self, key: Any, depth: int = 0) -> Any:
        """The key, if it has a hash that can be computed in bounded time."""
        self.step()
        if isinstance(key, tuple | frozenset):
            if depth > _DEEPEST_VALUE:
                self.fail("this key is nested too deep")
            for part in key:
                self.hashable(part, depth + 1)
        elif isinstance(key, list | dict | set | bytearray | memoryview):
            self.fail(f"{_kind(key)} cannot be a key")
        return key

    # --- numbers

    def bin_op(self, node: ast.BinOp, names: _Names) -> object:
        left, right = self.of(node.left, names), self.of(node.right, names)
        self._at = node
        return self._calculate(_ARITHMETIC[type(node.op)], left, right)

    def _calculate(self, function: Callable[[Any, Any], object], left: object, right: object) -> object:
        for side in (left, right):
            self._number(side)
        try:
            return self._number(function(left, right))
        except ZeroDivisionError:
            self.fail("a division by zero")
        except OverflowError:
            self.fail("a number becomes too large")

    def _number(self, value: object) -> Any:
        if not isinstance(value, int | float):
            self.fail(f"{_kind(value)} is no number")
        if isinstance(value, int) and value.bit_length() > _WIDEST_INT:
            self.fail("a number becomes too large")
        return value

    def unary_op(self, node: ast.UnaryOp, names: _Names) -> object:
        value = self.of(node.operand, names)
        if isinstance(node.op, ast.Not):
            return not _truth(value)
        self._at = node
        number = self._number(value)
        return -number if isinstance(node.op, ast.USub) else +number

    # --- parts of values

    def subscript(self, node: ast.Subscript, names: _Names) -> object:
        value = self.of(node.value, names)
        if isinstance(node.slice, ast.Slice):
            return self._sliced(node, node.slice, value, names)
        place = self.of(node.slice, names)
        self._at = node
        inside = _inside(value)
        if isinstance(inside, dict):
            if self.hashable(place) not in inside:
                self.fail(f"there is no key {_shown(place)} in {_kind(value)}")
            return inside[place]
        sequence = value if isinstance(value, str | bytes | bytearray) else inside
        if not isinstance(sequence, Sequence):
            has = f"; its fields are {_fields(value)}" if _fields(value) else ""
            self.fail(f"{_kind(value)} has no items{has}")
        if not isinstance(place, int):
            self.fail(f"an index is a whole number, not {_kind(place)}")
        if not -len(sequence) <= place < len(sequence):
            self.fail(f"there is no item {_shown(place)}: {_kind(value)} has {len(sequence)}")
        return sequence[place]

    def _sliced(self, node: ast.Subscript, bounds: ast.Slice, value: object, names: _Names) -> object:
        numbers: list[int | None] = []
        for part in (bounds.lower, bounds.upper, bounds.step):
            number = None if part is None else self.of(part, names)
            self._at = node if part is None else part
            if number is not None and not isinstance(number, int):
                self.fail(f"a bound is a whole number, not {_kind(number)}")
            numbers.append(number)
        self._at = node
        sequence = value if isinstance(value, str | bytes | bytearray) else _inside(value)
        if not isinstance(sequence, Sequence):
            self.fail(f"{_kind(value)} has no items")
        if numbers[2] == 0:
            self.fail("a step is not 0")
        found = range(len(sequence))[slice(*numbers)]
        self.step(len(found) >> (10 if isinstance(sequence, str | bytes | bytearray) else 0))
        return sequence[slice(*numbers)]

    def attribute(self, node: ast.Attribute, names: _Names) -> object:
        value = self.of(node.value, names)
        self._at = node
        fields = {**value.kwargs, **value.fields} if isinstance(value, Record) else {}
        if node.attr in fields:
            return fields[node.attr]
        if isinstance(value, dict) and node.attr in value:
            self.fail(f"a dict has no fields; write [{node.attr!r}]")
        has = f"; there are {_fields(value)}" if _fields(value) else ""
        self.fail(f"{_kind(value)} has no field {node.attr!r}{has}")

    # --- calls and comprehensions

    def call(self, node: ast.Call, names: _Names) -> object:
        if isinstance(node.func, ast.Attribute):
            value = self.of(node.func.value, names)
            arguments = [self.of(argument, names) for argument in node.args]
            self._at = node
            return _METHODS[node.func.attr](self, node.func.attr, value, *arguments)
        assert isinstance(node.func, ast.Name)
        arguments = [
            self.generated(argument, names)
            if isinstance(argument, ast.GeneratorExp)
            else self.of(argument, names)
            for argument in node.args
        ]
        self._at = node
        return _FUNCTIONS[node.func.id](self, *arguments)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, names: _Names) -> object:
        found = self.generated(node, names)
        return {self.hashable(item) for item in found} if isinstance(node, ast.SetComp) else list(found)

    def generated(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, names: _Names
    ) -> Iterator[object]:
        for inner in self._scopes(node.generators, names):
            yield self.of(node.elt, inner)

    def dict_comp(self, node: ast.DictComp, names: _Names) -> dict[object, object]:
        return {
            self.hashable(self.of(node.key, inner)): self.of(node.value, inner)
            for inner in self._scopes(node.generators, names)
        }

    def _scopes(self, generators: Sequence[ast.comprehension], names: _Names) -> Iterator[_Names]:
        if not generators:
            yield names
            return
        first, *rest = generators
        for item in self.iterated(self.of(first.iter, names)):
            inner = {**names, **self._bound(first.target, item)}
            if all(_truth(self.of(test, inner)) for test in first.ifs):
                yield from self._scopes(rest, inner)

    def _bound(self, target: ast.expr, item: object) -> dict[str, object]:
        self._at = target
        if isinstance(target, ast.Name):
            return {target.id: item}
        assert isinstance(target, ast.Tuple)
        if not isinstance(item, list | tuple) or len(item) != len(target.elts):
            self.fail(f"{_kind(item)} cannot be taken apart into {len(target.elts)}")
        return {
            part.id: value
            for part, value in zip(target.elts, item, strict=True)
            if isinstance(part, ast.Name)
        }

    def iterated(self, value: object) -> Iterator[object]:
        """The items of a value, each at the cost of a step."""
        inside: Iterable[object] | None = value if isinstance(value, str | Iterator) else _inside(value)
        if inside is None:
            self.fail(f"{_kind(value)} has no items to go through")
        for item in inside:
            self.step()
            yield item

    # --- functions

    def len_(self, value: object) -> int:
        inside = value if isinstance(value, str | bytes | bytearray) else _inside(value)
        if isinstance(inside, Iterator):
            return sum(1 for _ in inside)
        if inside is None:
            self.fail(f"{_kind(value)} has no length")
        return len(inside)

    def least(self, value: object, *others: object) -> object:
        return self._best(lambda new, best: self.less(new, best, equal_too=False), value, others)

    def most(self, value: object, *others: object) -> object:
        return self._best(lambda new, best: self.less(best, new, equal_too=False), value, others)

    def _best(
        self, better: Callable[[object, object], bool], value: object, others: Sequence[object]
    ) -> object:
        items = iter([value, *others]) if others else self.iterated(value)
        best = next(items, _NOTHING)
        if best is _NOTHING:
            self.fail("of nothing there is no least and no most; write: … if value else …")
        for item in items:
            if better(item, best):
                best = item
        return best

    def sum_(self, value: object, start: object = 0) -> object:
        return functools.reduce(
            lambda total, item: self._calculate(operator.add, total, item), self.iterated(value), start
        )

    def abs_(self, value: object) -> object:
        return abs(self._number(value))

    def sorted_(self, value: object) -> list[object]:
        key = functools.cmp_to_key(
            lambda a, b: self.less(b, a, equal_too=False) - self.less(a, b, equal_too=False)
        )
        return sorted(self.iterated(value), key=key)

    def any_(self, value: object) -> bool:
        return any(_truth(item) for item in self.iterated(value))

    def all_(self, value: object) -> bool:
        return all(_truth(item) for item in self.iterated(value))

    # --- methods

    def text_method(self, name: str, value: object, *arguments: object) -> object:
        if not isinstance(value, str):
            self.fail(f"{name} is a method of texts, not of {_kind(value)}")
        choices = arguments[:1] if name in ("startswith", "endswith") else ()
        texts = choices[0] if choices and isinstance(choices[0], tuple) else arguments
        if not all(isinstance(text, str) for text in texts):
            self.fail(f"{name} takes texts")
        self.step(len(value) >> 8)
        return getattr(str, name)(value, *arguments)

    def get(self, name: str, value: object, key: object, default: object = None) -> object:
        return self._entries(name, value).get(self.hashable(key), default)

    def listed(self, name: str, value: object) -> list[object]:
        entries = self._entries(name, value)
        self.step(len(entries))
        return list(getattr(dict, name)(entries))

    def _entries(self, name: str, value: object) -> dict[object, object]:
        inside = _inside(value)
        if not isinstance(inside, dict):
            self.fail(f"{name} is a method of dicts, not of {_kind(value)}")
        return inside


_NOTHING: Final = object()
_PARTS: Final = (list, tuple, dict, set, frozenset, Record, Global)
_ORDERED: Final = (
    str,
    bytes,
    bytearray,
    datetime.date,
    datetime.time,
    datetime.timedelta,
)


def _truth(value: object) -> bool:
    inside = _inside(value)
    return bool(value) if inside is None else bool(inside)


def _inside(value: object) -> Any:
    """The container that a value is or, of an object, has; None if there is none."""
    if isinstance(value, Record):
        return value.items if value.items is not None else value.entries
    return value if isinstance(value, list | tuple | dict | set | frozenset | Iterator) else None


def _record_parts(record: Record) -> tuple[object, ...]:
    return (record.args, record.kwargs, record.fields, record.items, record.entries, record.state)


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else 0


def _kind(value: object) -> str:
    """What a value is, in an error."""
    if value is None:
        return "None"
    if isinstance(value, Record):
        return printable(value.type)
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _fields(value: object) -> str:
    if not isinstance(value, Record):
        return ""
    names = [*value.kwargs, *value.fields]
    return ", ".join(map(printable, names[:10])) + (", …" if len(names) > 10 else "")


def _shown(value: object) -> str:
    return (
        printable(repr(value))
        if isinstance(value, str | int | float | None) and _length(value) < 100
        else _kind(value)
    )


_FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "len": _Evaluation.len_,
    "min": _Evaluation.least,
    "max": _Evaluation.most,
    "sum": _Evaluation.sum_,
    "abs": _Evaluation.abs_,
    "sorted": _Evaluation.sorted_,
    "any": _Evaluation.any_,
    "all": _Evaluation.all_,
}
_METHODS: Final[dict[str, Callable[..., object]]] = {
    **dict.fromkeys(("startswith", "endswith", "lower", "upper", "strip"), _Evaluation.text_method),
    "get": _Evaluation.get,
    **dict.fromkeys(("keys", "values", "items"), _Evaluation.listed),
}
_ARGUMENTS: Final = {
    "min": (1, 100),
    "max": (1, 100),
    "sum": (1, 2),
    "lower": (0, 0),
    "upper": (0, 0),
    "strip": (0, 1),
    "get": (1, 2),
    "keys": (0, 0),
    "values": (0, 0),
    "items": (0, 0),
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], object]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_EVALUATE: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Constant: _Evaluation.constant,
    ast.Name: _Evaluation.name,
    ast.List: _Evaluation.list_,
    ast.Tuple: _Evaluation.tuple_,
    ast.Set: _Evaluation.set_,
    ast.Dict: _Evaluation.dict_,
    ast.BoolOp: _Evaluation.bool_op,
    ast.IfExp: _Evaluation.if_exp,
    ast.Compare: _Evaluation.compare,
    ast.BinOp: _Evaluation.bin_op,
    ast.UnaryOp: _Evaluation.unary_op,
    ast.Subscript: _Evaluation.subscript,
    ast.Attribute: _Evaluation.attribute,
    ast.Call: _Evaluation.call,
    ast.ListComp: _Evaluation.comprehension,
    ast.SetComp: _Evaluation.comprehension,
    ast.GeneratorExp: _Evaluation.comprehension,
    ast.DictComp: _Evaluation.dict_comp,
}
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_POSSIBLE: Final = (*_EVALUATE, ast.Slice, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_WORDS: Final[dict[type[ast.AST], str]] = {
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.BitXor: "^",
    ast.MatMult: "@",
    ast.Lambda: "a lambda",
    ast.JoinedStr: "an f-string",
    ast.NamedExpr: ":=",
    ast.Await: "await",
    ast.Starred: "*",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
}
