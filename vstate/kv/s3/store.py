"""S3: a store in a bucket of S3, Google Cloud Storage, Azure, or a server that speaks S3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from vstate.backoff import Timeout
from vstate.errors import CorruptStore, InvalidInput, StoreUnavailable, VStateError
from vstate.forks import new_lock
from vstate.kv.base import KVStore, check_key, check_value, is_object
from vstate.kv.s3.bucket import AT_ONCE, PAGE, Bucket, Mark, Stored
from vstate.kv.s3.forms import (
    beginning_of,
    frame,
    frame_of_swap,
    is_value,
    just_before,
    key_of,
    name_of,
    value_of,
)
from vstate.kv.servers import Attempts, Failed, Failure
from vstate.recent import Recent

_LOCKS = 64
_POLL_SECONDS = 1.0
_MARKED_KEYS = 1024
_MARKED_BYTES = 4096
_LIST_FROM = 256  # keys, from which on `present` lists

_PROBE = "=probe"  # no key has this name
_WRONG = {"e_tag": '"00000000000000000000000000000000"', "version": "1"}

_conditional: set[str] = set()
"""The buckets whose service obeyed the condition of a write, as this process has seen."""


class Marks:
    """The value and mark of each key, as this handle saw them last, so that a swap need not read first.

    It keeps the last 1,024 keys, without large values, and without objects: nobody swaps those.
    """

    def __init__(self) -> None:
        self._keys = Recent[str, tuple[bytes | None, Mark]](_MARKED_KEYS)

    def note(self, key: str, value: bytes | None, mark: Mark | None) -> None:
        """Keep the value of the key, None if a swap deleted it; without a mark, forget the key."""
        if is_object(key):
            return
        if mark and len(value or b"") <= _MARKED_BYTES:
            self._keys[key] = value, mark
        else:
            self._keys.discard(key)

    def mark_of(self, key: str, value: bytes | None) -> Mark | None:
        """The mark of the key, if it had this value when it was last seen."""
        known = self._keys.get(key)
        return known[1] if known is not None and known[0] == value else None


class S3(KVStore):
    """A store in a bucket: `S3("s3://bucket/directory")`, `gs://…` or `az://…`, for any number of machines.

    Every key is an object of its own under the URL; `vstate.kv.s3.forms` says how it is named. Other objects
    there are left alone. The bucket must exist. Needs obstore: `pip install '.[s3]'`.

    - `options` are obstore's for the service: `endpoint`, `region`, `access_key_id`, `secret_access_key`,
      `session_token`, `account_name` and so on, its client's `allow_http`, `proxy_url`, ...; and a
      `credential_provider`. The environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`) or the machine's own identity
      supplies missing ones. No message, repr or pickle holds any of them.
    - `timeout`, in seconds, is how long a call tries before StoreUnavailable: twice as long for a swap whose
      outcome it must find out. None: 60 seconds, and 5 if no connection can be made.

    **Durability and consistency.** A call that has returned is as durable as the service makes an object, and
    every later read from anywhere sees it. The service must be strongly consistent, as S3, GCS, Azure, MinIO,
    R2 and SeaweedFS are; never read from a replica that follows later. No lifecycle rule may delete objects
    under the URL. A bucket with versions works, and keeps the objects that `gc` deletes.

    **Swaps** are conditional writes, which the service decides: `If-None-Match` and `If-Match` of AWS S3
    (since August and November 2024), MinIO, R2 and SeaweedFS, generations of GCS, ETags of Azure. Before its
    first swap in a bucket, a process makes one write whose condition is wrong. If the service carries it out,
    InvalidInput says so. A key that a swap deletes leaves an object of 8
    bytes, which counts as absent. A request that the network delivers late finds its condition gone. A plain
    `set` that was tried twice has no condition, and could undo a later one: swap a key that several writers
    write.

    **Requests.** A commit takes one PUT for each new object, side by side (32 at a time), and then one for
    the ref, with the reflog's line beside it. It reads nothing if this handle has read or written the ref
    before and nobody moved it since. `get_many` takes a GET each, `keys` a LIST for a thousand keys,
    `delete_many` a POST for a thousand keys on S3 and a DELETE each elsewhere. Values over 5 MB are uploaded
    in parts: have a lifecycle rule abort unfinished uploads.

    `transact` is no transaction, see there. `exclusively` keeps nobody out, so `gc` works with a grace
    period. A handle opened before a fork works on both sides of it. It pickles if no option holds a secret:
    leave credentials to the environment for that.
    """

    ordered = True

    def __init__(
        self, url: str, *, options: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> None:
        self._bucket = Bucket(url, options, timeout)
        self._marks = Marks()
        self._locks = [new_lock() for _ in range(_LOCKS)]

    # One key

    def get(self, key: str) -> bytes | None:
        return self._read(key)[0]

    def set(self, key: str, value: bytes) -> None:
        self._write(key, check_value(value))

    def delete(self, key: str) -> None:
        self._bucket.remove([self._name(key)])
        self._marks.note(key, None, None)

    def __contains__(self, key: str) -> bool:
        return is_value(self._bucket.size(self._name(key)))

    # Many

    def keys(self, prefix: str = "") -> Iterator[str]:
        """As promised by KVStore, and in the order of a listing: a thousand keys for each request."""
        beginning = beginning_of(check_key(prefix))
        directory, _, sought = beginning.rpartition("/")
        ordered = self._bucket.address.ordered
        for page in self._bucket.pages(directory or None, just_before(beginning) if ordered else None):
            for name, size in page:
                key = key_of(name) if is_value(size) else None
                if key is not None and key.startswith(prefix):
                    yield key
            # The part behind the directory decides, not the name: "x/y" may come before "x-" or after it.
            part = page[-1].name[len(directory) :].lstrip("/").partition("/")[0]
            if ordered and part > sought and not part.startswith(sought):
                return

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(map(check_key, keys)))
        values = self._bucket.together([partial(self.get, key) for key in wanted])
        return {key: value for key, value in zip(wanted, values, strict=True) if value is not None}

    def set_many(self, items: Mapping[str, bytes]) -> None:
        writes: list[Callable[[], None]] = [
            partial(self._write, check_key(key), check_value(value)) for key, value in items.items()
        ]
        self._bucket.together([*writes, *self._pending_probe()] if writes else [])

    def delete_many(self, keys: Iterable[str]) -> None:
        gone = list(dict.fromkeys(keys))
        self._bucket.remove([self._name(key) for key in gone])
        for key in gone:
            self._marks.note(key, None, None)

    def present(self, keys: Iterable[str]) -> Set[str]:
        """As promised by KVStore: by a listing if that may take fewer requests, otherwise by a HEAD each."""
        missing = {self._name(key): key for key in keys}
        found: set[str] = set()
        directories = {name.rpartition("/")[0] for name in missing}
        if len(missing) > _LIST_FROM and len(directories) == 1 and self._bucket.address.ordered:
            first, last = min(missing), max(missing)
            pages = self._bucket.pages(directories.pop() or None, just_before(first))
            # For as many requests as the HEADs would take: the keys may be few among very many.
            for _ in range(len(missing) // AT_ONCE):
                page = next(pages, [])
                seen = {listed.name: listed.size for listed in page}
                past = last if len(page) < PAGE else max(filter(missing.__contains__, seen), default="")
                found.update(missing[name] for name in seen.keys() & missing.keys() if is_value(seen[name]))
                missing = {name: key for name, key in missing.items() if name > past}
                if not missing:
                    return found
        rest = list(missing.values())
        there = self._bucket.together([partial(self.__contains__, key) for key in rest])
        return found | {key for key, is_there in zip(rest, there, strict=True) if is_there}

    # Swaps

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        name = self._name(key)
        if new is not None:
            new = check_value(new)
        elif expected is None:
            return self.get(key) is None
        for probe in self._pending_probe():
            probe()
        # Threads of this process that swap one key follow one another. That spares the service, which is slow
        # to tell contenders that they lost (a second, on SeaweedFS); correctness does not depend on it.
        lock = self._locks[hash(name) % _LOCKS]
        locked = lock.acquire(timeout=self._bucket.timeout / 2)
        try:
            return self._swap(key, expected, new)
        finally:
            if locked:
                lock.release()

    def _swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        name, wanted = self._name(key), frame_of_swap(new)
        mark = self._marks.mark_of(key, expected)
        if mark is None and expected is not None:
            there, mark = self._look(key, expected)
            if not there:
                return False
        attempts = Attempts(Timeout(self._bucket.timeout, self._bucket.timeout))
        refused = StoreUnavailable(
            f"{self.location} refused to write {key!r} for {self._bucket.timeout:g} s, since others were "
            "writing; nothing was written: retry later"
        )

        def attempt() -> bool:
            nonlocal mark
            tried, failure = mark, Failure(refused, passing=True)
            try:
                made = self._bucket.write_if(name, wanted, mark)
                if made is not None:
                    self._marks.note(key, new, made)
                    return True
            except Failed as failed:
                failure = failed.failure
                if not (failure.passing or failure.sent):
                    raise failure.error from None
                attempts.unsure = attempts.unsure or failure.sent
            value, stored = self._read(key)
            mark = stored.mark if stored else None
            if stored is not None and stored.data == wanted:
                return True
            if attempts.unsure and mark != tried:
                # The write was done and then overwritten, or it lost the race.
                raise failure.error
            if value != expected:
                return False
            raise Failed(failure)

        return attempts.repeat(attempt)

    def _pending_probe(self) -> Sequence[Callable[[], None]]:
        """The call to make before the first swap, or beside the writes before it. Empty from then on."""
        return [] if self._identity in _conditional else [self._probe]

    def _probe(self) -> None:
        """Raise InvalidInput if the service carries out a write whose condition does not hold."""
        # Repeated until its outcome is known: a service that ignores conditions could overwrite anything.
        if self._bucket.write_until_known(_PROBE, b"probe", _WRONG):
            self._bucket.remove([_PROBE])
            raise InvalidInput(
                f"the service of {self.location} ignores the conditions of a write, so two writers would "
                "overwrite each other's commits: use one with conditional writes, or a newer release of it"
            )
        _conditional.add(self._identity)

    # Transactions

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As promised by KVStore for a store without transactions, in two round trips, not one a step.

        1. Objects are set, all side by side. Beside them, the expected keys are read, except the one to be
           swapped if this handle remembers it with the expected value.
        2. The other keys are set beside the swap, not before it. An interruption may leave either without the
           other. If the swap fails, a key that was absent may stay set: to delete it could delete another
           writer's value. A key that was there is overwritten only after the swap, which takes a third round
           trip.
        3. Keys are deleted last.

        If the swap has happened and a write beside or behind it fails, StoreUnavailable says that the outcome
        is unknown.
        """
        swapped = [key for key in expected if key in writes]
        if len(swapped) > 1:
            raise InvalidInput(
                f"S3 cannot swap several keys as one ({', '.join(map(repr, swapped))}): swap one at a time, "
                "or use a store with transactions, such as Postgres"
            )
        for key in (*writes, *expected):
            self._name(key)
        values = {key: None if value is None else check_value(value) for key, value in writes.items()}
        others = {key: value for key, value in values.items() if key not in expected}
        objects = {key: value for key, value in others.items() if value is not None and is_object(key)}
        rows = {key: value for key, value in others.items() if value is not None and key not in objects}
        to_read = [
            key
            for key, value in expected.items()
            if key not in values or (value is not None and self._marks.mark_of(key, value) is None)
        ]
        checks = [partial(self._look, key, expected[key]) for key in to_read]
        sets: list[Callable[[], Any]] = [partial(self._write, key, value) for key, value in objects.items()]
        probe = self._pending_probe() if swapped else ()
        try:
            results: list[Any] = self._bucket.together([*checks, *sets, *probe])
        except StoreUnavailable as error:
            error.outcome_unknown = False  # an object may be there, but nothing was swapped
            raise
        if not all(there for there, _ in results[: len(checks)]):
            return False
        if swapped:
            (key,) = swapped
            if not self._swap_beside(key, expected[key], values[key], rows):
                return False
        else:
            self._bucket.together([partial(self._write, key, value) for key, value in rows.items()])
        if gone := [key for key, value in others.items() if value is None]:
            self._after_swap(bool(swapped), lambda: self.delete_many(gone))
        return True

    def _swap_beside(
        self, key: str, expected: bytes | None, new: bytes | None, rows: Mapping[str, bytes]
    ) -> bool:
        names = list(rows)
        creating = (
            self._bucket.begin([partial(self._create, row, rows[row]) for row in names]) if rows else []
        )
        try:
            swapped = self.compare_and_swap(key, expected, new)
        finally:
            # Nothing is still being written when this returns, also after a swap that failed.
            made = [future.exception() is None and future.result() is not None for future in creating]
        if swapped:
            late = [row for row, was_made in zip(names, made, strict=True) if not was_made]
            calls = [partial(self._write, row, rows[row]) for row in late]
            self._after_swap(True, lambda: self._bucket.together(calls))
        return swapped

    def _create(self, key: str, value: bytes) -> Mark | None:
        return self._bucket.write_if(self._name(key), frame(key, value), None)

    def _after_swap(self, swapped: bool, action: Callable[[], object]) -> None:
        try:
            action()
        except VStateError as error:
            if not swapped:
                raise
            # Any other error, a full store above all, would say that nothing has happened.
            raise StoreUnavailable(
                f"{error}; the ref has been swapped already: read it again before you retry",
                outcome_unknown=True,
            ) from None

    # Objects of the bucket

    def _name(self, key: str) -> str:
        return self._bucket.check_name(name_of(check_key(key)))

    def _write(self, key: str, value: bytes) -> None:
        self._marks.note(key, value, self._bucket.write(self._name(key), frame(key, value)))

    def _read(self, key: str) -> tuple[bytes | None, Stored | None]:
        """The value of the key and the object that holds it."""
        stored = self._bucket.read(self._name(key))
        try:
            value = None if stored is None else value_of(stored.data)
        except ValueError as error:
            raise CorruptStore(self.location, f"the object of {key!r} holds {error}") from None
        self._marks.note(key, value, stored.mark if stored else None)
        return value, stored

    def _look(self, key: str, expected: bytes | None) -> tuple[bool, Mark | None]:
        """Whether the key has that value, and the mark of its object."""
        value, stored = self._read(key)
        return value == expected, stored.mark if stored else None

    # Identity

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        """As promised by KVStore. A bucket reports no changes, and each look at a key costs money."""
        return nullcontext(lambda timeout: time.sleep(min(timeout, _POLL_SECONDS)))

    @property
    def location(self) -> str:
        return self._bucket.url

    @property
    def _identity(self) -> str:
        return f"{self._bucket.address.endpoint} {self._bucket.url}"

    def __repr__(self) -> str:
        return f"S3({self._bucket.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        address = self._bucket.address
        if not address.public:
            raise InvalidInput(
                f"{self!r} cannot be pickled, because its options may hold a secret; leave credentials to "
                "the environment, or open the store where it is used"
            )
        return partial(S3, options=address.options, timeout=address.given), (address.url,)

    def close(self) -> None:
        self._bucket.close()
