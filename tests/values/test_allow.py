"""The allow-list: plain data and allowed names load, and a pickle finds no way to anything else."""

from __future__ import annotations

import collections
import copyreg
import datetime
import importlib
import io
import pickle
import pickletools
import sys
import uuid
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "zoo"))

from journey import same
from kinds_of_values import Kind, make, usual, view

from vstate import Memory
from vstate.errors import CannotLoad, InvalidInput
from vstate.repo.objects import Objects
from vstate.values.allow import ALWAYS, Allow
from vstate.values.entry import Entry, decode_value, encode_value
from vstate.values.loading import load_any
from vstate.values.pickling import dumps, loads

NOTHING = Allow([])
APP = Allow(["guestapp"])

SOURCES = {
    "__init__.py": """
        import os
        from guestapp.models import Plan
        """,
    "models.py": """
        import enum, functools, subprocess
        from dataclasses import dataclass, field
        from functools import partial
        from os import system
        import guestlib
        from guestlib import Base

        class Colour(enum.Enum):
            RED = 1
            BLUE = 2

        @dataclass
        class Plan(Base):
            goal: str
            steps: list = field(default_factory=list)
            limit = 5

            class Inner:
                pass

            @classmethod
            def make(cls, goal):
                return cls(goal)

            def title(self):
                return self.goal.upper()

        class Number(int):
            pass

        class Config:
            def __init__(self):
                self.debug = False
                self.items = []
            def __reduce__(self):
                return "CONFIG"
            def append(self, item):
                self.items.append(item)
            def __setitem__(self, key, value):
                self.items.append(key)

        def double(x):
            return 2 * x

        @functools.lru_cache
        def remembered(x):
            return x

        CONFIG = Config()
        QUEUE = []
        shell = partial(subprocess.run, shell=True)
        grow = QUEUE.append
        """,
    "loud.py": """
        raise SystemExit("imported")
        """,
    "__main__.py": """
        raise SystemExit("run")
        """,
}
LIBRARY = """
class Base:
    @classmethod
    def build(cls):
        return cls
    def describe(self):
        return "base"
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module guestapp.models of a program, with the usual imports of a module."""
    place = tmp_path_factory.mktemp("guest")
    (place / "guestapp").mkdir()
    for name, source in SOURCES.items():
        lines = [line.removeprefix(" " * 8) for line in source.splitlines()]
        (place / "guestapp" / name).write_text("\n".join(lines))
    (place / "guestlib.py").write_text(LIBRARY)
    sys.path.insert(0, str(place))
    yield importlib.import_module("guestapp.models")
    sys.path.remove(str(place))
    for name in [name for name in sys.modules if name.startswith("guest")]:
        del sys.modules[name]


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def named(module: str, name: str) -> bytes:
    """Opcodes that push the object of this name."""
    return text(module) + text(name) + b"\x93"


def pickled(*opcodes: bytes) -> bytes:
    return b"\x80\x05" + b"".join(opcodes) + b"."


@pytest.mark.slow
def test_nothing_is_allowed_that_no_plain_data_needs() -> None:
    """All but a few of the names that are always allowed stand in the pickles of the kinds of values."""
    seen = set()
    kinds = (list, dict, set, frozenset, tuple, bytearray, bytes, str, int, float, bool, complex)
    others = [object(), memoryview(b"a"), datetime.tzinfo(), *map(collections.defaultdict, kinds)]
    for value in [*map(make, usual()), uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe), *others]:
        texts = [
            argument for _, argument, _ in pickletools.genops(dumps(value)[0]) if isinstance(argument, str)
        ]
        seen |= {f"{module}.{name}" for module in texts for name in texts}
    unseen = {name for name in ALWAYS - seen if not name.startswith("pathlib.")}
    # Pickles of protocol 0 and 1 call them, for objects and their subclasses.
    assert unseen == {"copyreg._reconstructor", "copyreg.__newobj__"}


def test_an_object_loads() -> None:
    """A bare object(), as programs use for a mark, is of that type again, of each protocol."""
    plain = named("builtins", "object")
    for data in (
        dumps(object())[0],
        pickled(named("copyreg", "_reconstructor"), plain, plain, b"N\x87R"),
        pickled(named("copyreg", "__newobj__"), plain, b"\x85R"),
    ):
        assert type(loads(data, allow=NOTHING)) is object


