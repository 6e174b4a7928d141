"""Failures: the errors of the driver, translated for a caller."""

from __future__ import annotations

import os
import re
from typing import Final

import redis

from vstate.errors import InvalidInput, StoreFull, StoreUnavailable, VStateError
from vstate.kv.files import NO_ROOM
from vstate.kv.redis.address import Address

TROUBLES: Final[tuple[type[Exception], ...]] = (
    redis.RedisError,
    OSError,
    # These two come from the driver too, though they are no RedisErrors. UnicodeError: of the name of a host.
    redis.exceptions.RedisClusterException,
    UnicodeError,
)

# The server will soon answer otherwise: it loads its data, moves them, or chooses another primary.
_PASSING = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK", "BUSY")
_CODES = re.compile(
    r"(?:^|-|: )(OOM|READONLY|LOADING|TRYAGAIN|CLUSTERDOWN|MOVED|ASK|BUSY|MASTERDOWN|MISCONF|NOREPLICAS|"
    r"NOAUTH|WRONGPASS|NOPERM|WRONGTYPE)\b"
)
# The driver cuts the code off a message where it has a class for it.
_CODES_BY_TYPE: Final[dict[type[Exception], str]] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.BusyLoadingError: "LOADING",
}


def may_pass(error: Exception, *, clustered: bool, reached: bool) -> bool:
    """Whether another try may succeed. Of a server that was never `reached`, only if it was busy."""
    if isinstance(error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError):
        return False
    if isinstance(error, redis.exceptions.ResponseError):
        code = code_of(error)
        if code in ("MOVED", "ASK", "READONLY", "MASTERDOWN"):
            return clustered
        return code in _PASSING
    if isinstance(error, redis.BusyLoadingError) or "Too many connections" in str(error):
        return True
    return reached


def is_refusal(error: Exception) -> bool:
    """Whether the server understood the command and will always refuse it."""
    return isinstance(error, redis.exceptions.ResponseError) and code_of(error) not in _PASSING


def is_out_of_reach(error: Exception) -> bool:
    """Whether there was no connection to the server, or it broke."""
    return is_unsure(error) and "Too many connections" not in str(error)


def is_unsure(error: Exception) -> bool:
    """Whether the server may have carried out the command before the error."""
    answered = (redis.exceptions.ResponseError, redis.BusyLoadingError, redis.AuthenticationError)
    return not isinstance(error, answered)


def code_of(error: Exception) -> str:
    """The server's code for an error, also where the error of a script is wrapped around it."""
    code = _CODES_BY_TYPE.get(type(error))
    if code is None and isinstance(error, redis.exceptions.ResponseError):
        found = _CODES.search(str(error))
        code = found[1] if found else ""
    return code or ""


def meaning(error: Exception, address: Address, *, timeout: float, unsure: bool = False) -> VStateError:
    """The error of vstate for an error of the driver."""
    place, code, text = address.place, code_of(error), str(error)
    for secret in address.secrets:
        text = text.replace(secret, "***")
    if code == "OOM":
        return StoreFull(
            f"{place} has reached its maxmemory; nothing was written: delete what is not needed, or raise "
            "the limit"
        )
    if code == "MISCONF" and any(os.strerror(number) in text for number in NO_ROOM):
        return StoreFull(f"the disk of {place} is full; nothing was written: make room and retry")
    if code == "WRONGTYPE":
        return InvalidInput(
            f"{place} holds data of another program under these keys; choose another prefix= for the store"
        )
    if code in ("MOVED", "ASK") and not address.clustered:
        return InvalidInput(
            f"{place} is one node of a Redis Cluster; write redis+cluster:// instead of redis://, or give a "
            "redis.RedisCluster as client="
        )
    if code in ("NOAUTH", "WRONGPASS") or isinstance(error, redis.AuthenticationError):
        reason = "refused the user and password, or wants some and got none; correct the URL"
    elif code == "NOPERM" or isinstance(error, redis.exceptions.AuthorizationError):
        reason = f"does not permit this user a command that a store needs ({text}); change the user's ACL"
    elif code in ("READONLY", "MASTERDOWN"):
        reason = "is a replica and takes no writes; connect to the primary, or retry after the failover"
    elif code in ("NOREPLICAS", "MISCONF"):
        reason = f"does not take writes now ({text}); retry later, or look after the server"
    elif isinstance(error, redis.TimeoutError | TimeoutError):
        reason = f"did not answer within {timeout:g} s; retry later"
    elif is_refusal(error):
        reason = f"refused a command: {text}"
    else:
        reason = f"cannot be reached ({text}); see that it runs, and retry"
    if unsure:
        reason += "; the write may or may not have happened: read it again before you retry"
    return StoreUnavailable(f"{place} {reason}", outcome_unknown=unsure)
