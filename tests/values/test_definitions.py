"""Classes and functions that are stored by value, and other versions of Python."""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard

import vstate
from vstate import CannotLoad, Disk, Versioned
from vstate.values import builders, evolution
from vstate.values.entry import encode_value
from vstate.values.pickling import dumps, loads

NEXT = (3450 + 50 * (sys.version_info.minor - 10)).to_bytes(2, "little") + b"\r\n"
"""The magic number of the next minor version."""
WROTE = rf"Python 3\.{sys.version_info.minor + 1} wrote its bytecode, which Python 3\.\d+ "


def test_code_of_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other Python is installed, a magic number stands for it: the loader names the writer."""
    local = type("Local", (), {"__module__": "__main__", "x": 1})
    for value in (local(), local, lambda: 1, [{"f": lambda: 1}]):
        monkeypatch.setattr(builders, "MAGIC", NEXT)
        data, buffers = dumps(value)
        monkeypatch.undo()
        with pytest.raises(CannotLoad, match=WROTE):
            loads(data, [bytearray(buffer) for buffer in buffers])


def test_a_code_object() -> None:
    """A code object by itself is checked as well, wherever it is in the value."""
    code = compile("1 + f(2)", "x", "eval")
    data, _ = dumps([code])
    assert eval(loads(data)[0], {"f": abs}) == 3
    with pytest.raises(CannotLoad, match=r"__main__\.<module>.*" + WROTE):
        loads(data.replace(builders.MAGIC, NEXT))


_SAME = """
import sys
from vstate import Memory, Versioned
from vstate.values.entry import encode_value
from typing import Generic, TypeVar
T = TypeVar("T")
class Box(Generic[T]):
    known = frozenset({"a", "b", "c"})
    def __init__(self, value): self.value = value
    def kind(self): return "plain" if self.value in {"x", "y", "z"} else Other
class Other(Box): pass
values = {"b": Box(1), "o": [Other(2)]}
try:
    from pydantic import BaseModel
except ImportError:
    pass
else:
    class Step(BaseModel):
        text: str = ""
        after: "list[Step]" = []
    class Plan(BaseModel):
        steps: list[Step] = []
    values["plan"] = Plan(steps=[Step(after=[Step()])])
print(encode_value(values).entry.hex())
"""


@pytest.mark.slow
def test_two_processes_define_the_same_class(run_python: Any, tmp_path: Path) -> None:
    """Equal source gives equal bytes in each process, from any directory, and for any hashes of texts."""
    entries = set()
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        script = tmp_path / str(seed) / "agent.py"
        script.write_text(_SAME)
        entries.add(run_python(script, seed=seed))
    assert len(entries) == 1


_ENDS = """
import atexit, sys
from vstate.values.entry import encode_value
class Plan:
    def title(self): return helper()
def helper(): return 1
first = encode_value([Plan(), helper]).entry
atexit.register(lambda: print(encode_value([Plan(), helper]).entry == first))
"""


@pytest.mark.slow
def test_a_definition_while_the_program_ends(run_python: Any, tmp_path: Path) -> None:
    """A class is the same at the end of its program, when the state looks for uncommitted changes."""
    script = tmp_path / "agent.py"
    script.write_text(_ENDS)
    assert run_python(script) == "True\n"


def test_a_definition_is_stored_once() -> None:
    """A thousand keys with objects of one class hold one definition among them."""
    local = type("Local", (), {"__module__": "__main__", "text": "x" * 5000})
    objects: dict[Any, Any] = {}
    entries = []
    for number in range(1000):
        value = local()
        value.number = number
        encoded = encode_value(value)
        entries.append(encoded.entry)
        objects.update(encoded.objects)
    assert sum(len(new.body) for new in objects.values()) < 200_000
    assert max(map(len, entries)) < 500


def test_classes_of_one_process_stay_apart() -> None:
    """Two classes with equal definitions are two classes, and each object comes back with its own."""

    def make() -> type:
        class Local:
            pass

        return Local

    first, second = make(), make()
    for cls in (first, second, first):
        data, buffers = dumps([cls(), cls])
        loaded, again = loads(data, [bytearray(buffer) for buffer in buffers])
        assert type(loaded) is again is cls


def test_a_reader_makes_a_class_once() -> None:
    """If the class changed between two values, the reader has the definition of the first that it reads."""
    local: Any = type("Local", (), {"__module__": "__main__", "limit": 5})
    stored = []
    for local.limit in (5, 9):
        data, buffers = dumps(local())
        stored.append((data, [bytearray(buffer) for buffer in buffers]))
    for order, limit in ((stored, 5), (stored[::-1], 9)):
        builders.by_id.clear()
        read = [loads(*value) for value in order]
        assert [value.limit for value in read] == [limit, limit]


# Globals


def _main(source: str) -> dict[str, Any]:
    """The names of a program that is not this one, so that its definitions are needed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(source, names)
    return names