# Patterns


NAMES = ["app.Plan", "app.models.Plan", "app.models.Plan.make", "app.models.deep.Plan", "app.models2.Plan"]
NAMES += ["app.models.Planet", "app.models.x", "app.modelx.Pm.x", "app", "apps.Plan", "my.app.Plan", "App.x"]


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("app", NAMES[:9]),
        ("app.models", [*NAMES[1:4], *NAMES[5:7]]),
        ("app.models.Plan", ["app.models.Plan", "app.models.Plan.make"]),
        ("app.*", NAMES[:8]),
        ("app.*.Plan", ["app.models.Plan", "app.models.deep.Plan", "app.models2.Plan"]),
        (
            "app.model?.P[lm]*",
            ["app.models.Plan", "app.models.Plan.make", "app.models.Planet", "app.modelx.Pm.x"],
        ),
    ],
)
def test_patterns(pattern: str, covered: list[str]) -> None:
    """Without wildcards a pattern is a name with all below it; with them, fnmatch decides."""
    assert [name for name in NAMES if Allow([pattern]).names(name)] == covered


@pytest.mark.parametrize(
    "pattern", ["*", "*.Plan", "app*", "?", "", ".", "app.", "app..x", "a b", ".app", 7, "a\n"]
)
def test_patterns_that_are_refused(pattern: Any) -> None:
    """The package has to be spelled out, and a name has to be one."""
    with pytest.raises(InvalidInput):
        Allow([pattern])


def test_an_allow_list_is_a_value() -> None:
    """One text is one pattern; equal lists are equal, and go into a pickle."""
    assert Allow("app.x") == Allow(["app.x"]) == pickle.loads(pickle.dumps(Allow(["app.x"])))
    assert hash(Allow(["a", "b"])) == hash(Allow(("a", "b")))
    assert Allow(["a"]) != Allow(["b"])
    assert repr(Allow(["a.*"])) == "Allow(['a.*'])"
    assert not NOTHING.names("")


@pytest.mark.parametrize(
    "patterns",
    [["guestapp"], ["guestapp.*"], ["guestapp.models"], ["guestapp.models.Plan", "guestapp.models.Colour"]]
    + [["other", "guestapp.*.Plan", "guestapp.*.Colour", "guestapp.*.Inner"]],
)
def test_a_program_names_its_classes(app: ModuleType, patterns: list[str]) -> None:
    """Objects, members of enumerations, nested classes and class methods load when a pattern covers them."""
    value = {"plan": app.Plan("go", ["a"]), "colour": app.Colour.BLUE, "inner": [app.Plan.Inner]}
    data, _ = dumps(value)
    again = loads(data, allow=Allow(patterns))
    assert again == value
    assert again["colour"] is app.Colour.BLUE
    with pytest.raises(CannotLoad, match="`allow` does not name it") as caught:
        loads(data, allow=NOTHING)
    assert caught.value.name == "guestapp.models.Plan"


def test_functions_and_methods(app: ModuleType) -> None:
    """Functions, wrapped ones and class methods are named like classes."""
    for value in (app.double, app.remembered):
        assert loads(dumps(value)[0], allow=APP) is value
    assert loads(pickle.dumps(app.Plan.make, 5), allow=APP)("x") == app.Plan("x")
    assert loads(dumps(app.CONFIG)[0], allow=APP) is app.CONFIG


@pytest.mark.parametrize(
    "kind", [kind for kind in usual() if "sentinel" not in kind.source], ids=lambda kind: kind.source[:60]
)
def test_it_loads_as_without_a_list(kind: Kind) -> None:
    """Every kind of value loads as without a list, with the names of its pickle that no plain data needs."""
    data, buffers = dumps(make(kind))
    found: list[str] = []
    value, _ = load_any(data, [bytearray(buffer) for buffer in buffers], names=found)
    names = set(found) - ALWAYS
    if any(name.startswith(("cloudpickle.", "vstate.")) for name in names):
        names |= {"cloudpickle", "builtins", "types"}
    own = {"kinds_of_values", "numpy", "pandas"} if any("." in name for name in names) else set()
    again = loads(data, [bytearray(buffer) for buffer in buffers], allow=Allow(names | own))
    assert type(again) is type(value)
    assert same(view(kind, again), view(kind, value))


