"""Memory: a store in a dict, for tests and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from vstate.forks import Uncopied, new_lock
from vstate.kv.base import TransactionalStore, check_key, check_keys, check_value
from vstate.plural import counted


class Memory(Uncopied, TransactionalStore):
    """A store in this process's memory. `transact` is one transaction; a fork gives the child a copy."""

    remote = False

    def __init__(self) -> None:
        self._lock = new_lock()
        self._values: dict[str, bytes] = {}
        # The sets and deletes of a transaction until all are done: an interruption may come in between.
        self._journal: tuple[dict[str, bytes], list[str]] | None = None

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._lock:
            if self._journal is not None:
                self._carry_out()
            return self._values.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that are present, all of one moment."""
        asked = [check_key(key) for key in keys]
        with self._lock:
            self._carry_out()
            return {key: self._values[key] for key in asked if key in self._values}

    def keys(self, prefix: str = "") -> Iterator[str]:
        check_key(prefix)
        with self._lock:
            self._carry_out()
            return iter([key for key in self._values if key.startswith(prefix)])

    def present(self, keys: Iterable[str]) -> Set[str]:
        with self._lock:
            self._carry_out()
            return {key for key in keys if check_key(key) in self._values}

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        check_keys([*expected, *writes])
        sets, deletes = {}, []
        for key, value in writes.items():
            if value is None:
                deletes.append(key)
            else:
                sets[key] = value if type(value) is bytes else bytes(check_value(value))
        with self._lock:
            if self._journal is not None:
                self._carry_out()
            for key, value in expected.items():
                if self._values.get(key) != value:
                    return False
            self._journal = sets, deletes
            self._carry_out()
        return True

    def _carry_out(self) -> None:
        """Carry out the journal from its beginning, if there is one."""
        if self._journal is not None:
            sets, deletes = self._journal
            self._values.update(sets)
            for key in deletes:
                self._values.pop(key, None)
            self._journal = None

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        with self._lock:
            return self.transact(plan(), {})

    def __repr__(self) -> str:
        return f"Memory({counted(len(self._values), 'key')})"
