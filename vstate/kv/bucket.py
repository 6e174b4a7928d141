"""Bucket: objects by name in S3, Google Cloud Storage or Azure, over obstore.

What S3 stands on: it knows of requests, their failures and how often to try, and nothing of keys and values.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar
from urllib.parse import SplitResult, urlsplit

from vstate.errors import InvalidInput, StoreFull, StoreUnavailable
from vstate.forks import ForkAware, survive_forks
from vstate.kv.object_names import LONGEST_NAME
from vstate.kv.obstore_driver import abandon, load_obstore

T = TypeVar("T")

AT_ONCE = 32
"""Requests under way at a time. 500 reads of 500 bytes took threads 190 ms, and obstore's asyncio calls 300."""

PAGE = 1000  # names in an answer of S3's listing, which takes no more

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_CONNECT_SECONDS = 5.0
_BULK = 1000

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
_CLIENT_OPTIONS = frozenset(
    ["allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"]
    + ["http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle"]
    + ["http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"]
    + ["proxy_excludes", "root_certificate", "randomize_addresses", "read_timeout", "user_agent"]
)
_PUBLIC_OPTIONS = frozenset(
    ["endpoint", "aws_endpoint", "region", "aws_region", "default_region", "virtual_hosted_style_request"]
    + ["skip_signature", "unsigned_payload", "disable_bulk_delete", "s3_express", "checksum_algorithm"]
    + ["server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "request_payer", "allow_http"]
    + ["connect_timeout", "read_timeout", "user_agent", "account_name", "use_emulator", "pool_idle_timeout"]
    + ["http1_only", "http2_only", "pool_max_idle_per_host", "root_certificate", "allow_invalid_certificates"]
)
"""What surely is no secret. An allow-list: the names of those that are differ between services and releases."""

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_TRANSPORT = re.compile(r"kind: (Connect|Timeout|Request|Interrupted|Decode|Body)\b")
_ENDPOINT = re.compile(r"(aws_)?endpoint(_url)?(_s3)?", re.IGNORECASE)
_METADATA = re.compile(r"//169\.254\.|//\[fd00:ec2|//metadata\b")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_FULL = ("QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage")

Mark = Mapping[str, str]
"""What tells one version of an object from any other: its ETag, or its generation, as the service has it."""


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
    """What became of a conditional write.

    "done"; "refused", since the condition did not hold; "failed", not done and worth another try; or "unknown":
    the answer was lost, it may have been done, and may still be.
    """

    outcome: Literal["done", "refused", "failed", "unknown"]
    mark: Mark | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What an error of obstore means: no more of what it says than can hold no secret."""

    kind: Literal["missing", "refused", "denied", "full", "unsupported", "passing", "other"]
    words: str = ""
    sent: bool = False
    no_bucket: bool = False

    @property
    def passing(self) -> bool:
        return self.kind == "passing"


class _Patience:
    """How long to go on trying: half of `seconds`, for the last try may take the other half."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds / 2
        self._pause = _FIRST_PAUSE

    def waits(self, failure: _Failure) -> bool:
        """Sleep for a while; False, at once, if trying again is in vain."""
        if not failure.passing or time.monotonic() + self._pause > self._until:
            return False
        time.sleep(self._pause * (0.5 + os.urandom(1)[0] / 256))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return True


class Bucket(ForkAware):
    """The objects under a URL such as s3://bucket/directory.

    Names are relative to the URL. Only vstate.errors come out, with nothing in them that a driver or a server
    has said but codes and numbers: their messages hold URLs, and may hold more.

    A request that failed in passing is made again, with growing pauses; after `timeout` seconds at the most
    StoreUnavailable says that it did not help. A conditional write is the exception: it is tried once, since only
    the caller can tell whether the first try did it.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None, timeout: float) -> None:
        self.url = _check_url(url)
        self.options = _as_options(options or {}, "options")
        self.timeout = _check_timeout(self.options.pop("timeout", timeout))
        self._arguments = self._check_options()
        # Directory buckets of S3 Express list in no order.
        directory_bucket = urlsplit(self.url).netloc.endswith("--x-s3")
        self.ordered = not (directory_bucket or self.options.get("s3_express"))
        self._is_there = False  # the bucket, as far as this handle has seen
        self._closed = False
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._driver: Any = None
        self._store: Any = None
        prefix = self._open().prefix or ""
        self._longest = LONGEST_NAME - len(prefix.encode()) - bool(prefix)
        survive_forks(self)

    # Requests

    def read(self, name: str) -> Stored | None:
        """The object, None if there is none."""
        path = self.check_name(name)

        def request() -> Stored:
            answer = self._open().get(path)
            return Stored(bytes(answer.bytes()), _mark(answer.meta))

        stored = self._insist(request)
        if stored is not None and not stored.mark:
            self._raise(_Failure("unsupported", "no ETag"))
        return stored

    def size(self, name: str) -> int | None:
        """How many bytes the object has, None if there is none."""
        path = self.check_name(name)
        size = self._insist(lambda: int(self._open().head(path)["size"]))
        if size is None and not self._is_there:
            # The answer to a HEAD has no words: only that to a GET tells a missing bucket from a missing object.
            self.read(name)
            self._is_there = True
        return size

    def write(self, name: str, data: bytes) -> Mark:
        """Make the object, or put another in its place."""
        path = self.check_name(name)
        mark = self._insist(lambda: _mark(self._open().put(path, data)), writing=True)
        if mark is None:
            self._raise(_Failure("missing", no_bucket=True))
        return mark

    def write_if(self, name: str, data: bytes, mark: Mark | None) -> Attempt:
        """Write the object if it still is the one with this mark; with None, if there is none. One try."""
        path = self.check_name(name)
        try:
            answer = self._open().put(path, data, mode="create" if mark is None else dict(mark))
            return Attempt("done", _mark(answer))
        except BaseException as error:
            failure = self._understand(error)
        if failure.kind == "refused" or (failure.kind == "missing" and not failure.no_bucket):
            return Attempt("refused")
        if not failure.passing:
            self._raise(failure, sent=failure.sent)
        return Attempt("unknown" if failure.sent else "failed", reason=failure.words)

    def write_until_known(self, name: str, data: bytes, mark: Mark) -> bool:
        """Do so until it is known whether the service did it: done twice, it is not told from done once."""
        patience = _Patience(self.timeout)
        while True:
            attempt = self.write_if(name, data, mark)
            if attempt.outcome in ("done", "refused"):
                return attempt.outcome == "done"
            failure = _Failure("passing", attempt.reason)
            if not patience.waits(failure):
                self._raise(failure)

    def remove(self, names: Sequence[str]) -> None:
        """See to it that there are no such objects."""
        paths = [self.check_name(name) for name in names]
        # Other services find fault with one that is not there, and obstore then leaves out those behind it.
        size = _BULK if self.url.startswith("s3") else 1
        self.together([self._removing(paths[at : at + size]) for at in range(0, len(paths), size)])

    def _removing(self, paths: Sequence[str]) -> Callable[[], bool | None]:
        def request() -> bool:
            self._open().delete(paths)
            return True

        return lambda: self._insist(request, writing=True)

    def pages(self, directory: str | None, after: str | None = None) -> Iterator[list[Listed]]:
        """All objects under the directory (None: all), a page at a time, from behind the name `after` on.

        If `ordered`, those of one directory come in the order of their names.
        """
        patience, stream, begun = _Patience(self.timeout), None, False
        while True:
            try:
                if stream is None:
                    stream = iter(self._open().list(directory, offset=after, chunk_size=PAGE))
                found = next(stream, None)
            except BaseException as error:
                failure, stream = self._understand(error), None
                # Where there is no order, there is no place to go on from.
                if (begun and not self.ordered) or not patience.waits(failure):
                    self._raise(failure)
                continue
            if found is None:
                return
            patience = _Patience(self.timeout)
            if page := [Listed(meta["path"], meta["size"]) for meta in found]:
                begun, after = True, page[-1].name
                yield page

    # Many at a time

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make all the calls side by side, some 32 at a time; what they return, in their order.

        If one raises, those not begun are left out, and the others waited for: nothing goes on behind one's back.
        """
        if len(calls) <= 1:
            return [call() for call in calls]
        return self.finish(self.begin(calls))

    def begin(self, calls: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Have all the calls made in other threads; `finish` has to be given what it returns."""
        with self._lock:
            self._require_open()
            pool = self._pool
            if pool is None:
                pool = self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vstate-bucket")
        # Not under the lock: a fork takes those of concurrent.futures before it asks for this one.
        return [self._submitted(pool, call) for call in calls]

    def _submitted(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
        try:
            return pool.submit(call)
        except RuntimeError:
            pass
        self._require_open()
        # The interpreter is ending, and has threads no more: what a program saves at its exit is saved in this one.
        future: Future[T] = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    def finish(self, begun: Sequence[Future[T]]) -> list[T]:
        """What the calls return, once they are done; raises as `together` does."""
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

    # Failures

    def _insist(self, request: Callable[[], T], *, writing: bool = False) -> T | None:
        """What the request returns, tried again for as long as that may help; None if there is no such object."""
        patience, sent = _Patience(self.timeout), False
        while True:
            try:
                answer = request()
            except BaseException as error:
                failure = self._understand(error)
            else:
                self._is_there = True
                return answer
            sent = sent or (writing and failure.sent)
            if failure.kind == "missing" and not failure.no_bucket:
                return None
            if not patience.waits(failure):
                self._raise(failure, sent=sent)

    def _understand(self, error: BaseException) -> _Failure:
        """What an error of obstore means; any other is raised again."""
        known = self._driver.exceptions
        panic = type(error).__name__ == "PanicException"
        if not isinstance(error, known.BaseError | FileNotFoundError) and not panic:
            raise error
        text = str(error)
        status, code, transport = (
            found[1] if (found := pattern.search(text)) else None for pattern in (_STATUS, _CODE, _TRANSPORT)
        )
        words = " ".join(filter(None, (status, code)))
        if code in _NO_BUCKET or "bucket does not exist" in text:
            return _Failure("missing", words, no_bucket=True)
        if isinstance(error, FileNotFoundError):
            return _Failure("missing", words)
        if code in _FULL or status == "507":
            return _Failure("full", words)
        if isinstance(error, known.PreconditionError | known.AlreadyExistsError):
            return _Failure("refused", words)
        if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError) or status in (
            "401",
            "403",
        ):
            return _Failure("denied", words)
        if status == "501" or isinstance(error, known.NotSupportedError) or "MissingEtag" in text:
            return _Failure("unsupported", words or "no ETag", sent=True)
        if status is not None:
            passing = status[0] == "5" or status in ("408", "409", "425", "429")
            return _Failure(
                "passing" if passing else "other", words, sent=status[0] == "5" or status == "408"
            )
        if transport == "Connect" or "BadScheme" in text:
            if _METADATA.search(text):
                return _Failure("denied", "no credentials found")
            return _Failure("passing", "no connection")
        if transport is not None:
            return _Failure(
                "passing", "no answer" if transport == "Timeout" else "connection lost", sent=True
            )
        return _Failure("other", "obstore failed", sent=True)

    def _raise(self, failure: _Failure, *, sent: bool = False) -> NoReturn:
        """Raise what the failure means to a caller; `sent` if it may have come after a write had been done."""
        why = f" ({failure.words})" if failure.words else ""
        if failure.kind == "missing":
            error: Exception = StoreUnavailable(
                f"there is no bucket at {self.url}: create it, or mend the URL"
            )
        elif failure.kind == "denied":
            error = StoreUnavailable(
                f"{self.url} does not let these credentials do that{why}: give others, in the options or in the "
                "environment, or have them allowed to read, write, list and delete there"
            )
        elif failure.kind == "full":
            error = StoreFull(f"{self.url} has no room{why}: delete what is not needed, or raise the quota")
        elif failure.kind == "unsupported":
            error = InvalidInput(
                f"the service of {self.url} lacks what a store needs{why}: use one with conditional writes, such "
                "as AWS S3, Google Cloud Storage, Azure, MinIO or SeaweedFS"
            )
        elif failure.passing:
            unsure = "; whether the write has happened is unknown: read it again" if sent else ""
            error = StoreUnavailable(
                f"{self.url} could not be reached, or did not answer in time{why}: see that the URL and the endpoint are "
                f"right and the service runs, and retry{unsure}",
                outcome_unknown=sent,
            )
        else:
            error = StoreUnavailable(f"{self.url} cannot be used so{why}", outcome_unknown=sent)
        # What obstore says holds URLs and whole answers of the server.
        raise error from None

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
            self._store = self._driver.store.from_url(self.url, **self._arguments)
            return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            unknown = re.search(r"[kK]ey: '?(\w+)'? is not|Invalid key: (\w+)", str(error))
            account = "Account must be specified" in str(error)
        # Not what the error says: it may quote the value of an option.
        names = ", ".join(sorted(self.options)) or "none"
        reason = "one of them has a value that obstore does not take"
        if unknown:
            reason = f"obstore has no option {unknown[1] or unknown[2]!r}"
        elif account:
            reason = "an Azure container needs account_name too"
        elif not self.options:
            reason = "obstore does not take the URL, or a setting of the environment"
        raise InvalidInput(f"cannot open {self.url} with these options ({names}): {reason}")

    def _check_options(self) -> dict[str, Any]:
        """The options as obstore takes them; InvalidInput without the values of any."""
        arguments = {name: value for name, value in self.options.items() if name not in _CLIENT_OPTIONS}
        client = {name: value for name, value in self.options.items() if name in _CLIENT_OPTIONS}
        client |= self._client_options()
        arguments.pop("client_options", None)
        if "retry_config" in arguments or "timeout" in client:
            # Tried again by obstore, a conditional write that had been done would look refused.
            raise InvalidInput("how long to try, and to try again, is the `timeout` of the store")
        for endpoint in self._endpoints():
            parts = _split(endpoint, "endpoint")
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
                raise InvalidInput("endpoint is a URL such as https://host:9000, without a password in it")
            if parts.scheme == "http" and str(client.get("allow_http", "")).lower() not in ("true", "1"):
                raise InvalidInput(
                    "endpoint has no TLS, so that whoever listens can read everything: use https, or give the "
                    "option allow_http=True"
                )
        half = timedelta(seconds=self.timeout / 2)
        limits = {"timeout": half, "connect_timeout": min(half, timedelta(seconds=_CONNECT_SECONDS))}
        # How often to try is not left to obstore.
        retries = {"max_retries": 0, "retry_timeout": half}
        return {**arguments, "client_options": {**limits, **client}, "retry_config": retries}

    def _client_options(self) -> dict[str, Any]:
        return _as_options(self.options.get("client_options") or {}, "client_options")

    def _endpoints(self) -> list[Any]:
        return [value for name, value in self.options.items() if _ENDPOINT.fullmatch(name)]

    @property
    def endpoint(self) -> str:
        """Where the service is, if an option says so."""
        return " ".join(map(str, self._endpoints()))

    @property
    def public(self) -> bool:
        """Whether the options surely hold no secret."""
        names = [*self.options, *self._client_options()]
        return all(name in _PUBLIC_OPTIONS or name == "client_options" for name in names)

    def check_name(self, name: str) -> str:
        """The name itself; InvalidInput if it is too long."""
        if len(name) > self._longest:
            raise InvalidInput(
                f"a key takes {len(name):,} bytes as a name in the bucket, where {self._longest:,} fit: shorten it "
                f"({name[:60]}...)"
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

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            abandon(self._store, self._pool)
            self._lock = threading.Lock()
            self._store = self._pool = None
        else:
            self._lock.release()


def _mark(answer: Mapping[str, Any]) -> Mark:
    return {name: answer[name] for name in ("e_tag", "version") if answer[name] is not None}


def _split(url: object, what: str) -> SplitResult:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        parts.port  # noqa: B018  # which is where a wrong one is found
        return parts
    except ValueError:
        raise InvalidInput(f"{what} is no URL") from None


def _as_options(options: object, what: str) -> dict[str, Any]:
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidInput(f"the {what} of a bucket are a dict of their values by their names, which are str")
    return dict(options)


def _check_timeout(timeout: object) -> float:
    try:
        seconds = float(timeout)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidInput("timeout is a number of seconds greater than 0")
    return seconds


def _check_url(url: str) -> str:
    parts = _split(url, "the place of a bucket")
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise InvalidInput(
            "a bucket is given as s3://bucket/directory, gs://bucket/directory or az://container/..."
        )
    # abfs://container@account.host is how Azure writes it.
    if parts.password is not None or (parts.username is not None and not parts.scheme.startswith("abfs")):
        raise InvalidInput(
            "a bucket's URL holds no credentials: give them in the options or in the environment"
        )
    if parts.query or parts.fragment:
        raise InvalidInput("a bucket's URL ends with its path: give options as options={...}")
    return url.rstrip("/")