_BAD = """
class Bad:
    def __init__(self, n): self.n = n
    def __reduce__(self): return make_bad, (self.n,)
def make_bad(n):
    if n < 0: raise ValueError("negative")
    return Bad(n)
"""

_USES = """
class Agent:
    def __init__(self): self.x = 1
    def run(self): return use()
def use(): return VALUE
"""

GO_ALONG = {
    "None": "VALUE = None",
    "a boolean": "VALUE = True",
    "a number": "VALUE = 2.5",
    "a decimal number": "from decimal import Decimal; VALUE = Decimal('1.5')",
    "an infinite number": "VALUE = float('inf')",
    "a module": "import json as VALUE",
    "a submodule": "import os.path as VALUE",
    "an imported function": "from json import dumps as VALUE",
    "an imported class": "from fractions import Fraction as VALUE",
    "an imported list": "from site import PREFIXES; VALUE = 1",
    "a builtin": "VALUE = len",
    "a method of a class": "VALUE = dict.fromkeys",
    "a type with parameters": "VALUE = dict[str, int] | None",
    "a member of an enumeration": "from http import HTTPStatus; VALUE = HTTPStatus.OK",
    "a logger": "import logging; VALUE = logging.getLogger('x')",
    "a partial function of numbers": "from functools import partial; VALUE = partial(pow, 2)",
    "a cached function": "import functools; VALUE = functools.cache(len)",
    "a named text": "__vstate_globals__ = ('VALUE',); VALUE = 'text'",
    "a named container": "__vstate_globals__ = ('VALUE',); VALUE = {'a': [1]}",
    "an imported method of an object": "from random import choice; VALUE = 1",
    "an imported name of a special form": "from typing import Any as VALUE",
    "a type of its name": "import typing; VALUE = typing.Callable[[int], typing.List[str]]",
    "a number of Python's own class": "from fractions import Fraction; VALUE = Fraction(1, 3)",
    "one name without a tuple": "__vstate_globals__ = 'VALUE'; VALUE = [1]",
}

STAY = {
    "a text": "VALUE = 'sk-' + 'secret'",
    "bytes": "VALUE = b'sk-' + b'secret'",
    "a list": "VALUE = ['sk-' + 'secret'] * 1000",
    "a dict": "VALUE = {'key': 'sk-' + 'secret'}",
    "a tuple": "VALUE = (1, 'sk-' + 'secret')",
    "an object": "Config = type('Config', (), {}); VALUE = Config(); VALUE.key = 'sk-' + 'secret'",
    "a partial function of a text": "from functools import partial; VALUE = partial(print, 'sk-' + 'secret')",
    "an attribute of a partial function": "import functools; VALUE = functools.partial(pow, 2)\n"
    "VALUE.key = 'sk-' + 'secret'",
    "a number with attributes": "Number = __import__('test_definitions').Number; VALUE = Number(3)\n"
    "VALUE.key = 'sk-' + 'secret'",
    "an annotated type": "from typing import Annotated; VALUE = Annotated[int, {'key': 'sk-' + 'secret'}]",
    "a literal": "from typing import Literal; VALUE = Literal['sk-' + 'secret']",
    "the text of a type": "VALUE = list['sk-' + 'secret']",
    "an optional text": "from typing import Optional; VALUE = Optional['sk_' + 'secret']",
    "a text in a nested type": "VALUE = dict[str, list['sk-' + 'secret'] | None]",
    "a variable with the text of a type": "from typing import TypeVar\n"
    "VALUE = TypeVar('VALUE', bound='sk_' + 'secret')",
    "a new type of a text": "from typing import NewType; VALUE = NewType('VALUE', list['sk-' + 'secret'])",
    "an object of an object in sys.modules": "import sys, types\n"
    "sys.modules['settings'] = types.SimpleNamespace(VALUE={}, key='sk-' + 'secret')\n"
    "from settings import VALUE",
    "an object of a module of another name": "import sys, types\n"
    "sys.modules['settings'] = types.ModuleType('prod')\n"
    "sys.modules['settings'].VALUE, sys.modules['settings'].key = {}, 'sk-' + 'secret'\n"
    "from settings import VALUE",
    "a module of another name": "import types; VALUE = types.ModuleType('x'); VALUE.key = 'sk-' + 'secret'",
    "a method of an object": "VALUE = ['sk-' + 'secret'].append",
    "a generator": "VALUE = (c for c in 'sk-' + 'secret')",
    "a pattern": "import re; VALUE = re.compile('sk-' + 'secret')",
    "a path": "from pathlib import Path; VALUE = Path('sk-' + 'secret')",
    "a lock": "import threading; VALUE = threading.Lock()",
    "a pool": "from concurrent.futures import ThreadPoolExecutor; VALUE = ThreadPoolExecutor()",
    "an open file": "import os; VALUE = open(os.devnull)",
    "a queue": "import queue; VALUE = queue.Queue()",
    "a context variable": "from contextvars import ContextVar; VALUE = ContextVar('VALUE')",
    "a socket": "import socket; VALUE = socket.socket()",
    "a connection": "import sqlite3; VALUE = sqlite3.connect(':memory:')",
    "a function over a lock": "import threading; VALUE = (lambda lock: lambda: lock)(threading.Lock())",
}


