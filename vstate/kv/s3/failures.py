"""Failures: the errors of obstore, translated for a caller.

obstore's messages hold URLs and whole answers of a server, and may hold secrets. Only codes and numbers leave
this module.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Literal

from vstate.errors import InvalidInput, StoreFull, StoreUnavailable, VStateError

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_TRANSPORT = re.compile(r"kind: (Connect|Timeout|Request|Interrupted|Decode|Body)\b")
_METADATA = re.compile(r"//169\.254\.|//\[fd00:ec2|//metadata\b")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_FULL = re.compile("Quota|StorageFull|InsufficientStorage|storage_?cap", re.IGNORECASE)
"""Each service has its own code for a full bucket or account."""
_LATER = ("429", "503")
"""A quota of requests, not of room."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request, in words without secrets."""

    kind: Literal["missing", "refused", "denied", "full", "unsupported", "passing", "other"]
    words: str = ""
    sent: bool = False
    """Whether the service may have carried out the request."""
    no_bucket: bool = False
    connection: Literal["", "none", "broken"] = ""
    """Whether no connection could be made, or it broke."""

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind == "passing"

    def lost_at(self, began: float) -> float | None:
        """Since when the service cannot be reached, for a request that began then; None if it answers."""
        if self.connection == "broken":
            return time.monotonic()
        return began if self.connection else None

    @property
    def no_object(self) -> bool:
        """Whether the bucket is there but the object is not."""
        return self.kind == "missing" and not self.no_bucket


def failure_of(error: BaseException, known: Any) -> Failure:
    """The failure behind an error of obstore, which is one of `known`. Any other error is raised."""
    panic = type(error).__name__ == "PanicException"
    if not isinstance(error, known.BaseError | FileNotFoundError) and not panic:
        raise error
    text = str(error)
    status, code, transport = (
        found[1] if (found := pattern.search(text)) else None for pattern in (_STATUS, _CODE, _TRANSPORT)
    )
    words = " ".join(filter(None, (status, code)))
    if code in _NO_BUCKET or "bucket does not exist" in text:
        return Failure("missing", words, no_bucket=True)
    if isinstance(error, FileNotFoundError):
        return Failure("missing", words)
    if (code is not None and _FULL.search(code) and status not in _LATER) or status == "507":
        return Failure("full", words)
    if isinstance(error, known.PreconditionError | known.AlreadyExistsError):
        return Failure("refused", words)
    denied = isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError)
    if denied or status in ("401", "403"):
        return Failure("denied", words)
    if status == "501" or isinstance(error, known.NotSupportedError) or "MissingEtag" in text:
        return Failure("unsupported", words or "no ETag", sent=True)
    if status is not None:
        passing = status[0] == "5" or status in ("408", "409", "425", "429")
        return Failure("passing" if passing else "other", words, sent=status[0] == "5" or status == "408")
    if transport == "Connect" or "ConnectError(" in text or "BadScheme" in text:
        if _METADATA.search(text):
            return Failure("denied", "no credentials found")
        return Failure("passing", "no connection", connection="none")
    if transport == "Timeout":
        return Failure("passing", "no answer", sent=True)
    if transport is not None:
        return Failure("passing", "connection lost", sent=True, connection="broken")
    return Failure("other", "obstore failed", sent=True)


def meaning(failure: Failure, url: str, *, sent: bool = False) -> VStateError:
    """The error of vstate for a failure. `sent`: a write may have been carried out before it."""
    why = f" ({failure.words})" if failure.words else ""
    if failure.kind == "missing":
        return StoreUnavailable(f"there is no bucket at {url}: create it, or correct the URL")
    if failure.kind == "denied":
        return StoreUnavailable(
            f"{url} does not allow this with these credentials{why}: give others, in the options or in the "
            "environment, or allow them to read, write, list and delete there"
        )
    if failure.kind == "full":
        return StoreFull(f"{url} has no room{why}: delete what is not needed, or raise the quota")
    if failure.kind == "unsupported":
        return InvalidInput(
            f"the service of {url} lacks a feature that a store needs{why}: use one with conditional writes, "
            "such as AWS S3, Google Cloud Storage, Azure, MinIO or SeaweedFS"
        )
    if failure.passing:
        unsure = "; the write may or may not have happened: read it again" if sent else ""
        return StoreUnavailable(
            f"{url} could not be reached, or did not answer in time{why}: see that the URL and the endpoint "
            f"are right and the service runs, and retry{unsure}",
            outcome_unknown=sent,
        )
    return StoreUnavailable(f"{url} failed{why}: retry later", outcome_unknown=sent)
