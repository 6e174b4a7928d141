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
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from integrations.adapters import Adapter, OpenAI, Saver
from soak import sized

import vstate
from vstate import (
    InvalidInput,
    Live,
    Memory,
    Snapshot,
    UncommittedWarning,
    Versioned,
    VStateError,
    aio,
)
from vstate.kv import Cache, Prefixed, Tiered
from vstate.managers import (
    StateConfig,
    StateManager,
    ToolExecution,
    ToolStateManager,
)
from vstate.patterns import Journal
from vstate.patterns.fields import Fields
from vstate.sessions import StateService
from vstate.values import builders, definitions, pickling

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]

FORKS = sized(4, 100)

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


def update(store: Gated) -> Call:
    state = Versioned(store, branch="main")
    return lambda inside: state.apply(lambda found: counted(found, inside))


def commit(store: Gated) -> Call:
    state = Versioned(store, branch="main")

    def call(inside: Inside) -> None:
        remove = state.before_commit(lambda state: inside())
        try:
            counted(state)
            state.commit()
        finally:
            remove()

    return call


def pickled(store: Gated) -> Call:
    state = Versioned(store, branch="main")

    def call(inside: Inside) -> None:
        state["value"] = Doing(inside)
        with suppress(VStateError):  # the function in the middle may use the state
            state.commit()

    return call


def transaction(store: Gated) -> Call:
    state = Versioned(store, branch="main").namespace("space")

    def call(inside: Inside) -> None:
        with state.root.transaction():
            counted(state, inside)

    return call


def snapshot(store: Gated) -> Call:
    state = Versioned(store, branch="main")
    state["k"] = list(range(1000))
    commit = state.commit()
    assert commit is not None

    def call(inside: Inside) -> None:
        inside()
        found = Snapshot(Versioned(store).repo, commit)
        assert (len(found), list(found), found["k"][-1]) == (1, ["k"], 999)

    return call


def live(store: Gated) -> Call:
    state = Live()
    return lambda inside: state.apply(lambda found: counted(found, inside))


def journal(store: Gated) -> Call:
    records: Any = Journal(Versioned(store).repo, "log")
    return lambda inside: records.append(lambda index: (inside(), ["record"])[1])


def fields(store: Gated) -> Call:
    repo = Versioned(store).repo
    kept = Fields(repo, "state")

    def call(inside: Inside) -> None:
        packed, head = kept.pack({"a": 1, "text": os.urandom(8).hex()}), repo.newest("main")
        inside()
        changed, gone = kept.changes("main", head, packed, {})
        kept.landed("main", repo.commit("main", set=changed, delete=gone), packed)

    return call


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


def state_manager(store: Gated) -> Call:
    manager = StateManager(store)

    async def work(inside: Inside) -> None:
        await manager.save("n", {"number": 1})
        inside()
        assert await manager.get("n")
        await manager.flush()

    return awaiting(work)


def tool_manager(store: Gated) -> Call:
    manager = ToolStateManager(store)

    async def work(inside: Inside) -> None:
        inside()
        execution = ToolExecution(execution_id=os.urandom(8).hex(), tool_name="t", parameters={})
        await manager.start_execution(execution)

    return awaiting(work)


def manager_subscription(store: Gated) -> Call:
    manager = StateManager(store)

    async def work(inside: Inside) -> None:
        heard = asyncio.Event()

        def hear(*change: Any) -> None:
            heard.set()

        await manager.subscribe("n", hear)
        await manager.save("n", os.urandom(8).hex())
        inside()
        await asyncio.wait_for(heard.wait(), SECONDS)
        await manager.unsubscribe("n", hear)

    return awaiting(work)


def service(store: Gated) -> Call:
    kept = StateService(store, ttl=600)

    async def work(inside: Inside) -> None:
        await kept.start()
        await kept.save_state("ann", {"a": 1})
        inside()
        assert await kept.export_state("ann")

    return awaiting(work)


def stopped_service(store: Gated) -> Call:
    kept = StateService(store)

    async def work(inside: Inside) -> None:
        await kept.start()
        inside()
        await kept.stop()

    return awaiting(work)


def pydantic_ai(store: Gated) -> Call:
    integrations = pytest.importorskip("vstate.integrations.pydantic_ai", exc_type=ImportError)
    from pydantic_ai.conversation import Conversation

    kept = integrations.VstateConversationStore(store)

    async def work(inside: Inside) -> None:
        id = os.urandom(8).hex()
        await kept.save(Conversation(conversation_id=id))
        inside()
        assert await kept.load(id)

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
    **{
        kind.__name__: kind
        for kind in (update, commit, pickled, transaction, snapshot, live, journal, fields)
        + (lease, watch, subscription, aio_update, aio_transaction)
        + (state_manager, tool_manager, manager_subscription, service, stopped_service)
        + (pydantic_ai,)
    },
    "OpenAI": adapted(OpenAI),
    "LangGraph": adapted(Saver),
    "Memory": through(lambda store: store),
    "Cache": through(Cache),
    "Tiered": through(lambda store: Tiered(Memory(), store)),
    "Prefixed": through(lambda store: Prefixed(store, "p")),
}

OWN_LOCK = {"pydantic_ai"}
"""The frameworks that take a lock of their own, which a child may find taken (of `pydantic_ai.uuid7`)."""

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


