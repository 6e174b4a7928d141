"""Forks: no call hangs in a forked child, whatever the other threads of its parent were doing."""

from __future__ import annotations

import ast
import asyncio
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from integrations.adapters import Adapter, OpenAI, Saver

import vstate
from vstate import (
    InvalidInput,
    Live,
    Memory,
    Versioned,
    VStateError,
    aio,
)
from vstate.kv import Cache, Prefixed, Tiered
from vstate.patterns import Journal
from vstate.values import builders, definitions, pickling

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


SECONDS = 60
"""After so many seconds a child counts as hanging, and shows where."""

Inside = Callable[[], object]
Call = Callable[[Inside], object]
"""A call of one kind. It calls the function in the middle, where the kind takes a function of the program."""


def nothing() -> None:
    """The function of a call that nothing happens in."""


def in_child(call: Inside) -> int:
    """Make the call in a forked child: 0 if it ended well, 1 if it raised, -SIGALRM if it hung."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(SECONDS)
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Gate:
    """Stops the first thread that comes through, in this process, until it may go on."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.closed = False
        self.reached = threading.Event()
        self.leave = threading.Event()

    def __call__(self) -> None:
        if self.closed and os.getpid() == self.process and not self.reached.is_set():
            self.reached.set()
            assert self.leave.wait(SECONDS)


@contextmanager
def stopped(gate: Gate, *calls: Inside) -> Iterator[None]:
    """In this block, a thread makes each of these calls, and one of them waits at the gate. Then all end."""
    gate.closed = True
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    try:
        assert gate.reached.wait(SECONDS)
        yield
    finally:
        gate.leave.set()
        for thread in threads:
            thread.join(SECONDS)


class Gated(Memory):
    """A Memory with a gate before each read, or before each write."""

    def __init__(self) -> None:
        self.reading, self.writing = Gate(), Gate()
        super().__init__()

    def get(self, key: str) -> bytes | None:
        self.reading()
        return super().get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        self.reading()
        return super().get_many(keys)

    def keys(self, prefix: str = "") -> Iterator[str]:
        self.reading()
        return super().keys(prefix)

    def present(self, keys: Iterable[str]) -> Set[str]:
        self.reading()
        return super().present(keys)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.writing()
        return super().transact(writes, expected)


def counted(state: Any, inside: Inside = nothing) -> None:
    """Count in a mapping, with the function in the middle."""
    state["n"] = state.get("n", 0) + 1
    inside()


def awaiting(work: Callable[[Inside], Coroutine[Any, Any, None]]) -> Call:
    """A call that runs this in an event loop of its own."""
    return lambda inside: asyncio.run(work(inside))


class Doing:
    """A value whose pickling calls a function."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside

    def __getstate__(self) -> dict[str, Any]:
        self.inside()
        return {}


def of_state(use: Callable[[Versioned, Inside], object]) -> Callable[[Gated], Call]:
    """Calls of a state of the store."""

    def kind(store: Gated) -> Call:
        state = Versioned(store, branch="main")
        return lambda inside: use(state, inside)

    return kind


def commit(state: Versioned, inside: Inside) -> None:
    remove = state.before_commit(lambda state: inside())
    try:
        counted(state)
        state.commit()
    finally:
        remove()


def pickled(state: Versioned, inside: Inside) -> None:
    state["value"] = Doing(inside)
    with suppress(VStateError):  # the function in the middle may use the state
        state.commit()


def transaction(state: Versioned, inside: Inside) -> None:
    with state.transaction():
        counted(state.namespace("space"), inside)


def live(store: Gated) -> Call:
    state = Live()
    return lambda inside: state.apply(lambda found: counted(found, inside))


def journal(store: Gated) -> Call:
    records: Any = Journal(Versioned(store).repo, "log")
    return lambda inside: records.append(lambda index: (inside(), ["record"])[1])


def lease(store: Gated) -> Call:
    state = Versioned(store, branch="main")
    names = count()

    def call(inside: Inside) -> None:
        with state.lease(f"job {next(names)}") as held:
            inside()
            counted(state)
            if held.held:  # not in a child that was forked inside
                held.commit()

    return call


def watch(store: Gated) -> Call:
    state, other = Versioned(store, branch="main"), Versioned(store, branch="main")
    changes = state.watch("n")

    def call(inside: Inside) -> None:
        other.apply(counted)
        inside()
        assert next(changes)[0] == "n"

    return call


def subscription(store: Gated) -> Call:
    state, other = Versioned(store, branch="main"), Versioned(store, branch="main")

    def call(inside: Inside) -> None:
        heard = threading.Event()
        with state.subscribe("n", lambda *change: (inside(), heard.set())):
            other.apply(counted)
            assert heard.wait(SECONDS)

    return call


def aio_update(store: Gated) -> Call:
    state = aio.Versioned(store, branch="main")
    return lambda inside: asyncio.run(state.apply(lambda found: counted(found, inside)))  # type: ignore[arg-type]


def aio_transaction(store: Gated) -> Call:
    state = aio.Versioned(store, branch="main")

    async def work(inside: Inside) -> None:
        async with state.transaction():
            await state.set("n", 1)
            inside()

    return awaiting(work)


def through(front: Callable[[Gated], Any]) -> Callable[[Gated], Call]:
    """Calls of a store in front of another."""

    def kind(store: Gated) -> Call:
        before = front(store)

        def call(inside: Inside) -> None:
            inside()
            key = f"o/{os.urandom(32).hex()}"
            before.set(key, b"object")
            assert before.get(key) == b"object"
            assert before.compare_and_swap("r/ref", before.get("r/ref"), key.encode())

        return call

    return kind


def adapted(make: Callable[[], Adapter]) -> Callable[[Gated], Call]:
    """Calls of an adapter of a framework."""

    def kind(store: Gated) -> Call:
        adapter = make()
        handle = adapter.open(store)

        def call(inside: Inside) -> None:
            adapter.write(handle, "ann", [os.urandom(8).hex()], 0)
            inside()
            assert adapter.read(handle, "ann")

        return call

    return kind


KINDS: dict[str, Callable[[Gated], Call]] = {
    "update": of_state(lambda state, inside: state.apply(lambda found: counted(found, inside))),
    **{kind.__name__: of_state(kind) for kind in (commit, pickled, transaction)},
    **{
        kind.__name__: kind
        for kind in (live, journal, lease, watch, subscription, aio_update, aio_transaction)
    },
    "OpenAI": adapted(OpenAI),
    "LangGraph": adapted(Saver),
    "Memory": through(lambda store: store),
    "Cache": through(Cache),
    "Tiered": through(lambda store: Tiered(Memory(), store)),
    "Prefixed": through(lambda store: Prefixed(store, "p")),
}


each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
@pytest.mark.parametrize("moment", ["in the function of the program", "reading", "writing"])
def test_another_thread_is_in_the_call(kind: Callable[[Gated], Call], moment: str) -> None:
    """Forked twice meanwhile, both children make the call, and the parent's goes on to its end."""
    store, gate = Gated(), Gate()
    call = kind(store)
    call(nothing)
    stop = {"reading": store.reading, "writing": store.writing}.get(moment, gate)
    ended: list[bool] = []

    def work() -> None:
        call(gate)
        ended.append(True)
        stop.reached.set()  # a call that does not read or write

    with stopped(stop, work):
        statuses = [in_child(lambda: call(nothing)), in_child(lambda: call(nothing))]
    assert statuses == [0, 0]
    assert ended == [True]
    call(nothing)