def test_values_of_entries() -> None:
    """decode_value passes the list on."""
    reader = Objects(Memory())
    entry = Entry.decode(encode_value({"when": datetime.date(2026, 1, 2)}).entry)
    assert decode_value(entry, reader, allow=NOTHING).value == {"when": datetime.date(2026, 1, 2)}
    entry = Entry.decode(encode_value(collections.UserList([1])).entry)
    with pytest.raises(CannotLoad, match=r"collections\.UserList"):
        decode_value(entry, reader, allow=NOTHING)
    assert decode_value(entry, reader, allow=Allow(["collections"])).value == [1]
    assert decode_value(entry, reader).value == [1]


# Refused

EVERYTHING_HERE = Allow(["guestapp", "guestlib.Base.describe", "numpy"])

DANGEROUS = [
    ("builtins", "eval", "exec", "compile", "__import__", "open", "input", "getattr", "setattr", "delattr"),
    ("builtins", "globals", "locals", "vars", "type", "super", "property", "map", "filter", "memoryview"),
    *(("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen")),
    *(("functools", "partial", "reduce"), ("operator", "attrgetter"), ("_operator", "methodcaller")),
    *(("importlib", "import_module"), ("runpy", "run_path"), ("pickle", "loads"), ("_pickle", "loads")),
    *(("copyreg", "add_extension", "pickle"), ("codecs", "encode"), ("types", "FunctionType", "CodeType")),
    *(("ctypes", "CDLL"), ("weakref", "ref"), ("collections", "namedtuple", "UserDict")),
    *(("datetime", "sys"), ("decimal", "getcontext"), ("fractions", "_operator"), ("uuid", "getnode", "os")),
    *(("pathlib", "os"), ("cloudpickle", "loads")),
    ("cloudpickle.cloudpickle", "subimport", "_make_function", "_builtin_type", "_make_skeleton_class"),
    ("vstate.values.builders", "stored_code", "stored_function", "set_function", "make_class", "set_class"),
]
"""A module, and names in it."""


def each_name(rows: list[tuple[str, ...]]) -> Any:
    return pytest.mark.parametrize(("module", "name"), [(row[0], name) for row in rows for name in row[1:]])


@each_name(DANGEROUS)
def test_what_runs_code_is_never_implied(app: ModuleType, module: str, name: str) -> None:
    """None of these names comes with plain data or with another package."""
    named_in_text = (f"c{module}\n{name}\n.".encode(), f"(i{module}\n{name}\n.".encode())
    for data in (pickled(named(module, name)), *named_in_text):
        with pytest.raises(CannotLoad) as caught:
            loads(data, allow=EVERYTHING_HERE)
        assert "allow" in caught.value.reason or name == "getattr"


OUTSIDE = [
    ("guestapp", "os.system", "os", "models", "models.Plan"),
    ("guestapp.models", "subprocess.Popen", "subprocess", "system", "partial", "shell", "grow", "QUEUE"),
    ("guestapp.models", "QUEUE.append", "field", "dataclass", "Base", "guestlib.Base", "Plan.build"),
    ("guestapp.models", "Plan.__class__", "Plan.__base__", "Plan.__mro__", "Plan.mro", "Plan.__subclasses__"),
    ("guestapp.models", "Plan.__init_subclass__", "Plan.__reduce_ex__", "Plan.__dict__", "Plan.__doc__"),
    ("guestapp.models", "Plan.limit", "Plan.title.__globals__", "Plan.title.__code__"),
    ("guestapp.models", "Plan.make.__func__.__globals__", "double.__globals__", "double.__builtins__"),
    ("guestapp.models", "double.__call__", "remembered.__wrapped__", "Number.from_bytes"),
    ("guestapp.models", "Number.__base__.from_bytes", "CONFIG.items", "CONFIG.append", "__dict__"),
    ("guestapp.models", "__builtins__", "__loader__", "__loader__.load_module", "__class__", "nothing"),
    ("guestapp.models", "Plan.nothing", "", "Plan.", "<lambda>"),
    *(("guestapp.__main__", "x"), ("guestapp..models", "Plan"), ("guestapp/models", "Plan")),
    *(("guestapp.models\n", "Plan"), ("numpy", "testing.os.system", "os.system"), ("numpy.testing", "os")),
    ("builtins", "dict.fromkeys", "str.format", "object.__subclasses__", "object.__reduce_ex__"),
    *(("datetime", "datetime.now"), ("pathlib", "Path.write_bytes", "Path.cwd")),
]


