"""Failures: the errors of PostgreSQL, translated for a caller."""

from __future__ import annotations

import os
from typing import Any, Final

import psycopg

from vstate.errors import CorruptStore, InvalidInput, StoreFull, StoreUnavailable, VStateError
from vstate.kv.files import NO_ROOM

MISSING_TABLE: Final = "42P01"
MISSING_SCHEMA: Final = "3F000"

UNDONE: Final = ("40001", "40P01")
"""Serialisation failures and deadlocks: the server undid the transaction, and asks for another try."""

_GOING_OR_COMING: Final = ("57P01", "57P02", "57P03", "57P05")


def is_lost(error: psycopg.Error, connection: psycopg.Connection[Any]) -> bool:
    """Whether the connection broke, so that nobody knows whether the server carried out the request."""
    state = error.sqlstate or ""
    return connection.closed or state.startswith("08") or state in _GOING_OR_COMING


def meaning(error: psycopg.Error, place: str, *, outcome_unknown: bool, timeout: float) -> VStateError:
    """The error of vstate for `error`, which is no broken connection."""
    state = error.sqlstate or ""
    said = _one_line(error)
    if outcome_unknown:
        # This attempt failed for its own reason, but an earlier one may have committed.
        return StoreUnavailable(
            f"{place} failed: {said}; the write may or may not have happened: read it again before you retry",
            outcome_unknown=True,
        )
    # The server has no state for a quota and for a limit on files: it quotes the system's words.
    if state == "53100" or any(os.strerror(number) in said for number in NO_ROOM):
        return StoreFull(
            f"the disk of the server of {place} is full ({said}); nothing was written: make room and retry"
        )
    if state == "42501":
        return StoreUnavailable(
            f"{place} cannot be used: {said}; grant the role of this connection SELECT, INSERT, UPDATE and "
            "DELETE on the table, USAGE on its schema, and CREATE there for a new one"
        )
    if state == "25006":
        return StoreUnavailable(
            f"{place} is read-only now ({said}); nothing was written: connect to the primary server, or "
            "allow writing"
        )
    if state == "55P03":
        return StoreUnavailable(
            f"{place} was locked by other writers for {timeout:g} s; nothing was written: retry later"
        )
    if state == MISSING_SCHEMA:
        return InvalidInput(f"{place}: {said}; make the schema first, with CREATE SCHEMA, or choose another")
    if state in ("54000", "22023", "53400", "22P03") or isinstance(error, psycopg.DataError):
        return InvalidInput(f"{place} does not take this value: {said}")
    if state in ("XX001", "XX002", "58P01"):
        return CorruptStore(place, said)
    if state in ("42703", "42804", "42883", "42P10"):
        return CorruptStore(place, f"the table is not as vstate made it: {said}")
    return StoreUnavailable(f"{place} failed: {said}; retry later")


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error.diag.message_primary or error).split()) or type(error).__name__