@each_kind
def test_a_fork_inside_the_call(kind: Callable[[Gated], Call]) -> None:
    """A child that its parent forked in the middle of the call gets an answer or an error from another."""
    call, statuses = kind(Gated()), []

    def again() -> None:
        with suppress(VStateError):
            call(nothing)

    parent = os.getpid()
    call(lambda: os.getpid() == parent and statuses.append(in_child(again)))
    assert set(statuses) == {0}
    call(nothing)


@pytest.mark.parametrize("make", [Versioned, Live])
def test_the_half_of_another_thread_is_undone(make: Callable[[], Any]) -> None:
    """A transaction of a thread that is not in the child has not happened there: of a Live too. A nested one
    goes with it.
    """
    state, gate = make(), Gate()
    state["k"] = 1
    state.commit()

    def work() -> None:
        with state.transaction():
            state["k"] = 2
            with state.transaction():
                state["new"] = 3
                gate()

    def look() -> None:
        assert dict(state) == {"k": 1}
        state.apply(lambda found: found.update(k=5))

    with stopped(gate, work):
        assert in_child(look) == 0
    assert dict(state) == {"k": 2, "new": 3}


def test_a_child_that_is_forked_inside_a_call_is_inside_too() -> None:
    """Its thread is the one that makes the call, so nothing else may commit there or write."""
    state = Versioned()
    parent, refused = os.getpid(), []

    def again() -> None:
        for use in (state.commit, lambda: state.update(other=1)):
            with pytest.raises(InvalidInput, match=r"inside another call|by the pickling"):
                use()

    state["value"] = Doing(lambda: os.getpid() == parent and refused.append(in_child(again)))
    state.commit()
    assert set(refused) == {0}


def test_a_subscription_is_the_parents_alone() -> None:
    """Its function hears of a change that the child makes in the parent alone; a watch goes on in both."""
    store, heard = Memory(), []
    state = Versioned(store, branch="main")
    subscription, watch = state.subscribe("n", lambda *change: heard.append(change)), state.watch("n")

    def work() -> None:
        state.apply(counted)
        assert next(watch)[0] == "n"
        assert (subscription.active, heard) == (False, [])
        state.close()

    assert in_child(work) == 0
    state.apply(counted)
    assert next(watch)[0] == "n"
    while not heard:
        pass
    assert subscription.active
    state.close()


