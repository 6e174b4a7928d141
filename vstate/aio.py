"""vstate.aio: the state for programs with an event loop.

from vstate.aio import Versioned

async with Versioned("agent-state") as state:
    state["messages"] = ["hello"]
    await state.commit("first words")
    print(await state["messages"])

The names are those of `vstate.Versioned`; what may read or write the store is awaited, and runs in worker
threads. Nothing else is different: there is one implementation, and this is the way into it.

- A call that is cancelled has happened or has not: the cancellation is passed on once that is settled. So may be one that
  comes as a transaction ends: its commit is made.
- Tasks may share a handle, as threads do; a transaction of one is waited for by the others without
  holding up the loop.
- A Change of a `diff`, and a Snapshot given to the predicate of `bisect`, load values when asked for, in the thread that
  asks.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, overload

from vstate import state as sync
from vstate.errors import InvalidInput
from vstate.kv.url import location_of
from vstate.objects.commit import Commit, Event
from vstate.repo.calling import called
from vstate.repo.diff import Change
from vstate.repo.repository import Revision
from vstate.state.base import Message, ReadableState, State
from vstate.state.lease import Lease as HeldLease
from vstate.state.turns import Turn
from vstate.state.watching import Seen, Subscription, Watch

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=ReadableState)
_T = TypeVar("_T")

_THREADS = 4  # a handle does one thing at a time, mostly; reads beside a commit go on
_AT_ONCE = 256  # items that an iteration fetches at a time


class _Workers:
    """The threads of a handle, and of what was made from it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="vstate")

    async def run(
        self,
        function: Callable[[], _R],
        *,
        surely: bool = False,
        undo: Callable[[_R], object] | None = None,
    ) -> _R:
        """Call the function in a thread, in a copy of this context; if cancelled, not, or when it has returned.

        `surely` calls it, cancelled or not. `undo` is called with what nobody gets, as it was cancelled. InvalidInput
        once the state is closed.
        """
        try:
            work = self._threads.submit(contextvars.copy_context().run, function)
        except RuntimeError:
            raise InvalidInput("this state is closed") from None
        future = asyncio.wrap_future(work)
        try:
            # Without a shield where none is needed: that would be another round of the loop for each call.
            return await (asyncio.shield(future) if surely else future)
        except asyncio.CancelledError:
            if surely or not work.cancel():  # it may have begun
                future = asyncio.wrap_future(work)  # the other one is cancelled
                await _settled(future)
                if undo is not None and future.exception() is None:
                    await self.run(partial(undo, future.result()), surely=True)
            raise

    def stop(self) -> None:
        self._threads.shutdown(wait=False)


async def _settled(future: asyncio.Future[Any]) -> None:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            pass  # the first one is passed on
    if not future.cancelled():
        future.exception()  # looked at, so that nobody is told that nobody did


def _awaited(
    function: Callable[Concatenate[Any, _P], _R], *, turn: bool = False
) -> Callable[Concatenate[_Reading[Any], _P], Coroutine[Any, Any, _R]]:
    """The method that awaits this one of the sync handle: in its turn, if it moves the branch."""

    @wraps(function)
    async def method(self: _Reading[Any], /, *args: _P.args, **options: _P.kwargs) -> _R:
        handle = await self._opened()
        call = partial(getattr(handle, function.__name__), *args, **options)
        return await (self._in_turn(handle, lambda outermost: call()) if turn else self._workers.run(call))

    return method