@each_name(OUTSIDE)
def test_no_name_walks_out(app: ModuleType, module: str, name: str) -> None:
    """A module's imports, instances and inherited names are not in it; a name leads through classes only."""
    with pytest.raises(CannotLoad):
        loads(pickled(named(module, name)), allow=EVERYTHING_HERE)


def test_a_refused_name_is_not_imported(app: ModuleType) -> None:
    """Importing runs a module, so nothing is imported that is not allowed, and no __main__ of a package."""
    for name in ("guestapp.loud", "guestapp.__main__", "this", "antigravity"):
        with pytest.raises(CannotLoad):
            loads(pickled(named(name, "x")), allow=Allow(["guestapp.models", "guestapp.__*", "guestapp.l*d"]))
        assert name not in sys.modules


def test_what_inherits_is_named_by_its_owner(app: ModuleType) -> None:
    """A method of a base class from elsewhere is allowed where a pattern covers the base class."""
    data = pickled(named("guestapp.models", "Plan.describe"))
    with pytest.raises(CannotLoad, match=r"guestlib\.Base\.describe"):
        loads(data, allow=APP)
    assert loads(data, allow=Allow(["guestapp", "guestlib"])) is app.Base.describe


@pytest.fixture
def extension(app: ModuleType) -> Iterator[bytes]:
    """A class with a code of its own, which some unpickler in this process has looked up already."""
    copyreg.add_extension("guestlib", "Base", 240)
    data = b"\x80\x02\x82\xf0."
    assert pickle.loads(data) is app.Base
    yield data
    copyreg.remove_extension("guestlib", "Base", 240)


