"""Parts: what stands inside a value, at the paths by which `details` names it."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final, NamedTuple

from blake3 import blake3

from vstate.errors import InvalidInput, NotFound
from vstate.repo.compare.details import details
from vstate.values.inert import Array, Global, Instance

__all__ = [
    "SEQUENCES",
    "Fingerprints",
    "Part",
    "find_part",
    "kind_of",
    "part_like",
    "parts_of",
    "sequence_of",
]

_EXAMPLE: Final = 'such as messages[3].content or ["odd key"][0]'
_IDENTIFIER: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)")
_PLAIN_KEY: Final = re.compile(r'\["([^"\\…]{,60})"\]')
_INDEX: Final = re.compile(r"\[(0|[1-9][0-9]{,17})\]")
_ANY_STEP: Final = re.compile(
    r'\.[A-Za-z_][A-Za-z0-9_]*|\["(?:[^"\\]|\\.)*"\]|\[[^\[\]"]+\]|\[.+?\](?=[.\[{]|$)|\{.+?\}(?=[.\[{]|$)',
    re.DOTALL,
)
_LONGEST_IDENTIFIER: Final = 60
_COMPARED: Final = 1000  # steps that are looked at for one of a similar name
_SHOWN: Final = 80

SEQUENCES: Final = frozenset({"items", "args"})
"""The groups of parts whose places are numbers that move when something is put in before them."""


class Part(NamedTuple):
    """Something directly inside a value.

    `group` is the kind of place ("items", "args", "entries", "kwargs", "fields", "members", "state"), `place`
    what tells it from the others of its group: an index, a name, or the fingerprint of a key that is no text.
    `step` is what stands for it in a path: `[3]`, `.content`, `["odd key"]`.
    """

    group: str
    place: Hashable
    step: str
    value: object


def kind_of(value: object) -> object:
    """What two values have in common if their parts can be compared: the type, of instance the class."""
    if isinstance(value, Instance):
        return (type(value), value.type, value.called)
    return (Global, value.name) if isinstance(value, Global) else type(value)


def parts_of(value: object, prints: Fingerprints) -> Iterator[Part]:
    """Everything directly inside the value, in the order of `details`; nothing for an atom or a text."""
    if isinstance(value, dict):
        yield from _entries(value, prints)
    elif isinstance(value, list | tuple):
        yield from _items("items", value)
    elif isinstance(value, set | frozenset):
        yield from _members(value, prints)
    elif isinstance(value, Instance):
        yield from [_only_argument(value)] if _is_wrapper(value) else _items("args", value.args)
        yield from _named("kwargs", value.kwargs)
        yield from _named("fields", value.fields)
        yield from _items("items", value.items or [])
        yield from _entries(value.entries or {}, prints)
        if value.state is not None:
            yield Part("state", "", ".state", value.state)
    elif isinstance(value, Global):
        yield from _named("fields", value.fields)


def sequence_of(value: object, group: str) -> Sequence[object]:
    """The list or tuple inside `value` that has the parts of this group, which is one of SEQUENCES."""
    found = getattr(value, group) if isinstance(value, Instance) else value
    return found if isinstance(found, list | tuple) else ()


def part_like(part: Part, value: object, prints: Fingerprints) -> Part | None:
    """What is inside `value` in the place that `part`, no item, has in another value of its kind."""
    place = part.place
    if part.group == "members":
        assert isinstance(value, set | frozenset)
        return next((part._replace(value=member) for member in value if prints.place(member) == place), None)
    if part.group == "state":
        assert isinstance(value, Instance)
        return None if value.state is None else part._replace(value=value.state)
    named = value if isinstance(value, dict) else getattr(value, part.group) or {}
    if isinstance(place, str):
        return part._replace(value=named[place]) if place in named else None
    return next(
        (part._replace(value=item) for key, item in named.items() if prints.place(key) == place), None
    )


def _is_wrapper(instance: Instance) -> bool:
    # As `details` has it: `Decimal('1')` has nothing but its argument, which needs no name.
    return len(instance.args) == 1 and not instance.fields


def _only_argument(instance: Instance) -> Part:
    return Part("args", 0, "", instance.args[0])


def _items(group: str, items: Sequence[object]) -> Iterator[Part]:
    prefix = ".args" if group == "args" else ""
    for index, item in enumerate(items):
        yield Part(group, index, f"{prefix}[{index}]", item)


def _named(group: str, named: Mapping[str, object]) -> Iterator[Part]:
    for (name, value), step in zip(named.items(), _steps(dict.fromkeys(named)), strict=True):
        yield Part(group, name, step, value)


def _entries(entries: Mapping[object, object], prints: Fingerprints) -> Iterator[Part]:
    for (key, value), step in zip(entries.items(), _steps(dict.fromkeys(entries)), strict=True):
        yield Part("entries", prints.place(key), step, value)


def _members(members: set[object] | frozenset[object], prints: Fingerprints) -> Iterator[Part]:
    for member, step in zip(members, _steps(members), strict=True):
        yield Part("members", prints.place(member), step, member)


def _steps(places: Collection[object]) -> Iterator[str]:
    """The steps that lead to these keys or members: what `details` itself says when all of them are gone."""
    nothing: object = {} if isinstance(places, dict) else type(places)()
    for gone in details(places, nothing, limit=len(places)):
        yield gone.path if gone.path[:1] in "[{" else f".{gone.path}"


# Finding a part by its path


def find_part(value: object, path: str, prints: Fingerprints) -> list[Part]:
    """The parts on the way to `path`, the last of them what is there; none for the path "", the value itself.

    The path is written as `details` prints it: `.name` for a key or field that is an identifier (the first
    without the dot), `["text"]` for any other text, `[7]` for an index or a key that is no text, `{'a'}` for a
    member of a set, and `.args[0]` and `.state` for the parts of a instance that have no names. Long keys end
    in "…", as printed. Raises NotFound naming the step that leads nowhere, InvalidInput for what is no path,
    and for a step that several keys print as.
    """
    if not path:
        return []
    rest = path if path[0] in ".[{" else f".{path}"
    length = len(rest)
    trail: list[Part] = []
    # A step can mean more than one part of a instance, so a way that leads nowhere is walked back.
    waiting = [_candidates(value, rest, prints)]
    seen: set[tuple[int, int]] = set()
    furthest: tuple[int, object] = (length, value)
    while waiting:
        part = next(waiting[-1], None)
        if part is None:
            waiting.pop()
            if trail:
                rest = trail.pop().step + rest
            continue
        left = rest[len(part.step) :]
        if not left:
            return [*trail, part]
        if left[0] not in ".[{" or (id(part.value), len(left)) in seen:
            continue
        seen.add((id(part.value), len(left)))
        if len(left) <= furthest[0]:
            furthest = (len(left), part.value)
        trail.append(part)
        rest = left
        waiting.append(_candidates(part.value, rest, prints))
    at, where = furthest
    raise _nowhere(path, rest[length - at :], where, prints)


def _candidates(value: object, rest: str, prints: Fingerprints) -> Iterator[Part]:
    """The parts of the value with whose step `rest` begins."""
    if isinstance(value, dict):
        yield from _keyed(value, rest, prints)
    elif isinstance(value, list | tuple):
        yield from _indexed("items", value, rest)
    elif isinstance(value, set | frozenset):
        yield from _one_of(rest, (part for part in _members(value, prints) if rest.startswith(part.step)))
    elif isinstance(value, Instance):
        if _is_wrapper(value):
            yield _only_argument(value)
        else:
            yield from _indexed("args", value.args, rest)
        yield from _by_name("kwargs", value.kwargs, rest)
        yield from _by_name("fields", value.fields, rest)
        yield from _indexed("items", value.items or [], rest)
        yield from _keyed(value.entries or {}, rest, prints)
        if value.state is not None and rest.startswith(".state"):
            yield Part("state", "", ".state", value.state)
    elif isinstance(value, Global):
        yield from _by_name("fields", value.fields, rest)


def _indexed(group: str, items: Sequence[object], rest: str) -> Iterator[Part]:
    prefix = ".args" if group == "args" else ""
    match = _INDEX.match(rest, len(prefix)) if rest.startswith(prefix) else None
    if match is not None and int(match[1]) < len(items):
        index = int(match[1])
        yield Part(group, index, f"{prefix}[{index}]", items[index])


def _by_name(group: str, named: Mapping[str, object], rest: str) -> Iterator[Part]:
    plain = _plain_name(named, rest)
    if plain is not None:
        name, step = plain
        yield Part(group, name, step, named[name])
    elif rest.startswith("["):
        yield from _one_of(rest, _named(group, named))


def _keyed(entries: Mapping[object, object], rest: str, prints: Fingerprints) -> Iterator[Part]:
    plain = _plain_name(entries, rest)
    if plain is not None:
        name, step = plain
        yield Part("entries", name, step, entries[name])
    elif rest.startswith("["):
        yield from _one_of(rest, _entries(entries, prints))


def _plain_name(named: Mapping[str, object] | Mapping[object, object], rest: str) -> tuple[str, str] | None:
    """The key that `rest` begins with and how it is written, where no other key can print as the same."""
    match = _IDENTIFIER.match(rest) or _PLAIN_KEY.match(rest)
    if match is None or len(match[1]) > _LONGEST_IDENTIFIER or match[1] not in named:
        return None
    return match[1], match[0]


def _one_of(rest: str, parts: Iterable[Part]) -> Iterator[Part]:
    found: dict[str, Part] = {}
    for part in parts:
        if rest.startswith(part.step):
            if part.step in found:
                raise InvalidInput(f"several keys print as {part.step}: choose a path that ends before it")
            found[part.step] = part
    yield from sorted(found.values(), key=lambda part: -len(part.step))


def _nowhere(path: str, rest: str, value: object, prints: Fingerprints) -> NotFound | InvalidInput:
    match = _ANY_STEP.match(rest)
    before = path[: max(len(path) - len(rest), 0)]
    if match is None or rest[match.end() :][:1] not in ("", ".", "[", "{"):
        return InvalidInput(f"{_cut(path)!r} is no path at {_cut(rest)!r}: a path is {_EXAMPLE}")
    step = match[0]
    where = f"in {_cut(before)}" if before else "in the value"
    similar: list[str] = []
    if isinstance(value, list | tuple):
        has = f"which is a {type(value).__name__} of {len(value)} items"
    elif isinstance(value, str):
        has = "which is a text: a path ends there"
    else:
        steps = [part.step for part in islice(parts_of(value, prints), _COMPARED)]
        similar = get_close_matches(step, steps, n=3, cutoff=0.5)
        name = value.type if isinstance(value, Instance) else type(value).__name__
        has = f"which is a {name}" if steps else f"which is a {name} without parts"
    return NotFound(f"no {_cut(step)} {where}, {has}", name=path, candidates=similar)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


# Telling values apart


_ATOM_TYPES: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


class Fingerprints:
    """Hashes of values as the inert reader returns them; equal for equal values, and only for those.

    Types count, the order of dicts and sets does not. What is inside itself is told apart by how it is reached,
    so that such a value may have a new fingerprint without having changed. It remembers those of containers, by
    identity: use it for as long as the values live.
    """

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._open: set[int] = set()

    def of(self, value: object) -> bytes:
        """The fingerprint of a value: 17 bytes of a container, the content of an atom."""
        if type(value) in _ATOM_TYPES:
            return _atom(value)
        # Without recursion: values are nested more deeply than Python can recurse.
        waiting = [value]
        while waiting:
            value = waiting[-1]
            name = id(value)
            if name in self._done:
                waiting.pop()
                continue
            if name not in self._open:
                self._open.add(name)
                inside = [
                    child
                    for child in _children(value)
                    if type(child) not in _ATOM_TYPES
                    and id(child) not in self._done
                    and id(child) not in self._open
                ]
                if inside:
                    waiting += inside
                    continue
            waiting.pop()
            self._done[name] = b"#" + blake3(self._encoded(value)).digest(length=16)
            self._open.discard(name)
        return self._done[name]

    def place(self, key: object) -> Hashable:
        """What tells a key from all others, 1 from True too; a text is its own."""
        return key if type(key) is str else self.of(key)

    def _token(self, value: object) -> bytes:
        if type(value) in _ATOM_TYPES:
            return _atom(value)
        return self._done.get(id(value), b"@")  # "@": inside itself

    def _encoded(self, value: object) -> bytes:
        # Every token says where it ends, and every run of tokens how many there are.
        token = self._token
        if isinstance(value, list | tuple):
            return b"%b%d:" % (type(value).__name__.encode(), len(value)) + b"".join(map(token, value))
        if isinstance(value, dict):
            return self._pairs(value)
        if isinstance(value, set | frozenset):
            members = sorted(map(token, value))
            return b"%b%d:" % (type(value).__name__.encode(), len(members)) + b"".join(members)
        if isinstance(value, Array) and value.raw is not None:
            shape = repr([value.fields.get(name) for name in ("dtype", "shape", "order")])
            return b"array" + _atom(value.type) + _atom(shape) + blake3(value.raw).digest()
        if isinstance(value, Instance):
            head = b"instance%d" % value.called + _atom(value.type) + self._pairs(value.fields)
            arguments = (
                b"%d:" % len(value.args) + b"".join(map(token, value.args)) + self._pairs(value.kwargs)
            )
            items = (b"-" if part is None else token(part) for part in (value.items, value.entries))
            return head + arguments + b"".join(items) + token(value.state)
        if isinstance(value, Global):
            return b"global" + _atom(value.name) + self._pairs(value.fields)
        if isinstance(value, bytearray | memoryview):
            return type(value).__name__.encode() + b":" + bytes(value)
        return type(value).__name__.encode() + b":" + repr(value).encode("utf-8", "surrogatepass")

    def _pairs(self, pairs: Mapping[str, object] | Mapping[object, object]) -> bytes:
        token = self._token
        found = sorted(token(key) + token(item) for key, item in pairs.items())
        return b"dict%d:" % len(found) + b"".join(found)


def _atom(value: object) -> bytes:
    if type(value) is str:
        text = value.encode("utf-8", "surrogatepass")
        return b"s%d:" % len(text) + text
    if type(value) is bytes:
        return b"b%d:" % len(value) + value
    if type(value) is int:
        return b"i%x:" % value
    if type(value) is bool or value is None:
        return b"T" if value else b"N" if value is None else b"F"
    return f"{type(value).__name__[0]}{value!r}:".encode()


def _children(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, Instance):
        inside = [*value.args, *value.kwargs.values(), *value.fields.values(), value.state]
        return [*inside, *(part for part in (value.items, value.entries) if part is not None)]
    return value.fields.values() if isinstance(value, Global) else ()
