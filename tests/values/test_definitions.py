"""Classes and functions that are stored by value, and other versions of Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import vstate
from vstate import CannotLoad
from vstate.values import definitions
from vstate.values.entry import encode_value
from vstate.values.inert import Instance, read
from vstate.values.pickling import dumps, loads

# The reading and the writing of values, without the packages that only vstate's other layers need.
_PRELUDE = """
import json, sys, types
for name in ("vstate", "vstate.values"):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
sys.path.insert(0, sys.argv[2])
from vstate.errors import CannotLoad
from vstate.values.pickling import dumps, loads
path = sys.argv[3]
"""

_CLASSES = """
import enum
from dataclasses import dataclass, field

@dataclass
class Plan:
    goal: str
    steps: list = field(default_factory=list)
    def title(self):
        for step in self.steps:
            if step in {"a", "b"}:
                return f"{self.goal.upper()}: {step}"
        return helper(self.goal)

class Outer:
    class Inner:
        def name(self): return [type(self).__name__ for _ in range(2)][0]

class Colour(enum.Enum):
    RED = 1
    def shout(self): return self.name + "!"

def helper(text):
    try:
        return text["x"]
    except TypeError as error:
        return type(error).__name__
"""

_WRITE = """
import cloudpickle
values = {"plan": [Plan("go", ["a"])], "inner": Outer.Inner(), "colour": Colour.RED, "function": helper}
forms = {}
for name, value in values.items():
    data, buffers = dumps(value)
    forms[name] = [data.hex(), [bytes(buffer).hex() for buffer in buffers]]
    forms["old " + name] = [cloudpickle.dumps(value, 5).hex(), []]
json.dump(forms, open(path, "w"))
"""

_READ = """
used = {
    "plan": lambda plans: (plans[0].title(), plans[0].steps),
    "inner": lambda inner: inner.name(),
    "colour": lambda colour: colour.shout(),
    "function": lambda function: function(3),
}
for form, (data, buffers) in json.load(open(path)).items():
    try:
        value = loads(bytes.fromhex(data), [bytearray.fromhex(buffer) for buffer in buffers])
    except CannotLoad as error:
        print(form, "|", error)
    else:
        print(form, "|", used[form.removeprefix("old ")](value), flush=True)
"""

_RIGHT = {
    "plan": "('GO: a', ['a'])",
    "inner": "Inner",
    "colour": "RED!",
    "function": "TypeError",
}


def _pythons() -> dict[str, str]:
    """The interpreters that are installed, by their minor version."""
    found = {f"3.{sys.version_info.minor}": sys.executable}
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for minor in range(11, 15):
        version = f"3.{minor}"
        named = shutil.which(f"python{version}")
        for path in (*map(str, sorted(root.glob(f"{version}.*/bin/python"))), *([named] if named else ())):
            # A program of this name may only tell where the interpreter is.
            if (
                version not in found
                and subprocess.run([path, "--version"], capture_output=True).returncode == 0
            ):
                found[version] = path
    return found


def _run(python: str, code: str, path: Path) -> str:
    paths = [str(Path(vstate.__file__).parents[1]), str(Path(cloudpickle.__file__).parents[1]), str(path)]
    done = subprocess.run(
        [python, "-W", "ignore", "-c", _PRELUDE + code, *paths], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.slow
def test_another_python_never_crashes(tmp_path: Path) -> None:
    """Each installed Python reads classes, members of enumerations and functions of each other one.

    A program with these classes gets objects of its own. Another one runs them on the same Python, and
    otherwise learns which Python wrote them. Values without a version are as safe.
    """
    pythons = _pythons()
    if len(pythons) < 2:
        pytest.skip(f"of Python 3.11 to 3.14 only {sys.executable} is installed")
    for writer, python in pythons.items():
        path = tmp_path / writer
        _run(python, _CLASSES + _WRITE, path)
        for reader, other in pythons.items():
            for classes in ("", _CLASSES):
                for line in _run(other, classes + _READ, path).splitlines():
                    form, _, outcome = line.partition(" | ")
                    if classes or reader == writer:
                        assert outcome == _RIGHT[form.removeprefix("old ")], (writer, reader, line)
                    elif form.startswith("old"):
                        assert "cannot load" in outcome, (writer, reader, line)
                    else:
                        assert f"Python {writer} wrote its bytecode" in outcome, (writer, reader, line)


def test_code_of_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other Python is installed, a magic number stands for it: the loader names the writer."""
    local = type("Local", (), {"__module__": "__main__", "x": 1})
    for value in (local(), local, lambda: 1, [{"f": lambda: 1}]):
        monkeypatch.setattr(definitions, "MAGIC", (3531).to_bytes(2, "little") + b"\r\n")
        data, buffers = dumps(value)
        monkeypatch.undo()
        with pytest.raises(CannotLoad, match=r"Python 3\.12 wrote its bytecode, which Python 3\.\d+ "):
            loads(data, [bytearray(buffer) for buffer in buffers])


def test_a_code_object() -> None:
    """A code object by itself is checked as well, wherever it is in the value."""
    code = compile("1 + f(2)", "x", "eval")
    data, _ = dumps([code])
    assert eval(loads(data)[0], {"f": abs}) == 3
    other = data.replace(definitions.MAGIC, (3571).to_bytes(2, "little") + b"\r\n")
    with pytest.raises(CannotLoad, match=r"__main__\.<module>.*Python 3\.13 wrote"):
        loads(other)


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
    for seed in (1, 2, 3):
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


_WRAPPED = """
import sys
from functools import cache, cached_property, lru_cache
from vstate import Versioned
if sys.argv[1] == "write":
    class Plan:
        @cached_property
        def size(self): return 3
        @lru_cache(maxsize=7, typed=True)
        def double(self, number): return number * 2
    @cache
    def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
    state = Versioned(sys.argv[2])
    state["plan"], state["fib"] = Plan(), fib
    state.commit()
state = Versioned(sys.argv[2])
plan, fib = state["plan"], state["fib"]
print(plan.size, plan.double(4), fib(30), type(plan).double.cache_parameters(), fib.cache_info().currsize)
"""


@pytest.mark.slow
def test_functions_with_caches(run_python: Any, tmp_path: Path) -> None:
    """A cached property and a function of lru_cache, of `__main__`, work in a program that lacks them."""
    script = tmp_path / "agent.py"
    script.write_text(_WRAPPED)
    for verb in ("write", "read"):
        out = run_python(script, verb, tmp_path / "s")
        assert out == "3 8 832040 {'maxsize': 7, 'typed': True} 31\n"


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


def test_the_fields_without_the_class() -> None:
    """The data of an object is read without its class, and without its definition."""
    local = type("Local", (), {"__module__": "__main__"})
    value = local()
    value.goal = "go"
    data, buffers = dumps([value])
    found: Any = read(data, [bytes(len(buffer)) for buffer in buffers])
    assert isinstance(found[0], Instance)
    assert (found[0].type, found[0].fields) == ("__main__.Local", {"goal": "go"})


def test_a_pickle_of_the_form_before() -> None:
    """Classes inside the pickle itself, as cloudpickle writes them, load as they did."""
    local = type("Local", (), {"__module__": "__main__", "double": lambda self: self.x * 2})
    value = local()
    value.x = 4
    loaded = loads(cloudpickle.dumps(value, 5))
    assert loaded.double() == 8
