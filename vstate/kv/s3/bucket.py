"""Bucket: objects by name in S3, Google Cloud Storage or Azure. It knows nothing of keys and values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from vstate.backoff import Backoff
from vstate.errors import InvalidInput
from vstate.forks import new_lock, renew_in_child
from vstate.kv.s3.address import Address
from vstate.kv.s3.driver import abandon, load_obstore
from vstate.kv.s3.failures import Failure, failure_of, meaning
from vstate.kv.s3.names import LONGEST_NAME

T = TypeVar("T")

AT_ONCE = 32
"""Requests under way at a time. 500 reads of 500 bytes took threads 190 ms, and asyncio 300."""

PAGE = 1000  # names in an answer of S3's listing, which takes no more

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_BULK = 1000

Mark = Mapping[str, str]
"""The id of one version of an object: its ETag, or its generation, depending on the service."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read."""

    data: bytes
    mark: Mark


class Listed(NamedTuple):
    """An object as it was listed."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of a conditional write.

    "done"; "refused": the condition did not hold; "failed": not done, and worth another try; or "unknown":
    the answer was lost, so the write may have been done, or may be done yet.
    """

    outcome: Literal["done", "refused", "failed", "unknown"]
    mark: Mark | None = None
    reason: str = ""
    lost_at: float | None = None