class _Reading(Generic[_S]):
    """A mapping to be read."""

    def __init__(self, workers: _Workers, handle: _S | None) -> None:
        self._workers = workers
        self._handle = handle

    async def _opened(self) -> _S:
        return self.sync

    @property
    def sync(self) -> _S:
        """The handle that this one is the way into, for a thread; InvalidInput before it is open."""
        if self._handle is None:
            raise InvalidInput("this state is not open yet: use `async with` it, or await it")
        return self._handle

    async def _in_turn(self, handle: State, function: Callable[[bool], _R]) -> _R:
        """Call the function in a thread, in the turn, with whether this is the outermost to have that."""
        turns = handle.root.turns
        if turns.nested:
            return await self._workers.run(partial(function, False))
        turn = Turn()
        with turn.bell, turn.held:
            await turns.take_async(turn)
            return await self._workers.run(partial(function, True))

    async def __getitem__(self, key: str) -> Any:
        """The value of the key: `await state["k"]`. Raises KeyNotFound."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle[key])

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of the key, or `default` if there is none."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.get(key, default))

    async def contains(self, key: str) -> bool:
        """Whether there is such a key."""
        handle = await self._opened()
        return await self._workers.run(lambda: key in handle)

    async def count(self, prefix: str = "") -> int:
        """How many keys begin with `prefix`."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.count_keys(prefix))

    def __aiter__(self) -> AsyncIterator[str]:
        return self.keys()

    # Without these Python would ask for `state[0]`, `state[1]`, …, without end: each is a coroutine, and none an IndexError.

    def __iter__(self) -> NoReturn:
        raise TypeError("the keys of this state come awaited: `async for key in state`")

    def __contains__(self, key: object) -> NoReturn:
        raise TypeError("a look into this state is awaited: `await state.contains(key)`")

    def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """The keys that begin with `prefix`, sorted: `async for key in state.keys("a/")`."""
        return self._iterated(lambda handle: iter(handle.keys(prefix)))

    def values(self, prefix: str = "") -> AsyncIterator[Any]:
        """The values whose keys begin with `prefix`, in key order."""
        return self._iterated(lambda handle: iter(handle.values(prefix)))

    def items(self, prefix: str = "") -> AsyncIterator[tuple[str, Any]]:
        """The items whose keys begin with `prefix`, in key order."""
        return self._iterated(lambda handle: iter(handle.items(prefix)))

    async def _iterated(self, begin: Callable[[_S], Iterator[_T]]) -> AsyncIterator[_T]:
        handle = await self._opened()
        items = await self._workers.run(lambda: begin(handle))
        at_once = 1  # the first ones soon
        while batch := await self._workers.run(partial(_some, items, at_once)):
            for item in batch:
                yield item
            at_once = min(at_once * 4, _AT_ONCE)

    def __repr__(self) -> str:
        return f"<aio {self._handle!r}>" if self._handle is not None else "<aio, not open>"


def _some(items: Iterator[_T], count: int) -> list[_T]:
    return [item for _, item in zip(range(count), items, strict=False)]


class Snapshot(_Reading[sync.Snapshot]):
    """The state at one commit, read-only."""

    @property
    def commit(self) -> Commit:
        """The commit whose state this is."""
        return self.sync.commit


_W = TypeVar("_W", bound="sync.Versioned | sync.Namespace")


