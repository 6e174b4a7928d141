"""StateManager: values by key, saved, merged, watched and rolled back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast
from weakref import finalize

from vstate.arguments import check_count, check_flag, check_seconds
from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.kv.url import check_store, location_of
from vstate.managers.backends import (
    DIRECTORY,
    KEY_PREFIX,
    FileBackend,
    MemoryBackend,
    Persistence,
    RedisBackend,
)
from vstate.managers.edits import Edit, Frozen, Gathered, copied, require_dict
from vstate.managers.files import Format
from vstate.managers.manager import Manager
from vstate.managers.subscriptions import Subscriber, Subscriptions
from vstate.managers.waiting import Wait
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.repository import Repository, Revision
from vstate.state.base import check_key
from vstate.state.namespace import Namespace
from vstate.state.versioned import Versioned

__all__ = ["StateConfig", "StateManager"]


@dataclass(frozen=True)
class StateConfig:
    """What a `StateManager` is to do, and where.

    - `backend`: "memory", "file", "redis", or a path, a URL or a store; by default what the other fields ask for.
    - `file_path`: for "file". The store is the directory of that name, without an ending of `.json` or
      `.msgpack`, which say how the files in it are written: "./state/app.json" means `./state/app/vstate.db`, and
      files in `./state/app/files/`. None: `./state`.
    - `redis_url`, `key_prefix`: for "redis". None: redis://localhost:6379, "vstate".
    - `ttl`: seconds after which a key is absent unless it is saved or updated again. None: never.
    - `auto_save`: False gathers changes until `flush`.
    - `save_interval`: seconds between two commits at the least; None or 0: each change is committed at once.

    A field that the backend would ignore raises InvalidInput.
    """

    backend: Persistence | None = field(default=None, repr=False)
    file_path: str | None = None
    redis_url: str | None = field(default=None, repr=False)  # which may hold a password, as may a backend
    key_prefix: str | None = None
    ttl: float | None = None
    auto_save: bool = True
    save_interval: float | None = None

    def __post_init__(self) -> None:
        check_store(self.backend)
        asked = {
            "file": self.file_path,
            "redis": self.redis_url if self.key_prefix is None else self.key_prefix,
        }
        wanted = [name for name, value in asked.items() if value is not None]
        if self.backend is None:
            if len(wanted) > 1:
                raise InvalidInput(
                    "file_path and redis_url ask for two backends: say backend='file' or 'redis'"
                )
            object.__setattr__(self, "backend", wanted[0] if wanted else "memory")
        for name in wanted:
            if name != self.backend:
                fields = "file_path is" if name == "file" else "redis_url and key_prefix are"
                raise InvalidInput(f"{fields} for backend={name!r}, not for {location_of(self.backend)!r}")
        check_flag("auto_save", self.auto_save)
        check_seconds("ttl", self.ttl, none="None for ever")
        check_seconds("save_interval", self.save_interval, zero=True, none="None for each change")

    def open(self) -> Persistence:
        """A new store as this says, or what `aio.Versioned` opens later."""
        if self.backend == "file":
            path = Path(self.file_path or DIRECTORY)
            if path.suffix not in (".json", ".msgpack"):
                return FileBackend(path)
            return FileBackend(path.with_suffix(""), format=cast(Format, path.suffix[1:]))
        if self.backend == "redis":
            url = self.redis_url or "redis://localhost:6379"
            return RedisBackend(url, key_prefix=KEY_PREFIX if self.key_prefix is None else self.key_prefix)
        assert self.backend is not None
        return MemoryBackend() if self.backend == "memory" else self.backend


_ABSENT: Final = object()
_NAMED: Final = 3  # keys in the message of a commit


class StateManager(Manager):
    """Values by key, any that pickle can hold: `StateManager(config=StateConfig(backend="file"))`.

    What is saved is what the value was when the method was called, and what `get` gives is a copy: neither follows
    the other. Every change is one commit, on the newest state, durable when the method returns.

    Unless the config says otherwise. With `save_interval` a change is committed at once if the last commit is that
    long ago; others are gathered, are what this manager reads, and are committed when the interval is over, by the
    event loop or the next change; a crash loses what was gathered since the last commit, `save_interval`
    seconds of changes at the most while the loop runs. With `auto_save=False` it loses all since the last `flush`.
    `close` commits what is gathered, so a program should close its manager before its loop ends.
    """

    part = "state"

    def __init__(
        self,
        persistence: Persistence | StateConfig | None = None,
        *,
        config: StateConfig | None = None,
        redis_url: str | None = None,
    ) -> None:
        if isinstance(persistence, StateConfig):
            if config is not None:
                raise InvalidInput("two configs were given: leave one of them out")
            persistence, config = None, persistence
        self.config = config = StateConfig() if config is None else config
        if not isinstance(config, StateConfig):
            raise TypeError(f"config is a StateConfig, not a {type(config).__name__}")
        if persistence is not None and config.backend != "memory":
            raise InvalidInput(
                f"both persistence and the config's backend {location_of(config.backend)!r} were given: choose one"
            )
        chosen = config.open() if persistence is None else persistence
        super().__init__(chosen, redis_url=redis_url)
        if isinstance(chosen, KVStore) and chosen is not persistence and chosen is not config.backend:
            self._own_store = chosen
        self._gathered = Gathered(config.save_interval or None if config.auto_save else None)
        self._subscriptions = Subscriptions(self._state, self.part)
        finalize(self, self._subscriptions.end_all).atexit = False

    # Values

    async def save(self, key: str, value: Any) -> None:
        """Set the value of a key. Raises Unpicklable, which says where in the value the trouble is."""
        self._require_key(key)
        await self._edit(f"save {key}", key, Edit(replaces=True, value=Frozen(value, key)))

    async def update(self, key: str, changes: Mapping[Any, Any]) -> None:
        """Set these top-level keys of the dict that is the key's value; one that is absent counts as empty.

        Others may update other top-level keys at the same time. Raises InvalidInput for a value that is no dict.
        """
        self._require_key(key)
        if not isinstance(changes, Mapping):
            raise TypeError(f"changes are given as a dict, not as a {type(changes).__name__}")
        merged = {name: Frozen(value, key) for name, value in changes.items()}
        if self._gathers:
            require_dict(key, await self.get(key, {}))
        await self._edit(f"update {key}", key, Edit(merged=merged))

    async def delete(self, key: str) -> bool:
        """Delete a key; False if there is none."""
        if not self._gathers:
            return await self.change(lambda part: Values(part).delete(key), f"delete {key}")
        found = await self.get(key, _ABSENT) is not _ABSENT
        if found:
            await self._edit(f"delete {key}", key, Edit(replaces=True))
        return found

    async def get(self, key: str, default: Any = None, *, rev: Revision | None = None) -> Any:
        """The value of a key, `default` if there is none; with `rev`, what it was at that commit."""
        if rev is not None:
            return await self.read(lambda part: Values(part).get_at(rev, key, default))
        edit = self._gathered.get(key)
        return await self.read(lambda part: Values(part).get(key, default, edit))

    async def list_keys(self, pattern: str = "*") -> list[str]:
        """The keys like `agent:*`, sorted. "*" stands for any text, "?" for a character, "[ab]" for one of these."""
        begin = re.split(r"[*?[]", pattern, maxsplit=1)[0]
        there = await self.read(lambda part: list(part.scan_keys(begin)))
        return sorted(key for key in self._gathered.keys_after(there) if fnmatchcase(key, pattern))

    # Committing

    async def flush(self) -> Commit | None:
        """Commit what was gathered; None if nothing was. If it fails, all of it stays gathered."""
        self._require_open()
        return self._state.head if await self._gathered.flush(self._carry_out) else None

    @property
    def _gathers(self) -> bool:
        return not self.config.auto_save or bool(self.config.save_interval)

    def _require_key(self, key: str) -> None:
        """TypeError, InvalidInput for what is no key: once gathered it would stop every commit to come."""
        check_key(key)
        check_key(f"{self.part}/{key}")

    async def _edit(self, message: str, key: str, edit: Edit) -> None:
        if not self._gathers:
            await self._carry_out({key: edit}, lambda: None, message)
            return
        self._require_open()
        await self._gathered.add(key, edit, self._carry_out)

    async def _carry_out(
        self, edits: Mapping[str, Edit], told: Callable[[], object], message: str = ""
    ) -> None:
        ttl = self.config.ttl
        named = ", ".join(islice(edits, _NAMED)) + (", ..." if len(edits) > _NAMED else "")
        await self.change_and_tell(
            lambda part: Values(part).carry_out(edits, ttl), told, message or f"save {named}"
        )

    # Subscribers

    def subscribe(self, pattern: str, function: Subscriber) -> Wait:
        """Have `function(key, old, new)`, sync or async, called for each commit that changes keys like `agent:*`.

        Whoever made it, of other processes too; in the event loop, one call at a time, in order; None stands for a
        value that was not there, or is not any more. What it raises is logged, to the logger "vstate". It hears
        of all that is committed after this call, which may be awaited to be sure that the store could be reached,
        and need not be. A call before there is a loop counts from the first call of the manager in one.
        """
        self._require_open()
        _require_subscription(pattern, function)
        return self._subscriptions.add(pattern, function)

    def unsubscribe(self, pattern: str, function: Subscriber) -> Wait:
        """Call the function no more; who awaits this waits for a call under way. Nothing if it is not subscribed."""
        return self._subscriptions.remove(pattern, function)

    # History

    async def rollback(self, key: str | None = None, *, steps: int = 1, rev: Revision | None = None) -> None:
        """Give a key the value that it had before its last `steps` changes, or at `rev`, as a new commit on top.

        Without a key, all keys of this manager. What is gathered is committed first; the keys of other managers stay
        as they are. Raises InvalidInput if there were not so many changes.
        """
        check_count("steps", steps, 1)
        if key is not None:
            self._require_key(key)
        await self.flush()
        ttl = self.config.ttl
        what = "all" if key is None else key
        where = f"to {rev}" if rev is not None else f"by {steps}"
        await self.change(lambda part: roll_back(part, key, steps, rev, ttl), f"roll {what} back {where}")

    # Mechanism

    async def _begin(self) -> None:
        await self._subscriptions.begin()

    async def close(self) -> None:
        """Commit what was gathered, end the subscriptions, and close; StorageError, not closed, if that fails."""
        if not self._closed:
            while self._gathered:  # by other tasks too, for as long as it is open
                await self.flush()
            self._gathered.stop()
            self._subscriptions.end_all()
        await super().close()


def _require_subscription(pattern: object, function: object) -> None:
    """TypeError for what is none: begun with each call of the manager, it would make all of them fail."""
    if not isinstance(pattern, str) or not callable(function):
        kinds = " and ".join(type(given).__name__ for given in (pattern, function))
        raise TypeError(f"subscribe takes a pattern and a function, not {kinds}")


class Values:
    """The values in this part of a state. What comes out is a copy."""

    def __init__(self, part: Namespace) -> None:
        self._part = part

    def get(self, key: str, default: Any, edit: Edit | None) -> Any:
        """The value of a key as it would be after the edit, `default` if there is none."""
        here: dict[str, Any] = {}
        if (edit is None or not edit.replaces) and key in self._part:
            here[key] = copied(self._part[key], key)
        if edit is not None:
            edit.carry_out(here, key)
        return here.get(key, default)

    def get_at(self, rev: Revision, key: str, default: Any) -> Any:
        """What the value was at a commit."""
        state = self._part.root
        assert isinstance(state, Versioned)
        return state.checkout(rev).get(self._part.prefix + key, default)

    def delete(self, key: str) -> bool:
        """Delete a key; False if there is none."""
        if key not in self._part:
            return False
        del self._part[key]
        return True

    def carry_out(self, edits: Mapping[str, Edit], ttl: float | None) -> None:
        """Make these edits; what they set expires in `ttl` seconds."""
        for key, edit in edits.items():
            edit.carry_out(self._part, key)
            if ttl is not None and not edit.deletes:
                self._part.expire(key, ttl)


def roll_back(
    part: Namespace, key: str | None, steps: int, rev: Revision | None, ttl: float | None = None
) -> None:
    """Set a key, or all of the part, to what was before the last `steps` commits that changed it, or at `rev`.

    It is staged; what is set expires in `ttl` seconds. Raises InvalidInput if there were fewer.
    """
    state = part.root
    assert isinstance(state, Versioned)
    if rev is not None and steps != 1:
        raise InvalidInput("a rollback takes a revision, or a number of steps, not both")
    prefix = part.prefix if key is None else part.prefix + key
    if rev is None:
        changes = list(islice(_changes(state, prefix, whole=key is not None), steps))
        if len(changes) < steps:
            what = "the state" if key is None else repr(key)
            raise InvalidInput(f"{what} has changed {len(changes)} times, which is fewer than {steps}")
        before = next(iter(state.repo.history.before(changes[-1])), None)
    else:
        before = state.checkout(rev).commit
    then = {} if before is None else state.checkout(before)
    if key is not None:
        names = {key}
    else:
        differ = tree.diff(state.repo.objects.nodes, before.tree if before else None, _head(state).tree)
        names = {change.key[len(prefix) :] for change in differ if change.key.startswith(prefix)}
    for name in names:
        if part.prefix + name in then:
            part[name] = then[part.prefix + name]
            if ttl is not None:
                part.expire(name, ttl)
        else:
            part.pop(name, None)


def _changes(state: Versioned, prefix: str, *, whole: bool) -> Iterator[Commit]:
    """The commits along the branch that changed a key with this prefix, or the key itself; newest first."""
    if state.head is None:
        return
    for commit in state.repo.history.first_parents(state.head.oid):
        before = next(iter(state.repo.history.before(commit)), None)
        if _differ(state.repo, before, commit, prefix, whole=whole):
            yield commit


def _differ(repo: Repository, before: Commit | None, after: Commit, prefix: str, *, whole: bool) -> bool:
    old = before.tree if before is not None else None
    if whole:
        node = repo.objects.node
        return tree.lookup(node, old, prefix) != tree.lookup(node, after.tree, prefix)
    return any(change.key.startswith(prefix) for change in tree.diff(repo.objects.nodes, old, after.tree))


def _head(state: Versioned) -> Commit:
    assert state.head is not None
    return state.head