@each_kind
def test_a_child_of_a_child_of_an_idle_parent(kind: Callable[[Gated], Call]) -> None:
    """The call works in all three."""
    call = kind(Gated())
    call(nothing)

    def work() -> None:
        call(nothing)
        assert in_child(lambda: call(nothing)) == 0

    assert in_child(work) == 0
    call(nothing)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name not in OWN_LOCK])
def test_another_thread_calls_all_the_time(name: str) -> None:
    """Whenever the fork comes, the child makes the call."""
    call, stop = KINDS[name](Gated()), threading.Event()
    thread = threading.Thread(target=lambda: [call(nothing) for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        for _ in range(FORKS):
            assert in_child(lambda: call(nothing)) == 0
    finally:
        stop.set()
        thread.join(SECONDS)
    assert not thread.is_alive()


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


def test_pending_changes_of_a_manager_are_the_parents_to_report() -> None:
    """The child reads them, can commit them, and does not warn of their loss."""
    manager = StateManager(Memory(), config=StateConfig(auto_save=False))
    asyncio.run(manager.save("n", 1))

    def work() -> None:
        assert asyncio.run(manager.get("n")) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            manager._pending._at_exit()

    assert in_child(work) == 0
    assert in_child(lambda: asyncio.run(manager.close())) == 0
    with pytest.warns(UncommittedWarning, match="'n'"):
        manager._pending._at_exit()


def test_calls_that_wait_are_the_parents_alone() -> None:
    """Records of threads that wait for a journal are not in a commit of the child."""
    store = Gated()
    records: Any = Journal(Versioned(store).repo, "log")

    def work() -> None:
        records.append(lambda index: ["child"])
        assert list(records.refresh()) == ["child"]

    with stopped(store.writing, *[lambda: records.append(lambda index: ["parent"])] * 3):
        assert in_child(work) == 0
    assert list(records.refresh()) == ["parent"] * 3


def test_two_states_whose_hooks_read_each_other() -> None:
    """A fork beside their commits waits for neither."""
    one, other = Versioned(), Versioned()
    gates = Gate(), Gate()
    for state, read, gate in ((one, other, gates[0]), (other, one, gates[1])):
        state.before_commit(lambda state, read=read, gate=gate: (gate(), len(read.branches())))  # type: ignore[misc]
        state["k"] = 1
    with stopped(gates[0], one.commit), stopped(gates[1], other.commit):
        assert in_child(lambda: (one.commit(), other.commit())) == 0
    assert [state.has_uncommitted for state in (one, other)] == [False, False]


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


def test_a_fork_beside_tasks_of_a_running_loop() -> None:
    """The child runs a loop of its own; the tasks of the parent's loop go on in the parent alone."""
    store = Gated()
    state = aio.Versioned(store, branch="main")

    async def parent() -> None:
        store.writing.closed = True
        tasks = [asyncio.create_task(state.apply(counted)) for _ in range(5)]  # type: ignore[arg-type]
        await asyncio.to_thread(store.writing.reached.wait, SECONDS)
        status = in_child(lambda: asyncio.run(state.apply(counted)))  # type: ignore[arg-type]
        store.writing.leave.set()
        await asyncio.gather(*tasks)
        assert status == 0

    asyncio.run(parent())
    assert Versioned(store, branch="main")["n"] == 5


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
    "aio/reading": TOKEN,
    "aio/versioned": OWN,
    "aio/workers": "made anew in a child, or of one event loop, and a child has another",
    "aio/writing": TOKEN,
    "kv/disk/connections": "the connections that one thread closes for its own fork",
    "kv/disk/packs": "compressors of one thread, which hold no lock",
    "kv/disk/store": "a thread that only copies the log; where it is not alive, another one is made",
    "kv/disk/writes": OWN,
    "kv/postgres/session": RENEWED,
    "kv/redis/transactions": OWN,
    "kv/s3/bucket": RENEWED,
    "kv/servers": "of one call, and news of free places, made anew in a child",
    "managers/edits": OWN,
    "managers/readable_file": "on Windows alone, which has no fork",
    "repo/objects": "compressors of one thread, which hold no lock",
    "repo/upkeep/inspection": OWN,
    "state/base": TOKEN,
    "state/handle": TOKEN,
    "state/lease": RENEWED,
    "state/live": TOKEN,
    "state/savepoints": TOKEN,
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


def test_the_walk_finds_each_way_to_make_a_lock() -> None:
    """Called, passed on as a factory, as a decorator, or as a base."""
    for source in (
        "threading.Lock()",
        "field(default_factory=RLock)",
        "defaultdict(Lock)",
        "class A(threading.local): pass",
        "class A:\n    @cached_property\n    def a(self): pass",
        "asyncio.Condition()",
    ):
        assert list(made_in(source)), source
    assert not list(made_in("from vstate.objects.commit import Event\nEvent(1)"))


def test_no_function_is_called_before_a_fork() -> None:
    """So nothing waits for a lock there, and no exception leaves one held. SQLite's files are Disk's own."""
    for name, source in modules().items():
        for node in ast.walk(ast.parse(source)) if "register_at_fork" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.register_at_fork":
                given = {keyword.arg for keyword in node.keywords}
                assert given == {"after_in_child"} or name == "kv/disk/connections", name