class Bucket:
    """The objects under a URL such as s3://bucket/directory. Names are relative to the URL.

    A request that fails in passing is repeated, with growing pauses. After `timeout` seconds StoreUnavailable
    is raised. A conditional write is tried once, since only the caller can tell whether the first try
    succeeded.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None, timeout: float | None) -> None:
        self.address = Address(url, options, timeout)
        self.timeout = self.address.timeout
        self._exists = False  # whether an answer has shown that the bucket is there
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._driver: Any = None
        self._store: Any = None
        self._lock = new_lock()
        renew_in_child(self, Bucket._renew)
        prefix = self._open().prefix or ""
        self._longest = LONGEST_NAME - len(prefix.encode()) - bool(prefix)

    @property
    def url(self) -> str:
        return self.address.url

    # Requests

    def read(self, name: str) -> Stored | None:
        """The object, None if there is none."""
        path = self.check_name(name)

        def request() -> Stored:
            answer = self._open().get(path)
            return Stored(bytes(answer.bytes()), _mark(answer.meta))

        stored = self._repeat(request)
        if stored is not None and not stored.mark:
            self._raise(Failure("unsupported", "no ETag"))
        return stored

    def size(self, name: str) -> int | None:
        """The bytes of the object, None if there is none."""
        path = self.check_name(name)
        size = self._repeat(lambda: int(self._open().head(path)["size"]))
        if size is None and not self._exists:
            # The answer to a HEAD does not tell a missing bucket from a missing object. A GET does.
            self.read(name)
            self._exists = True
        return size

    def write(self, name: str, data: bytes) -> Mark:
        """Make or replace the object."""
        path = self.check_name(name)
        mark = self._repeat(lambda: _mark(self._open().put(path, data)), writing=True)
        if mark is None:
            self._raise(Failure("missing", no_bucket=True))
        return mark

    def write_if(self, name: str, data: bytes, mark: Mark | None) -> Attempt:
        """Write the object once, if it still has this mark, or with None, if there is none."""
        path, began = self.check_name(name), time.monotonic()
        try:
            answer = self._open().put(path, data, mode="create" if mark is None else dict(mark))
            return Attempt("done", _mark(answer))
        except BaseException as error:
            failure = self._failure(error)
        if failure.kind == "refused" or failure.no_object:
            return Attempt("refused")
        if not failure.passing:
            self._raise(failure, sent=failure.sent)
        return Attempt(
            "unknown" if failure.sent else "failed", reason=failure.words, lost_at=failure.lost_at(began)
        )

    def write_until_known(self, name: str, data: bytes, mark: Mark) -> bool:
        """Repeat the conditional write until its outcome is known: whether it was done, once or twice."""
        backoff = self._backoff()
        while True:
            attempt = self.write_if(name, data, mark)
            if attempt.outcome in ("done", "refused"):
                return attempt.outcome == "done"
            if not backoff.pause(lost_at=attempt.lost_at):
                self._raise(Failure("passing", attempt.reason))

    def remove(self, names: Sequence[str]) -> None:
        """Remove the objects. They may be absent."""
        paths = [self.check_name(name) for name in names]
        # Other services complain of an absent object, and obstore then leaves out those behind it.
        size = _BULK if self.url.startswith("s3") else 1
        self.together([self._removing(paths[at : at + size]) for at in range(0, len(paths), size)])

    def _removing(self, paths: Sequence[str]) -> Callable[[], bool | None]:
        def request() -> bool:
            self._open().delete(paths)
            return True

        return lambda: self._repeat(request, writing=True)

    def pages(self, directory: str | None, after: str | None = None) -> Iterator[list[Listed]]:
        """All objects under the directory (None: all), a page at a time, from behind the name `after` on.

        If the address is `ordered`, the objects of one directory come in the order of their names.
        """
        backoff, stream, begun = self._backoff(), None, False
        while True:
            began = time.monotonic()
            try:
                if stream is None:
                    stream = iter(self._open().list(directory, offset=after, chunk_size=PAGE))
                found = next(stream, None)
            except BaseException as error:
                failure, stream = self._failure(error), None
                # Without an order there is no place to go on from.
                resumable = self.address.ordered or not begun
                if not (resumable and failure.passing and backoff.pause(lost_at=failure.lost_at(began))):
                    self._raise(failure)
                continue
            if found is None:
                return
            backoff = self._backoff()
            if page := [Listed(meta["path"], meta["size"]) for meta in found]:
                begun, after = True, page[-1].name
                yield page

    def _backoff(self) -> Backoff:
        # Half of the time, because the last try may take the other half.
        to_reach = self.address.to_reach
        return Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, seconds=self.timeout / 2, to_reach=to_reach)

    def _repeat(self, request: Callable[[], T], *, writing: bool = False) -> T | None:
        """Send the request until it succeeds or cannot succeed. Return None if there is no such object."""
        backoff, sent = self._backoff(), False
        while True:
            began = time.monotonic()
            try:
                answer = request()
            except BaseException as error:
                failure = self._failure(error)
            else:
                self._exists = True
                return answer
            sent = sent or (writing and failure.sent)
            if failure.no_object:
                return None
            if not (failure.passing and backoff.pause(lost_at=failure.lost_at(began))):
                self._raise(failure, sent=sent)

    def _failure(self, error: BaseException) -> Failure:
        return failure_of(error, self._driver.exceptions)

    def _raise(self, failure: Failure, *, sent: bool = False) -> NoReturn:
        raise meaning(failure, self.url, sent=sent) from None  # the error of obstore may hold secrets

    # Many requests at a time

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make the calls side by side, AT_ONCE at a time; the results in the order of the calls.

        If one raises, the calls that have not begun are left out and the others waited for. None goes on
        afterwards.
        """
        if len(calls) <= 1:
            return [call() for call in calls]
        return self.finish(self.begin(calls))

    def begin(self, calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Begin all the calls in other threads. Pass the result to `finish`."""
        with self._lock:
            self._require_open()
            pool = self._pool
            if pool is None:
                pool = self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vstate-bucket")
        return [self._submit(pool, call) for call in calls]

    def _submit(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
        try:
            return pool.submit(call)
        except RuntimeError:
            pass
        self._require_open()
        # The interpreter is ending and starts no threads. A program still saves its state, in this thread.
        future: Future[T] = Future()
        try:
            future.set_result(call())
        except Exception as error:  # as the pool does: `finish` raises it
            future.set_exception(error)
        return future

    def finish(self, begun: Sequence[Future[T]]) -> list[T]:
        """Wait for the calls and return their results. Raises as `together` does."""
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        finally:
            for future in begun:
                future.cancel()
            wait(begun)
        raised = [error for future in begun if not future.cancelled() and (error := future.exception())]
        if raised:
            raise raised[0]
        return [future.result() for future in begun]

    # Opening and closing

    def _open(self) -> Any:
        store = self._store
        if store is None:
            with self._lock:
                self._require_open()
                if self._store is None:
                    self._connect()
                store = self._store
        return store

    def _connect(self) -> None:
        self._driver = load_obstore()
        try:
            self._store = self._driver.store.from_url(self.url, **self.address.arguments)
            return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            unknown = re.search(r"[kK]ey: '?(\w+)'? is not|Invalid key: (\w+)", str(error))
            account = "Account must be specified" in str(error)
        # The error itself is not shown: it may quote the value of an option.
        names = ", ".join(sorted(self.address.options)) or "none"
        reason = "obstore does not take the value of one of them"
        if unknown:
            reason = f"obstore has no option {unknown[1] or unknown[2]!r}"
        elif account:
            reason = "an Azure container needs account_name too"
        elif not self.address.options:
            reason = "obstore does not take the URL, or a setting of the environment"
        raise InvalidInput(f"cannot open {self.url} with these options ({names}): {reason}")

    def check_name(self, name: str) -> str:
        """Return the name; InvalidInput if it is too long."""
        if len(name) > self._longest:
            raise InvalidInput(
                f"a key takes {len(name):,} bytes as a name in the bucket, where {self._longest:,} fit: "
                f"shorten it ({name[:60]}...)"
            )
        return name

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"the store at {self.url} is closed; open it again")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pool, self._pool, self._store = self._pool, None, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _renew(self) -> None:
        abandon(self._store, self._pool)
        self._store = self._pool = None


def _mark(answer: Mapping[str, Any]) -> Mark:
    return {name: answer[name] for name in ("e_tag", "version") if answer[name] is not None}