class _Writing(_Reading[_W]):
    """A mapping to be read and written."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Set the key, in memory, until the next commit. It waits for a commit of this handle that is under way:
        await `set` where that would hold up the loop for too long.
        """
        self.sync[key] = value

    async def set(self, key: str, value: Any) -> None:
        """Set the key, in memory, until the next commit."""
        handle = await self._opened()
        await self._workers.run(lambda: handle.__setitem__(key, value))

    async def delete(self, key: str) -> None:
        """Delete the key, in memory, until the next commit. Raises KeyNotFound."""
        handle = await self._opened()
        await self._workers.run(lambda: handle.__delitem__(key))

    async def pop(self, key: str, *default: Any) -> Any:
        """Delete the key and give its value; `default` if there is none."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.pop(key, *default))

    async def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of the key, set to `default` if there was none."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.setdefault(key, default))

    clear = _awaited(State.clear)
    expire = _awaited(State.expire)
    expires = _awaited(State.expires)

    @overload
    async def update(
        self,
        function: Callable[[Any], object],
        /,
        *,
        attempts: int = 10,
        message: Message = "",
        **info: Any,
    ) -> Commit | None: ...

    @overload
    async def update(
        self, other: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **values: Any
    ) -> None: ...

    async def update(self, other: Any = (), /, **values: Any) -> Commit | None:
        """With a function: call it, in a worker thread, with the sync handle, and commit what it changed; again
        on the fresh state until nobody else has changed what it read or changed. With a mapping or pairs: set them.
        """
        if callable(other) and not hasattr(other, "keys"):
            return await self.update_and_tell(other, lambda commit: None, **values)
        handle = await self._opened()
        await self._workers.run(lambda: handle.update(other, **values))
        return None

    async def update_and_tell(
        self, function: Callable[[Any], object], told: Callable[[Commit | None], object], /, **options: Any
    ) -> Commit | None:
        """As `update` with a function; `told` hears what came of it, in the thread, even when the caller is cancelled.

        Where it has not been called by the end of this, nothing is committed.
        """
        handle = await self._opened()
        root = handle.root
        assert isinstance(root, sync.Versioned)
        call = partial(function, handle)

        def update(outermost: bool) -> Commit | None:
            commit = (root.update_in_turn if outermost else root.run_update)(call, **options)
            told(commit)
            return commit

        return await self._in_turn(handle, update)

    async def read(self, function: Callable[[_W], _T]) -> _T:
        """Call the function, in a worker thread, with the sync handle at the newest commit, between other updates."""
        handle = await self._opened()
        root = handle.root
        assert isinstance(root, sync.Versioned)

        def call(outermost: bool) -> _T:
            root.refresh()
            return called("the function of read", function, handle)

        return await self._in_turn(handle, call)

    async def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit what changed, in place or by key; None if nothing did. Cancelled, it is done or not done."""
        handle = await self._opened()
        return await self._in_turn(handle, lambda outermost: handle.commit(message, **info))

    @asynccontextmanager
    async def transaction(self, message: str = "", **info: Any) -> AsyncIterator[Self]:
        """Commit at the end of the `async with` block; discard what was changed inside on an exception.

        Inside another transaction, or a task, it leaves the commit to that one.
        """
        handle = await self._opened()
        root = handle.root
        assert isinstance(root, sync.Versioned)
        turn, nested = Turn(), root.turns.nested
        with turn.bell, turn.held:  # nobody waits for a turn that was not taken
            if not nested:
                await root.turns.take_async(turn)
            inner: AbstractContextManager[Any] = (
                root.transaction() if nested else root.transaction_in_turn(message, info)
            )
            try:
                # Surely, all of it: what was begun is ended before the turn is.
                await self._workers.run(inner.__enter__, surely=True)
                yield self
            except BaseException as error:
                await self._workers.run(partial(_ended, inner, error), surely=True)
                raise
            await self._workers.run(lambda: inner.__exit__(None, None, None), surely=True)

    def watch(self, pattern: str = "*", *, since: Revision | None = None) -> Watching:
        """The changes of keys like `agent:*` as they are committed: `async for key, change, commit in state.watch(...)`.

        Awaited, it is the Watch itself, which can be asked what it has seen, and closed.
        """
        # Here, where nothing has to be read for it: what is committed from the call on is told, whenever it is gone through.
        made = self._handle.watch(pattern) if since is None and self._handle is not None else None

        async def begin() -> Watch:
            handle = await self._opened()
            # Not closed where this is cancelled: who goes through it may go on, and it listens from the first look on only.
            return await self._workers.run(
                lambda: handle.watch(pattern, since=since) if made is None else made
            )

        return Watching(begin)

    async def subscribe(
        self, pattern: str, function: Callable[[str, Change, Commit], object]
    ) -> Subscription:
        """Have `function(key, change, commit)` called, in a thread of its own, for each change of a watch."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.subscribe(pattern, function), undo=Subscription.close)

    def record(self, kind: str, **data: Any) -> Event:
        """Record that something happened; the next commit keeps it. `data` is plain data."""
        return self.sync.record(kind, **data)

    def namespace(self, name: str) -> Namespace:
        """The mapping of the keys under `name/`; it nests, and one commit covers all."""
        return Namespace(self._workers, self.sync.namespace(name))


def _ended(inner: AbstractContextManager[Any], error: BaseException) -> None:
    try:
        inner.__exit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


class Namespace(_Writing[sync.Namespace]):
    """The keys of a state under one prefix."""


class Watching:
    """What `watch` returns: to be gone through by `async for`, or awaited, which gives the Watch."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Watch]]) -> None:
        self._begin = begin
        self._watch: Watch | None = None

    async def _begun(self) -> Watch:
        if self._watch is None:
            self._watch = await self._begin()
        return self._watch

    def __await__(self) -> Generator[Any, None, Watch]:
        return self._begun().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Seen:
        return await anext(await self._begun())