def test_multiprocessing_and_a_preforking_server(tmp_path: Path) -> None:
    """Workers that were forked from an idle parent count on one Disk with the handles of the parent."""
    store = vstate.Disk(tmp_path / "s")
    sync, awaited = Versioned(store, branch="main"), aio.Versioned(store, branch="main")
    sync.apply(counted)
    asyncio.run(awaited.apply(counted))  # type: ignore[arg-type]

    def serve() -> None:
        for _ in range(5):
            sync.apply(counted)
            asyncio.run(awaited.apply(counted))  # type: ignore[arg-type]

    workers = [multiprocessing.get_context("fork").Process(target=serve) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    sync.refresh()
    assert sync["n"] == 32
    store.close()


def test_a_thread_is_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child imports the module anew, where Python itself waits for the other thread for ever."""
    gate = Gate()
    (tmp_path / "late_module.py").write_text("import test_forks\ntest_forks.GATE()\nNAME = 'whole'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_forks", sys.modules[__name__])
    monkeypatch.setitem(globals(), "GATE", gate)

    def load() -> None:
        import late_module  # type: ignore[import-not-found]

        assert late_module.NAME == "whole"

    with stopped(gate, load):
        assert in_child(load) == 0
    del sys.modules["late_module"]


@pytest.mark.parametrize(
    "held",
    [
        pickling._undisturbed,
        lambda: builders.registering,
        lambda: definitions.cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK,
    ],
    ids=["the switch interval", "ids of classes", "cloudpickle"],
)
def test_a_lock_of_the_process(held: Callable[[], Any]) -> None:
    """A class by value is stored and loaded in the child, which switches threads as often as its parent."""
    gate, usual = Gate(), sys.getswitchinterval()

    def hold() -> None:
        with held():
            gate()

    def work() -> None:
        made = type("Made", (), {"__module__": "__main__", "n": 1})
        state = Versioned()
        state["value"] = made()
        state.commit()
        assert Versioned(state.store)["value"].n == 1
        with pickling._undisturbed():
            pass
        assert sys.getswitchinterval() == usual

    with stopped(gate, hold):
        assert in_child(work) == 0
    assert sys.getswitchinterval() == usual


# Every lock

WAITED_FOR = {
    *("Barrier", "BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore", "allocate_lock"),
    *("LifoQueue", "PriorityQueue", "Queue", "SimpleQueue", "Thread", "ThreadPoolExecutor", "Timer", "local"),
    *("cached_property",),
}
"""Things of the standard library that a forked child may wait for in vain, or find without their thread."""

TOKEN = "says that a call is under way; the handle ends it in a child"
OWN = "of one call, whose thread makes it and waits for its threads"
RENEWED = "made anew in a child"

LISTED: dict[str, str] = {
    "forks": "where locks come from",
    "aio/mapping": TOKEN,
    "aio/versioned": OWN,
    "aio/workers": "made anew in a child, or of one event loop, and a child has another",
    "kv/disk/connections": "the connections that one thread closes for its own fork",
    "kv/disk/packs": "compressors of one thread, which hold no lock",
    "kv/disk/store": "a thread that only copies the log; where it is not alive, another one is made",
    "kv/disk/writes": OWN,
    "kv/postgres/session": RENEWED,
    "kv/redis/transactions": OWN,
    "kv/s3/bucket": RENEWED,
    "kv/servers": "of one call, and news of free places, made anew in a child",
    "managers/edits": OWN,
    "repo/objects": "compressors of one thread, which hold no lock",
    "repo/upkeep/inspection": OWN,
    "state/base": TOKEN,
    "state/handle": TOKEN,
    "state/lease": RENEWED,
    "state/live": TOKEN,
    "state/position": TOKEN,
    "state/run": TOKEN,
    "state/transactions": TOKEN,
    "state/turns": "of one turn, which a child ends unless it is inside",
    "state/watching": RENEWED,
    "tasks": TOKEN,
    "testing/kvstore": OWN,
}
"""The modules that make one by themselves, and why a child never waits for it."""


def made_in(source: str) -> Iterator[str]:
    """The things to wait for that a module makes, derives from or decorates with."""
    if not any(name in source for name in WAITED_FOR):
        return
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("vstate"):
            own |= {name.asname or name.name for name in node.names}
    for node in ast.walk(tree):
        used: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) != "isinstance":
            used = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            used = node.decorator_list
        elif isinstance(node, ast.ClassDef):
            used = node.bases
        for each in used:
            name = getattr(each, "attr", None) or getattr(each, "id", "")
            if name in WAITED_FOR - own:
                yield name


def modules() -> dict[str, str]:
    """The source of each module of the package by its name."""
    root = Path(vstate.__file__).parent
    return {
        str(path.relative_to(root).with_suffix("")): path.read_text("utf-8") for path in root.rglob("*.py")
    }


def test_every_lock_is_a_new_lock_or_listed() -> None:
    """A module makes locks by `new_lock`; one that makes any other, or a thread, says here why it may."""
    makers = {name for name, source in modules().items() if any(made_in(source))}
    assert makers == LISTED.keys()


def test_no_function_is_called_before_a_fork() -> None:
    """So nothing waits for a lock there, and no exception leaves one held. SQLite's files are Disk's own."""
    for name, source in modules().items():
        for node in ast.walk(ast.parse(source)) if "register_at_fork" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.register_at_fork":
                given = {keyword.arg for keyword in node.keywords}
                assert given == {"after_in_child"} or name == "kv/disk/connections", name
