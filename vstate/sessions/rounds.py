"""Rounds: the keys of the sessions of a StateService, and of the rounds of each."""

from __future__ import annotations

import re

from vstate.arguments import check_text
from vstate.errors import InvalidRecord
from vstate.patterns.paths import join_path, split_path
from vstate.state.base import ReadableState

SESSIONS = "users"  # not "sessions": a VersionedSession on the same store uses that
ROUNDS = "rounds"
DEFAULT = "default"
MOST_ROUNDS = 10**12 - 1

_DIGITS = 12


def highest_round(mapping: ReadableState, path: str) -> int | None:
    """The highest number of a round; None without rounds."""
    key = next(iter(mapping.keys(round_prefix(path), reverse=True)), None)
    return None if key is None else number_of(key)


def number_of(round_key: str) -> int:
    """The number of the round under a key. Raises InvalidRecord for a key of something else."""
    digits = round_key.rpartition("/")[2]
    if not re.fullmatch(f"[0-9]{{{_DIGITS}}}", digits):
        raise InvalidRecord(round_key, f"the key of a round ends with a number of {_DIGITS} digits")
    return int(digits)


def ids_of(session_key: str) -> tuple[str, str]:
    """The ids of the user and the session of a key. Raises InvalidRecord for a key of something else."""
    parts = split_path(session_key)
    if len(parts) != 3:
        raise InvalidRecord(session_key, "the key of a session has the ids of a user and a session")
    return parts[1], parts[2]


def path_of(user_id: str, session_id: str | None) -> str:
    """The part of the keys with the user and the session. Raises TypeError unless both are str."""
    session = DEFAULT if session_id is None else check_text("session_id", session_id) or DEFAULT
    return join_path(check_text("user_id", user_id), session)


def session_key(path: str) -> str:
    """The key that exists as long as the session."""
    return f"{SESSIONS}/{path}"


def round_prefix(path: str) -> str:
    """The prefix of the keys of the rounds of a session."""
    return f"{ROUNDS}/{path}/"


def round_key(path: str, number: int) -> str:
    """The key of a round."""
    return f"{round_prefix(path)}{number:0{_DIGITS}}"
