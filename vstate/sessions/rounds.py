"""Rounds: under which keys the sessions of a StateService, and the rounds of each, are in a state."""

from __future__ import annotations

import re

from vstate.errors import InvalidInput, InvalidRecord
from vstate.patterns.paths import join_path, split_path
from vstate.state.base import ReadableState

SESSIONS = "users"  # not "sessions", where a VersionedSession on the same store keeps its own
ROUNDS = "rounds"
DEFAULT = "default"
MOST_ROUNDS = 10**12 - 1

_DIGITS = 12


def highest_round(mapping: ReadableState, path: str) -> int | None:
    """The highest number of a round there is, found by counting keys, digit by digit."""
    prefix = rounds(path)
    count = len(mapping.keys(prefix))
    if not count:
        return None
    digits = "0" * max(0, _DIGITS - len(str(count)))
    if len(mapping.keys(prefix + digits)) != count:  # there are gaps
        digits = ""
    while len(digits) < _DIGITS:
        next_one = next((d for d in "9876543210" if len(mapping.keys(prefix + digits + d))), None)
        if next_one is None:
            return number_of(next(iter(mapping.keys(prefix + digits))))  # which says that it is none
        digits += next_one
    return int(digits)


def number_of(round_key: str) -> int:
    """The number of the round under a key; InvalidRecord for what was put there by something else."""
    digits = round_key.rpartition("/")[2]
    if not re.fullmatch(f"[0-9]{{{_DIGITS}}}", digits):
        raise InvalidRecord(round_key, f"a round is kept under a number of {_DIGITS} digits")
    return int(digits)


def session_of(session_key: str) -> str:
    """The id of the session under a key; InvalidRecord likewise."""
    parts = split_path(session_key)
    if len(parts) != 3:
        raise InvalidRecord(session_key, "a session is kept under the ids of a user and a session")
    return parts[2]


def text(name: str, value: object) -> str:
    """The value, if it is a text; TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return value


def checked_round(round_id: object) -> int | None:
    """As `checked_number`; None stands for the highest there is, or the one after it."""
    return None if round_id is None else checked_number(round_id)


def checked_number(round_id: object) -> int:
    """The number, if a round can have it; TypeError, InvalidInput."""
    if isinstance(round_id, bool) or not isinstance(round_id, int):
        raise TypeError(f"a round is an int, not {type(round_id).__name__}")
    if not 0 <= round_id <= MOST_ROUNDS:
        raise InvalidInput(f"a round is a number from 0 to {MOST_ROUNDS}, not {round_id}")
    return round_id


def path_of(user_id: str, session_id: str | None) -> str:
    """The part of the keys that says which session of which user it is; TypeError for what is no text."""
    session = DEFAULT if session_id is None else text("session_id", session_id) or DEFAULT
    return join_path(text("user_id", user_id), session)


def session_key(path: str) -> str:
    """The key that is there as long as the session is."""
    return f"{SESSIONS}/{path}"


def rounds(path: str) -> str:
    """What the keys of a session's rounds begin with."""
    return f"{ROUNDS}/{path}/"


def round_key(path: str, number: int) -> str:
    """The key of a round."""
    return f"{rounds(path)}{number:0{_DIGITS}}"