class Lease:
    """What `Versioned.lease` gives: the right to work, for as long as `held`."""

    def __init__(self, state: Versioned, lease: HeldLease) -> None:
        self._state = state
        self._lease = lease

    @property
    def name(self) -> str:
        """What the lease is on."""
        return self._lease.name

    @property
    def ttl(self) -> float:
        """Seconds after which another may have it if it is not renewed."""
        return self._lease.ttl

    @property
    def fence(self) -> int:
        """A number that grows with each holder."""
        return self._lease.fence

    @property
    def held(self) -> bool:
        """Whether nobody else can have the lease yet, by the clock of this process alone."""
        return self._lease.held

    async def check(self) -> None:
        """Raise LeaseLost unless the lease is held, and the store says so."""
        await self._state._workers.run(self._lease.check)

    async def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit the state unless the lease is lost: LeaseLost then, with nothing committed."""
        return await self._state._in_turn(
            self._state.sync, lambda outermost: self._lease.commit(message, **info)
        )

    def __repr__(self) -> str:
        return repr(self._lease)


async def _entered(lease: HeldLease) -> None:
    """Wait for a lease, in a thread of its own, which may be long; cancelled, when it is certain that nobody has it."""
    work = Future[None]()
    work.set_running_or_notify_cancel()

    def enter() -> None:
        try:
            lease.__enter__()
        except BaseException as error:
            work.set_exception(error)
        else:
            work.set_result(None)

    threading.Thread(target=enter, name=f"vstate lease {lease.name}", daemon=True).start()
    future = asyncio.wrap_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        lease.stop_waiting()
        await _settled(future)
        raise


class Versioned(_Writing[sync.Versioned]):
    """A branch that a program with an event loop can write to; takes what `vstate.Versioned` takes.

    It opens with `async with`, which closes it too, or when it is first awaited: `state = await Versioned(store)`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(_Workers(), None)
        self._open = partial(sync.Versioned, *args, **options)
        self._given = args[0] if args else options.get("store")
        self._opening = threading.Lock()
        self._closed = False

    async def _opened(self) -> sync.Versioned:
        return self._handle if self._handle is not None else await self._workers.run(self._open_once)

    def _open_once(self) -> sync.Versioned:
        # Not an asyncio.Lock: tasks of several loops may share this.
        with self._opening:
            if self._handle is None:
                self._handle = self._open()
            return self._handle

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._opened().__await__()
        return self

    async def __aenter__(self) -> Self:
        try:
            await self._opened()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what watches it, and the store, if this handle opened it. What is uncommitted is not committed."""
        try:
            if self._handle is not None and not self._closed:
                self._closed = True
                await self._workers.run(self._handle.close, surely=True)
        finally:
            self._workers.stop()

    @property
    def location(self) -> str:
        """Where its store is, open or not, for messages to people; never a secret."""
        return location_of(self._given) if self._handle is None else self._handle.store.location

    @property
    def head(self) -> Commit | None:
        """The commit that the next one is made on; None before the first."""
        return self.sync.head

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves; None when HEAD is detached."""
        return self.sync.branch

    # What is uncommitted

    status = _awaited(sync.Versioned.status)
    diff = _awaited(sync.Versioned.diff)
    discard = _awaited(sync.Versioned.discard)
    refresh = _awaited(sync.Versioned.refresh, turn=True)

    # History

    def log(
        self, rev: Revision = "HEAD", *, key: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Commit]:
        """The commits from `rev` back, newest first; with `key`, only those that changed it."""
        return self._iterated(lambda handle: iter(handle.log(rev, key=key, limit=limit)))

    async def checkout(self, rev: Revision) -> Snapshot:
        """The state at a revision, to look at. This state does not move."""
        handle = await self._opened()
        return Snapshot(self._workers, await self._workers.run(lambda: handle.checkout(rev)))

    blame = _awaited(sync.Versioned.blame)
    bisect = _awaited(sync.Versioned.bisect)
    rollback = _awaited(sync.Versioned.rollback, turn=True)
    reset = _awaited(sync.Versioned.reset, turn=True)
    undo = _awaited(sync.Versioned.undo, turn=True)
    redo = _awaited(sync.Versioned.redo, turn=True)
    merge = _awaited(sync.Versioned.merge, turn=True)
    cherry_pick = _awaited(sync.Versioned.cherry_pick, turn=True)
    revert = _awaited(sync.Versioned.revert, turn=True)
    purge = _awaited(sync.Versioned.purge, turn=True)
    set_policy = _awaited(sync.Versioned.set_policy)
    policies = _awaited(sync.Versioned.policies)

    # Branches and tags

    create_branch = _awaited(sync.Versioned.create_branch)
    switch = _awaited(sync.Versioned.switch, turn=True)
    branches = _awaited(sync.Versioned.branches)
    delete_branch = _awaited(sync.Versioned.delete_branch)
    tag = _awaited(sync.Versioned.tag)
    tags = _awaited(sync.Versioned.tags)
    delete_tag = _awaited(sync.Versioned.delete_tag)

    async def fork(self, name: str, at: Revision = "HEAD") -> Versioned:
        """A new state on a new branch."""
        handle = await self._opened()
        other = Versioned()
        other._handle = await self._workers.run(lambda: handle.fork(name, at))
        return other

    # Other stores, and other holders

    push = _awaited(sync.Versioned.push)
    pull = _awaited(sync.Versioned.pull, turn=True)

    @asynccontextmanager
    async def lease(
        self, name: str, ttl: float | timedelta = 30, *, wait: float | None = None
    ) -> AsyncIterator[Lease]:
        """A lease for the `async with` block: nobody else has one of that name in this store meanwhile."""
        handle = await self._opened()
        lease = handle.lease(name, ttl, wait=wait)
        try:
            await _entered(lease)
            yield Lease(self, lease)
        finally:
            await self._workers.run(lease.__exit__, surely=True)
