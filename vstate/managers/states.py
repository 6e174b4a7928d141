"""StateManager: values by key, saved, merged, watched and rolled back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, Unpack, cast
from weakref import finalize

from vstate.arguments import check_count, check_flag, check_new_key, check_seconds, check_state_key
from vstate.errors import InvalidInput
from vstate.kv.memory import Memory
from vstate.kv.url import check_store, location_of
from vstate.managers.backends import Persistence, Where
from vstate.managers.edits import Edit, PendingEdits, require_dict
from vstate.managers.manager import Manager, Wait
from vstate.managers.subscriptions import Subscriber, Subscriptions
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.patterns.copies import Frozen
from vstate.plural import counted
from vstate.repo.core import Revision
from vstate.repo.history import ROLLED_BACK, rolled_back
from vstate.state.namespace import Namespace
from vstate.state.versioned import Versioned

__all__ = ["StateConfig", "StateManager"]

_ABSENT: Final = object()
_NAMED: Final = 3  # keys in the message of a commit


@dataclass(frozen=True)
class StateConfig:
    """The store of a `StateManager`, and when it commits.

    - `backend`: "memory", "file", "redis", or a path, a URL or a store. By default the other fields choose.
    - `file_path`: for "file", a directory; None: `./state`. A path that ends with `.json` is a file with all
      values by key, for people to read. Each commit replaces it. The store beside it has the path without
      the ending: "./state/app.json" means `./state/app/vstate.db`.
    - `redis_url`, `key_prefix`: for "redis". None: redis://localhost:6379, "vstate".
    - `ttl`: seconds after which a key is absent unless it is saved or updated again. None: never.
    - `auto_save`: False keeps changes in memory until `flush`.
    - `save_interval`: the least seconds between two commits. None or 0: each change is committed at once.

    A field that the backend would ignore raises InvalidInput.
    """

    backend: Persistence | None = field(default=None, repr=False)  # a URL may hold a password
    file_path: str | None = None
    redis_url: str | None = field(default=None, repr=False)
    key_prefix: str | None = None
    ttl: float | None = None
    auto_save: bool = True
    save_interval: float | None = None

    def __post_init__(self) -> None:
        check_store(self.backend)
        for name, fields in (("file", [self.file_path]), ("redis", [self.redis_url, self.key_prefix])):
            if fields.count(None) == len(fields):
                continue
            if self.backend is None:
                object.__setattr__(self, "backend", name)
            elif self.backend != name:
                fields_are = "file_path is" if name == "file" else "redis_url and key_prefix are"
                raise InvalidInput(
                    f"{fields_are} for backend={name!r}, not for {location_of(self.backend)!r}"
                )
        if self.backend is None:
            object.__setattr__(self, "backend", "memory")
        check_flag("auto_save", self.auto_save)
        check_seconds("ttl", self.ttl, none="None for ever")
        check_seconds("save_interval", self.save_interval, zero=True, none="None for each change")


class StateManager(Manager):
    """Values by key, of any type that pickle can hold: `StateManager(config=StateConfig(backend="file"))`.

    `save` stores the value as it is at the call, and `get` returns a copy. By default each change is one
    commit on the newest state, durable when the method returns.

    With `save_interval`, a change is committed at once if the last commit is that long ago. Other changes are
    pending: this manager reads them, and the event loop or the next change commits them when the interval is
    over. A crash loses the pending changes, those of `save_interval` seconds at most while the loop runs.
    With `auto_save=False` it loses all changes since the last `flush`. `close` commits pending changes: close
    the manager before its loop ends.
    """

    part = "state"

    def __init__(
        self,
        persistence: Persistence | StateConfig | None = None,
        *,
        config: StateConfig | None = None,
        **where: Unpack[Where],
    ) -> None:
        if isinstance(persistence, StateConfig):
            if config is not None:
                raise InvalidInput("two configs were given: leave one of them out")
            persistence, config = None, persistence
        self.config = config = StateConfig() if config is None else config
        if not isinstance(config, StateConfig):
            raise TypeError(f"config is a StateConfig, not a {type(config).__name__}")
        if persistence is None:
            persistence = "memory" if config.backend is None else config.backend
            fields = {
                "redis_url": config.redis_url,
                "key_prefix": config.key_prefix,
                "path": config.file_path,
            }
            where = cast(Where, {**{name: value for name, value in fields.items() if value}, **where})
        elif config.backend != "memory":
            raise InvalidInput(
                f"persistence and the config's backend {location_of(config.backend)!r} were both given: "
                "choose one"
            )
        super().__init__(persistence, **where)
        interval = config.save_interval or None if config.auto_save else None
        self._pending = PendingEdits(interval, in_memory=isinstance(self._own_store, Memory))
        self._subscriptions = Subscriptions(self._state, self.part)
        finalize(self, self._subscriptions.end_all).atexit = False

    # Values

    async def save(self, key: str, value: Any) -> None:
        """Set the value of a key. Raises Unpicklable, which shows the place in the value."""
        self._require_key(key)
        await self._edit(f"save {key}", key, Edit(replaces=True, value=_freeze(key, value)))

    async def update(self, key: str, changes: Mapping[Any, Any]) -> None:
        """Set these top-level keys of the dict under a key; an absent dict counts as empty.

        Others may update other top-level keys at the same time. Raises InvalidInput if the value is no dict.
        """
        self._require_key(key)
        if not isinstance(changes, Mapping):
            raise TypeError(f"changes is a dict, not a {type(changes).__name__}")
        merged = {name: _freeze(key, value) for name, value in changes.items()}
        if self._defers:
            require_dict(key, await self.get(key, {}))
        await self._edit(f"update {key}", key, Edit(merged=merged))

    async def delete(self, key: str) -> bool:
        """Delete a key. Returns False if there is none."""
        if not self._defers:
            return await self.change(lambda part: _delete(part, key), f"delete {key}")
        found = await self.get(key, _ABSENT) is not _ABSENT
        if found:
            await self._edit(f"delete {key}", key, Edit(replaces=True))
        return found

    async def get(self, key: str, default: Any = None, *, rev: Revision | None = None) -> Any:
        """A copy of the value of a key, or `default`; with `rev`, of the value at that commit."""
        edit = self._pending.get(key) if rev is None else None
        return await self.read(lambda part: _get(part, key, default, edit, rev))

    async def list_keys(self, pattern: str = "*") -> list[str]:
        """The keys like `agent:*`, sorted. "*" is any text, "?" one character, "[ab]" one of these."""
        begin = re.split(r"[*?[]", pattern, maxsplit=1)[0]
        committed = await self.read(lambda part: list(part.keys(begin)))
        return sorted(key for key in self._pending.keys_after(committed) if fnmatchcase(key, pattern))

    # Committing

    async def flush(self) -> Commit | None:
        """Commit the pending changes; None without any. If it fails, all of them stay pending."""
        self._require_open()
        return self._state.head if await self._pending.flush(self._commit) else None

    @property
    def _defers(self) -> bool:
        return not self.config.auto_save or bool(self.config.save_interval)

    def _require_key(self, key: str) -> None:
        """Raise TypeError or InvalidInput for an invalid key, which would stop every later commit."""
        check_state_key(key)
        check_new_key(f"{self.part}/{key}")

    async def _edit(self, message: str, key: str, edit: Edit) -> None:
        if not self._defers:
            await self._commit({key: edit}, lambda: None, message)
            return
        self._require_open()
        await self._pending.add(key, edit, self._commit)

    async def _commit(
        self, edits: Mapping[str, Edit], on_commit: Callable[[], object], message: str = ""
    ) -> None:
        ttl = self.config.ttl

        def apply(part: Namespace) -> None:
            for key, edit in edits.items():
                edit.apply(part, key)
                if ttl is not None and key in part:
                    part.expire(key, ttl)

        named = ", ".join(islice(edits, _NAMED)) + (", ..." if len(edits) > _NAMED else "")
        await self._change(apply, on_commit, message or f"save {named}")

    # Subscribers

    def subscribe(self, pattern: str, function: Subscriber) -> Wait:
        """Call `function(key, old, new)`, sync or async, for each commit that changes keys like `agent:*`.

        Commits of other processes count too. The calls come in the event loop, one at a time, in order; None
        stands for an absent value. An exception of the function is logged to the logger "vstate". The
        function hears of all commits after this call, or, if no loop runs yet, after the first call of the
        manager in one. To await the result is optional; it raises StoreUnavailable if the store cannot be
        reached.
        """
        self._require_open()
        given: tuple[object, object] = pattern, function
        if not isinstance(given[0], str) or not callable(given[1]):  # every later call would fail
            kinds = " and ".join(type(argument).__name__ for argument in given)
            raise TypeError(f"subscribe takes a pattern and a function, not {kinds}")
        return self._subscriptions.add(pattern, function)

    def unsubscribe(self, pattern: str, function: Subscriber) -> Wait:
        """Stop the calls of a subscribed function. Await the result to wait for a call under way."""
        return self._subscriptions.remove(pattern, function)

    # History

    async def rollback(self, key: str | None = None, *, steps: int = 1, rev: Revision | None = None) -> None:
        """Give a key its value from before its last `steps` changes, or at `rev`, as a new commit on top.

        Without a key, all keys of this manager; keys of other managers stay. Another call goes further back:
        a rollback counts as the commit that it went back to. Pending changes are committed first. Raises
        InvalidInput if the key has fewer changes.
        """
        check_count("steps", steps, 1)
        if key is not None:
            self._require_key(key)
        await self.flush()
        ttl = self.config.ttl
        subject = "all" if key is None else key
        where = f"to {rev}" if rev is not None else f"by {steps}"
        info: dict[str, str | None] = {}

        def go_back(part: Namespace) -> None:
            info.clear()
            info.update(_roll_back(part, key, steps, rev, ttl))

        await self.change(go_back, f"roll {subject} back {where}", **{ROLLED_BACK: info})

    # Mechanism

    async def _begin(self) -> None:
        await self._subscriptions.begin()

    async def close(self) -> None:
        """Commit pending changes, end subscriptions, and close. If the commit raises, it stays open."""
        if not self._closed:
            while self._pending:  # other tasks may add more until it is closed
                await self.flush()
            self._pending.stop()
            self._subscriptions.end_all()
        await super().close()


def _freeze(key: str, value: Any) -> Frozen:
    return Frozen(value, key, f'state["{key}"]')


def _get(part: Namespace, key: str, default: Any, edit: Edit | None, rev: Revision | None) -> Any:
    """A copy of the value of a key, after the edit or at a commit; `default` if there is none."""
    if rev is not None:
        state = part.root
        assert isinstance(state, Versioned)
        return state.checkout(rev).get(part.prefix + key, default)
    values: dict[str, Any] = {}
    if (edit is None or not edit.replaces) and key in part:
        values[key] = _freeze(key, part[key]).thaw()
    if edit is not None:
        edit.apply(values, key)
    return values.get(key, default)


def _delete(part: Namespace, key: str) -> bool:
    if key not in part:
        return False
    del part[key]
    return True


def _roll_back(
    part: Namespace, key: str | None, steps: int, rev: Revision | None, ttl: float | None
) -> dict[str, str | None]:
    """Stage the values of a key, or of all, at `rev` or before the last `steps` commits that changed them.

    Returns the commit's info of the rollback. The staged values expire in `ttl` seconds. Raises InvalidInput
    if there are fewer such commits.
    """
    state = part.root
    assert isinstance(state, Versioned)
    prefix = part.prefix if key is None else part.prefix + key

    def differing(old: Commit | None, new: Commit | None) -> list[str]:
        """The keys to roll back that differ between two commits."""
        roots = (None if commit is None else commit.root for commit in (old, new))
        changes = tree.diff(state.repo.objects.nodes, *roots)
        return [
            name for name, _, _ in changes if (name.startswith(prefix) if key is None else name == prefix)
        ]

    if rev is None:
        history, head = state.repo.history, state.head
        found = () if head is None else history.going_back(head, prefix, lambda a, b: bool(differing(a, b)))
        changes = [before for _, before in islice(found, steps)]
        if len(changes) < steps:
            subject = "the state" if key is None else repr(key)
            raise InvalidInput(
                f"{subject} has changed {counted(len(changes), 'time')}, which is fewer than {steps}"
            )
        before = changes[-1]
    elif steps != 1:
        raise InvalidInput("a rollback takes a revision or a number of steps: leave one of them out")
    else:
        before = state.checkout(rev).commit
    then = {} if before is None else state.checkout(before)
    for name in differing(before, state.head):
        if name in then:
            state[name] = then[name]
            if ttl is not None:
                state.expire(name, ttl)
        else:
            state.pop(name, None)
    return rolled_back(before, prefix)