def test_extension_codes(extension: bytes) -> None:
    """The C unpickler returns the cached class of a code unchecked; with an allow-list no code counts."""

    class Strict(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise AssertionError("never asked")

    assert Strict(io.BytesIO(extension)).load().__name__ == "Base"
    for allow in (NOTHING, Allow(["guestlib"])):
        for data in (extension, b"\x80\x02\x83\xf0\0.", b"\x80\x02\x84\xf0\0\0\0."):
            with pytest.raises(CannotLoad, match="extension code 240"):
                loads(data, allow=allow)
    with pytest.raises(CannotLoad):
        loads(b"\x80\x02\x82\xf1.", allow=NOTHING)  # a code that the process never registered
    assert loads(dumps([1, uuid.UUID(int=1)])[0], allow=NOTHING) == [1, uuid.UUID(int=1)]


# Edits by a pickle

SLOTS = b"N}" + text("title") + named("builtins", "list") + b"s\x86"
"""A state that sets the attribute `title`, as BUILD takes it for objects with slots."""


@each_name(
    [
        ("guestapp.models", "Plan", "double", "Plan.make", "Colour", "CONFIG"),
        *(("collections", "Counter"), ("fractions", "Fraction"), ("uuid", "UUID"), ("pathlib", "PurePath")),
        *(("copyreg", "_reconstructor"), ("builtins", "getattr", "dict"), ("datetime", "datetime")),
        ("array", "_array_reconstructor"),
    ]
)
@pytest.mark.parametrize("state", [SLOTS, b"}" + SLOTS[2:-1]], ids=["slots", "dict"])
def test_nothing_is_edited_by_build(app: ModuleType, module: str, name: str, state: bytes) -> None:
    """BUILD on a class, a function or another thing of the program sets no attribute of it."""
    target = APP.find(module, name) if name != "getattr" else getattr
    before = dict(vars(target)) if hasattr(target, "__dict__") else {}
    with pytest.raises(CannotLoad):
        loads(pickled(named(module, name), state, b"b"), allow=APP)
    with pytest.raises(CannotLoad):  # through the memo, and behind something else that may be edited
        loads(pickled(named("uuid", "UUID"), b"0", named(module, name), b"\x940h\0", state, b"b"), allow=APP)
    assert (dict(vars(target)) if hasattr(target, "__dict__") else {}) == before


def test_without_the_rule_a_class_would_be_edited(app: ModuleType) -> None:
    """The plain unpickler does set attributes of classes: the rule is needed."""
    pickle.loads(pickled(named("guestapp.models", "Plan.Inner"), SLOTS, b"b"))
    assert app.Plan.Inner.title is list
    del app.Plan.Inner.title


def test_members_of_enumerations_are_not_edited(app: ModuleType) -> None:
    """A member is one object for the whole program, however a pickle came to it."""
    call = named("guestapp.models", "Colour") + b"K\x01\x85R"
    lookup = named("builtins", "getattr") + named("guestapp.models", "Colour") + text("RED") + b"\x86R"
    state = b"}" + text("_value_") + b"K\x05s"
    for data in (call, lookup, named("guestapp.models", "Colour.RED")):
        assert loads(pickled(data), allow=APP) is app.Colour.RED
        with pytest.raises(CannotLoad, match="whole process"):
            loads(pickled(data, state, b"b"), allow=APP)
    assert app.Colour.RED.value == 1


@pytest.mark.parametrize("edit", [b"K\x01a", b"(K\x01e", b"K\x01K\x02s", b"(K\x01K\x02u", b"(K\x01\x90"])
def test_nothing_is_added_to_what_was_found(app: ModuleType, edit: bytes) -> None:
    """APPEND, SETITEM and their like work on new objects of the pickle, not on named ones."""
    with pytest.raises(CannotLoad):
        loads(pickled(named("guestapp.models", "CONFIG"), edit), allow=APP)
    assert app.CONFIG.items == []


def test_getattr_reads_members_of_allowed_classes_only(app: ModuleType) -> None:
    """Enumerations and zones are pickled with getattr; it fails on anything else, and cannot be a value."""

    def get(owner: bytes, name: str) -> bytes:
        return pickled(named("builtins", "getattr"), owner, text(name), b"\x86R")

    plan = named("guestapp.models", "Plan")
    assert loads(get(plan, "make"), allow=APP) == app.Plan.make
    for owner, name in [
        (plan, "__class__"),
        (plan, "mro"),
        (plan, "build"),
        (plan, "limit"),
        (plan + text("x") + b"\x85R", "title"),
        (named("builtins", "dict"), "fromkeys"),
        (named("builtins", "object"), "__subclasses__"),
        (named("builtins", "getattr"), "__self__"),
        (named("guestapp.models", "double"), "__globals__"),
        (text("x"), "format"),
        (b"]", "append"),
    ]:
        with pytest.raises(CannotLoad):
            loads(get(owner, name), allow=APP)
    with pytest.raises(CannotLoad):
        loads(pickled(named("builtins", "getattr")), allow=APP)
    assert loads(get(text("x"), "upper"), allow=Allow(["builtins.getattr"]))() == "X"


def test_times_in_a_zone() -> None:
    """A time with a ZoneInfo loads where `zoneinfo` is allowed, and nowhere else."""
    when = datetime.datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    data, _ = dumps(when)
    again = loads(data, allow=Allow(["zoneinfo"]))
    assert (again, again.tzinfo) == (when, when.tzinfo)
    with pytest.raises(CannotLoad, match="zoneinfo"):
        loads(data, allow=NOTHING)


def test_by_value(app: ModuleType) -> None:
    """A function or class by value is code, and loads only where cloudpickle itself is allowed."""
    function = dumps(lambda x: x + 1)
    kind = dumps(type("Made", (), {"__module__": "__main__", "x": 1}))
    for allow in (NOTHING, EVERYTHING_HERE, Allow(["__main__", "builtins", "types"])):
        for data in (function, kind):
            with pytest.raises(CannotLoad, match="cloudpickle"):
                loads(*data, allow=allow)
    assert loads(*function, allow=Allow(["cloudpickle"]))(1) == 2
    assert loads(*kind, allow=Allow(["cloudpickle", "builtins"])).x == 1


def test_a_package_with_a_gadget() -> None:
    """A pattern is trust in all it covers: `numpy` has a function that runs text; arrays need none."""
    numpy = pytest.importorskip("numpy")
    ran: dict[str, Any] = {}
    run = named("numpy.testing._private.utils", "runstring") + text("ran = 1") + b"}\x94\x86Rh\0\x86"
    ran = loads(pickled(run), allow=Allow(["numpy"]))[1]
    assert ran["ran"] == 1
    parts = ("numeric._frombuffer", "multiarray._reconstruct", "multiarray.scalar")
    narrow = Allow(["numpy.ndarray", "numpy.dtype", *(f"numpy._core.{part}" for part in parts)])
    with pytest.raises(CannotLoad, match="runstring"):
        loads(pickled(run), allow=narrow)
    for value in (numpy.arange(5000.0), numpy.arange(3), numpy.array(["a"], object), numpy.float32(1.5)):
        data, buffers = dumps(value)
        again = loads(data, [bytearray(buffer) for buffer in buffers], allow=narrow)
        assert again.dtype == value.dtype
        assert numpy.array_equal(again, value)


REFUSED: list[tuple[bytes, str]] = [
    # Protocol 2 spells builtins as Python 2 did; the list has to allow that spelling.
    *(
        (b"\x80\x02c" + name + b"\n.", "allow")
        for name in (b"__builtin__\neval", b"copy_reg\n_reconstructor")
    ),
    # A pickle that refers to something outside of itself.
    *((b"\x80\x05" + before + b"K\x01Q.", "persistent id") for before in (b"", named("uuid", "UUID") + b"0")),
    (b"\x80\x05Pname\n.", "persistent id"),
    # Malformed.
    *((data, ".") for data in (b"", b"garbage", b"\x80\x05", b"\x80\x05]", b"(" * 50 + b".", b"\x80\x05b.")),
    # An error of an allowed class, with the name.
    (pickled(named("guestapp.models", "Plan"), b")R"), r"guestapp\.models\.Plan.*TypeError"),
]


@pytest.mark.parametrize(("data", "said"), REFUSED)
def test_other_refusals(app: ModuleType, data: bytes, said: str) -> None:
    """Each raises CannotLoad, and says why."""
    with pytest.raises(CannotLoad, match=said):
        loads(data, allow=APP)


# With nothing allowed but plain data


def test_an_instance_can_be_made_odd() -> None:
    """A pickle sets any attribute of its own objects: a Counter whose method is another allowed name."""
    state = b"}" + text("most_common") + named("builtins", "list") + b"s"
    made = loads(pickled(named("collections", "Counter"), b")R", state, b"b"), allow=NOTHING)
    assert type(made) is collections.Counter
    assert made.most_common is list
    assert collections.Counter.most_common is not list


def test_what_is_allowed_is_not_bounded(app: ModuleType) -> None:
    """A pickle may use memory, hold impossible dates, and import a codec or a name that a pattern covers."""
    small = pickled(named("builtins", "bytes"), b"J" + (50_000_000).to_bytes(4, "little"), b"\x85R")
    assert len(small) == 34
    assert len(loads(small, allow=NOTHING)) == 50_000_000
    odd = pickled(named("datetime", "datetime"), b"C\x0a\x07\xea\x01\x63\0\0\0\0\0\0", b"\x85R")
    assert loads(odd, allow=NOTHING).day == 99
    fraction = named("fractions", "Fraction") + b")\x81N}" + text("_numerator") + text("x") + b"s\x86b"
    assert loads(pickled(fraction), allow=NOTHING).numerator == "x"
    codec = pickled(named("builtins", "str"), b"C\x01a", text("cp1140"), b"\x86R")
    assert loads(codec, allow=NOTHING) == "/"
    assert "encodings.cp1140" in sys.modules
    with pytest.raises(SystemExit, match="imported"):
        loads(pickled(named("guestapp.loud", "x")), allow=APP)


def test_paths_are_only_names(tmp_path: Path) -> None:
    """Making a path touches no file."""
    target = tmp_path / "absent"
    assert loads(dumps(target)[0], allow=NOTHING) == target
    assert not target.exists()
