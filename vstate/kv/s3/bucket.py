"""Bucket: objects by name in S3, Google Cloud Storage or Azure. It knows nothing of keys and values.

obstore's messages hold URLs and whole answers of a server, and may hold secrets. Only codes and numbers leave
this module.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from vstate.backoff import Timeout
from vstate.errors import InvalidInput, StoreFull, StoreUnavailable, VStateError
from vstate.forks import new_lock, renew_in_child
from vstate.kv.s3.address import Address
from vstate.kv.s3.driver import abandon, load_obstore
from vstate.kv.s3.forms import LONGEST_NAME
from vstate.kv.servers import Attempts, Failed, Failure

T = TypeVar("T")

AT_ONCE = 32
"""Requests under way at a time. 500 reads of 500 bytes took threads 190 ms, and asyncio 300."""

PAGE = 1000  # names in an answer of S3's listing, which takes no more

_BULK = 1000

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_TRANSPORT = re.compile(r"kind: (Connect|Timeout|Request|Interrupted|Decode|Body)\b")
_METADATA = re.compile(r"//169\.254\.|//\[fd00:ec2|//metadata\b")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_FULL = re.compile("Quota|StorageFull|InsufficientStorage|storage_?cap", re.IGNORECASE)
"""Each service has its own code for a full bucket or account."""
_LATER = ("429", "503")
"""A quota of requests, not of room."""

_MEANINGS: Final[dict[str, tuple[type[VStateError], str]]] = {
    "no bucket": (StoreUnavailable, "there is no bucket at {url}: create it, or correct the URL"),
    "denied": (
        StoreUnavailable,
        "{url} does not allow this with these credentials{why}; give others, in the options or in the "
        "environment, or allow them to read, write, list and delete there",
    ),
    "full": (StoreFull, "{url} has no room{why}; delete what is not needed, or raise the quota"),
    "unsupported": (
        InvalidInput,
        "the service of {url} lacks a feature that a store needs{why}; use one with conditional writes, such "
        "as AWS S3, Google Cloud Storage, Azure, MinIO or SeaweedFS",
    ),
    "passing": (
        StoreUnavailable,
        "{url} could not be reached, or did not answer in time{why}; see that the URL and the endpoint are "
        "right and the service runs, and retry",
    ),
}
_OTHER: Final = (StoreUnavailable, "{url} failed{why}; retry later")

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
            raise self._error("unsupported", "no ETag")
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
            raise self._error("no bucket")
        return mark

    def write_if(self, name: str, data: bytes, mark: Mark | None) -> Mark | None:
        """Write the object once, if it still has this mark, or with None, if there is none. Return its new
        mark, or None if the condition did not hold. Failed otherwise: if it was `sent`, it may have been
        carried out, or may be yet.
        """
        path, mode = self.check_name(name), "create" if mark is None else dict(mark)
        return self._once(lambda: _mark(self._open().put(path, data, mode=mode)), writing=True)

    def write_until_known(self, name: str, data: bytes, mark: Mark) -> bool:
        """Repeat the conditional write until its outcome is known: whether it was done, once or twice."""

        def attempt() -> bool:
            try:
                return self.write_if(name, data, mark) is not None
            except Failed as failed:
                raise Failed(replace(failed.failure, sent=False)) from None

        return self._attempts().repeat(attempt)

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
        attempts = self._attempts()
        stream: Any = None
        end = object()

        def request() -> Any:
            nonlocal stream
            if stream is None:
                stream = iter(self._open().list(directory, offset=after, chunk_size=PAGE))
            return next(stream, end)

        def page() -> Any:
            nonlocal stream
            try:
                return self._once(request)
            except Failed as failed:
                stream = None
                # Without an order there is no place to go on from.
                goes_on = after is None or self.address.ordered
                raise Failed(replace(failed.failure, passing=failed.failure.passing and goes_on)) from None

        while (found := attempts.repeat(page)) is not end:
            if found is None:
                raise self._error("no bucket")
            attempts.got_on()
            if listed := [Listed(meta["path"], meta["size"]) for meta in found]:
                after = listed[-1].name
                yield listed

    def _attempts(self) -> Attempts:
        # Half of the time, because the last attempt may take the other half.
        return Attempts(Timeout(self.timeout / 2, self.address.to_reach))

    def _repeat(self, request: Callable[[], T], *, writing: bool = False) -> T | None:
        """Send the request until it succeeds or cannot succeed. Return None if there is no such object."""
        return self._attempts().repeat(lambda: self._once(request, writing=writing))

    def _once(self, request: Callable[[], T], *, writing: bool = False) -> T | None:
        """The answer to the request; None if there is no such object, or a condition does not hold. Failed
        for another answer of the service. Raises an error that is not obstore's.
        """
        began = time.monotonic()
        try:
            answer = request()
        except BaseException as error:
            kind, words, sent = _kind_of(error, self._driver.exceptions)
            if kind in ("refused", "no object"):
                return None
            lost_at = {"no connection": began, "connection lost": time.monotonic()}.get(words)
            failure = Failure(self._error(kind, words), kind == "passing", sent and writing, lost_at)
            raise Failed(failure) from None
        self._exists = True
        return answer

    def _error(self, kind: str, words: str = "") -> VStateError:
        error, text = _MEANINGS.get(kind, _OTHER)
        return error(text.format(url=self.url, why=f" ({words})" if words else ""))

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


def _kind_of(error: BaseException, known: Any) -> tuple[str, str, bool]:
    """The kind of an error of obstore, which is one of `known`; words without secrets; and whether the
    service may have carried out the request. Any other error is raised.
    """
    panic = type(error).__name__ == "PanicException"
    if not isinstance(error, known.BaseError | FileNotFoundError) and not panic:
        raise error
    text = str(error)
    status, code, transport = (
        found[1] if (found := pattern.search(text)) else "" for pattern in (_STATUS, _CODE, _TRANSPORT)
    )
    words = " ".join(filter(None, (status, code)))
    if code in _NO_BUCKET or "bucket does not exist" in text:
        return "no bucket", words, False
    if isinstance(error, FileNotFoundError):
        return "no object", words, False
    if (_FULL.search(code) and status not in _LATER) or status == "507":
        return "full", words, False
    if isinstance(error, known.PreconditionError | known.AlreadyExistsError):
        return "refused", words, False
    denied = isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError)
    if denied or status in ("401", "403"):
        return "denied", words, False
    if status == "501" or isinstance(error, known.NotSupportedError) or "MissingEtag" in text:
        return "unsupported", words or "no ETag", True
    if status:
        passing = status[0] == "5" or status in ("408", "409", "425", "429")
        return "passing" if passing else "other", words, status[0] == "5" or status == "408"
    if transport == "Connect" or "ConnectError(" in text or "BadScheme" in text:
        if _METADATA.search(text):
            return "denied", "no credentials found", False
        return "passing", "no connection", False
    if transport == "Timeout":
        return "passing", "no answer", True
    if transport:
        return "passing", "connection lost", True
    return "other", "obstore failed", True