class Number(int):
    """A number that can have attributes."""


def _stored(value: Any) -> tuple[bytes, Any]:
    """All bytes that are stored for a value, and the value as another process loads it."""
    data, buffers = dumps(value)
    copies = [bytearray(buffer) for buffer in buffers]
    builders.by_id.clear()  # else a class of this process stands for the stored one
    builders.undefined_classes.clear()
    return data + b"".join(copies), loads(data, copies)


@pytest.mark.parametrize("source", GO_ALONG.values(), ids=GO_ALONG)
def test_a_global_that_goes_along(source: str) -> None:
    """Code finds modules, definitions, numbers and named values in each process."""
    names = _main(source + _USES)
    for value in (names["use"], names["Agent"]().run):
        found, wanted = _stored(value)[1](), names["VALUE"]
        assert repr(found).partition(" at 0x")[0] == repr(wanted).partition(" at 0x")[0]


@pytest.mark.parametrize("source", STAY.values(), ids=STAY)
def test_a_global_that_stays(source: str) -> None:
    """Other values are not stored; the object is, and its code says which global it misses."""
    names = _main(source + _USES)
    for value in (names["use"], names["Agent"](), [names["Agent"]().run]):
        stored, loaded = _stored(value)
        assert b"secret" not in stored
        again, loaded = _stored(loaded)  # the second process stores the value too
        assert again == stored
        loaded = loaded[0] if isinstance(loaded, list) else getattr(loaded, "run", loaded)
        with pytest.raises(NameError, match=r"global 'VALUE' .* __vstate_globals__ = \('VALUE',\)"):
            loaded()
    assert _stored(names["Agent"]())[1].x == 1
    sys.modules.pop("settings", None)


@pytest.mark.parametrize("module", [types.ModuleType("other"), types.SimpleNamespace()])
def test_a_submodule_that_nobody_can_import(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `sys.modules` has under the name of a submodule goes along only if it is this module."""
    module.key = "sk-secret"
    monkeypatch.setitem(sys.modules, "json.hidden", module)
    assert b"sk-secret" not in _stored(_main("import json\ndef use(): return json.hidden")["use"])[0]


def test_an_unknown_global_is_a_name_error() -> None:
    """A name that nobody defined is no matter of the store."""
    loaded = _stored(_main("def use(): return VALUE, nothing\nVALUE = 'text'")["use"])[1]
    loaded.__globals__["VALUE"] = "here"
    with pytest.raises(NameError, match="name 'nothing' is not defined"):
        loaded()


@pytest.mark.parametrize("value", ["__import__('threading').Lock()", "Bad(-1)", "[Bad(1), Bad(-1)]"])
def test_a_named_global_that_cannot_be_stored(value: str) -> None:
    """The program asks for it, so the commit is refused with the name."""
    names = _main(f"{_BAD}__vstate_globals__ = ('VALUE',); VALUE = {value}" + _USES)
    state = Versioned()
    state["x"] = names["Agent"]()
    with pytest.raises(vstate.Unpicklable, match="the global VALUE, which __vstate_globals__ names"):
        state.commit()
    state["x"] = names["use"]
    with pytest.raises(vstate.Unpicklable, match=r"the global VALUE, which|make_bad: ValueError"):
        state.commit()
    state.discard()


CHANGES = {
    "a number": ("VALUE = 1", "VALUE = 2"),
    "a counter that the code counts": ("VALUE = 1", "use.__globals__['VALUE'] += 1"),
    "a number becomes a text": ("VALUE = None", "VALUE = 'text'"),
    "a text": ("VALUE = 'a'", "VALUE = 'b'"),
    "a named text": ("__vstate_globals__ = ('VALUE',); VALUE = 'a'", "VALUE = 'b'"),
    "a dict": ("VALUE = {}", "VALUE['a'] = 1"),
    "a lock": ("import threading; VALUE = threading.Lock()", "VALUE = 3"),
}


@pytest.mark.parametrize(("source", "change"), CHANGES.values(), ids=CHANGES)
def test_a_changed_global_is_no_change(source: str, change: str) -> None:
    """Neither a function nor an object changes with a global that its code uses."""
    names = _main(source + _USES)
    state = Versioned()
    state["function"], state["object"] = names["use"], names["Agent"]()
    assert state.commit()
    exec(change, names)
    assert state.commit() is None
    state["object"].x = 2
    assert state.status().keys() == {"object"}
    state.commit()


def test_a_rotated_key_is_not_in_the_store(tmp_path: Path) -> None:
    """No row of the store has a key that methods use, before and after it is rotated."""
    keys = [f"sk-{number}-secret" for number in range(3)]
    names = _main("KEY = ''\nHEADERS = {}\ndef headers(): return {**HEADERS, 'key': KEY}" + _USES)
    names["VALUE"] = names["headers"]
    state = Versioned(Disk(tmp_path))
    state["agent"] = names["Agent"]()
    for number, names["KEY"] in enumerate(keys):
        names["HEADERS"]["Authorization"] = names["KEY"]
        state["agent"].x, state["function"] = number, [names["headers"], number]
        assert state.commit()
        assert state["agent"].run()()["Authorization"] == names["KEY"]
    rows = [row for _, row in state.store.items()]
    rows += [zstandard.decompress(row[1:]) for row in rows if row[1:5] == b"\x28\xb5\x2f\xfd"]
    assert any(b"Agent" in row for row in rows)
    assert not [key for key in keys for row in rows if key.encode() in row]


# Classes without a definition

UNDEFINED = {
    "a lock": "class Agent:\n lock = threading.Lock()",
    "a default that is a lock": "class Agent:\n def run(self, lock=threading.Lock()): pass",
    "a lock of another class": "class Lock:\n lock = threading.Lock()\nclass Agent:\n def run(self): Lock()",
    "a member that is a lock": "class Kind(enum.Enum): LOCK = threading.Lock()\nclass Agent: kind = Kind",
    "a value that does not load": "class Agent: registry = {'bad': Bad(-1)}",
    "an attribute of a helper": "def helper(): pass\nhelper.bad = Bad(-1)\n"
    "class Agent:\n def run(self): return helper()",
    "a value of a closure": "def make(bad):\n class Agent:\n  def run(self): return bad\n return Agent\n"
    "Agent = make(Bad(-1))",
    "an object that is a name": "class Name:\n def __reduce__(self): return 'NONE'\n"
    "NONE = vars(sys.modules['__main__'])['NONE'] = Name()\nclass Agent: none = NONE",
    "members that its own function makes": "class Kind(ipaddress.IPv4Address, enum.Enum): A = '1.2.3.4'\n"
    "class Agent: kind = Kind",
    "members with slots": "from dataclasses import dataclass\n@dataclass(slots=True)\nclass Body: mass: int\n"
    "class Kind(Body, enum.Enum): A = 1\nclass Agent: kind = Kind",
}


@pytest.fixture
def main() -> Any:
    """The names of `__main__`, without those that a test adds."""
    names = vars(sys.modules["__main__"])
    before = dict(names)
    yield names
    names.clear()
    names.update(before)


@pytest.mark.parametrize("source", UNDEFINED.values(), ids=UNDEFINED)
def test_a_class_without_a_definition(source: str, main: Any) -> None:
    """Its objects are of its class in its own process and in a program that has it, and data elsewhere."""
    names = _main("import enum, ipaddress, sys, threading\n" + _BAD + source)
    state, value = Versioned(), names["Agent"]()
    state["x"], value.goal = [value], "go"
    state.commit()
    assert type(Versioned(state.store)["x"][0]) is names["Agent"]
    assert state.inert("x")[0].fields == {"goal": "go"}
    with pytest.raises(CannotLoad, match=r"Agent: it was stored without its definition"):
        _stored([value])
    main["Agent"] = names["Agent"]
    assert ("locals" in names["Agent"].__qualname__) or type(_stored([value])[1][0]) is names["Agent"]


def test_a_class_becomes_one_without_a_definition() -> None:
    """An attribute that does not load counts for the next value, and its removal for the one after that."""
    names = _main(_BAD + _USES.replace("VALUE", "make_bad.extra"))
    changes = {"class": names["Agent"], "helper": names["make_bad"]}
    for changed in changes.values():
        assert _stored(names["Agent"]())[1].x == 1
        changed.bad = names["Bad"](-1)
        with pytest.raises(CannotLoad, match="without its definition"):
            _stored(names["Agent"]())
        del changed.bad
    assert _stored(names["Agent"]())[1].x == 1


def test_two_classes_of_one_name_without_a_definition() -> None:
    """An object of either is refused, because nothing tells the classes apart."""
    first, second = (_main("import threading\n" + UNDEFINED["a lock"])["Agent"] for _ in range(2))
    state = Versioned()
    state["first"] = first()
    assert state.commit()
    state["second"] = second()
    with pytest.raises(vstate.Unpicklable, match="without its definition"):
        state.commit()
    state.discard()


class Plugin:
    """A base class that lists its subclasses."""

    known: ClassVar[list[str]] = []

    def __init_subclass__(cls, *, tag: str) -> None:
        Plugin.known.append(tag)


class Listing(type):
    """A metaclass that lists its classes."""

    known: ClassVar[list[str]] = []

    def __init__(cls, name: str, *_: Any) -> None:
        Listing.known.append(name)


@pytest.mark.parametrize("options", ["Plugin, tag='t'", "metaclass=Listing"])
def test_a_commit_leaves_no_trace(options: str) -> None:
    """Bases and metaclasses of modules learn of a class once, and not of the one that a commit tries."""
    names = _main(f"from test_definitions import Listing, Plugin\nclass Agent({options}): x = 1")
    before = list(Plugin.known), list(Listing.known), Plugin.__subclasses__()
    dumps(names["Agent"]())
    assert (Plugin.known, Listing.known, Plugin.__subclasses__()) == before
    _, loaded = _stored(names["Agent"]())
    assert (loaded.x, type(loaded).__name__) == (1, "Agent")
    assert (Plugin.known, Listing.known) == before[:2]


# Functions


def test_parts_of_a_stored_function_are_its_value() -> None:
    """A function that is a value keeps its defaults and closure; it is refused if these cannot be pickled."""
    names = _main("def make(text, *more):\n def call(end='!'): return text + end, more\n return call")
    assert _stored(names["make"]("a", [1]))[1]() == ("a!", ([1],))
    state = Versioned()
    state["call"] = names["make"]("a", [1])
    assert state.commit()
    state["call"] = names["make"]("b", [1])
    assert state.commit()
    state["call"] = names["make"](threading.Lock())
    with pytest.raises(vstate.Unpicklable, match="lock"):
        state.commit()
    state.discard()


def test_a_function_of_a_module_has_its_globals() -> None:
    """A lambda of a module that can be imported finds all globals of the module, and stores none."""
    stored, loaded = _stored(lambda: (GO_ALONG, threading))
    assert loaded() == (GO_ALONG, threading)
    assert loaded.__globals__ is globals()
    assert b"a named container" not in stored


class Moved:
    """The class of a program, in a module now."""


def test_a_class_of_main_that_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has the class in a module says so, and gets objects of that class."""
    monkeypatch.setattr(evolution, "_names", dict(evolution._names))
    made = _main(_USES)["Agent"]()
    assert type(_stored(made)[1]).__name__ == "Agent"
    vstate.renamed("__main__.Agent", Moved)
    loaded = _stored(made)[1]
    assert (type(loaded), loaded.x) == (Moved, 1)


def test_a_named_global_that_is_not_there_is_refused() -> None:
    """A typo in `__vstate_globals__` is told when the class is stored, and not where its code runs."""
    main = types.ModuleType("__main__")
    exec("LIMITS = [1]\nclass Bounded:\n    def limits(self): return LIMITS\n", main.__dict__)
    for named in (("LIMIST",), "LIMIST"):
        main.__vstate_globals__ = named  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="__vstate_globals__ names 'LIMIST', and the module has no such"):
            dumps(main.Bounded())
    main.__vstate_globals__ = ("LIMITS",)  # type: ignore[attr-defined]
    dumps(main.Bounded())
