"""The stores that a suite runs on."""

import os
from uuid import uuid4

from vstate import KVStore, Memory

_PLACES: dict[str, KVStore | str] = {}


def place(name: str) -> KVStore | str:
    """The store for a name that a test uses, such as a file: a URL, or an object that is shared in memory.

    ":memory:" is a new one each time.
    """
    url = os.environ["VSTATE_SUITE_STORE"].replace("{}", uuid4().hex)
    new = Memory() if url == "memory:" else url
    return new if name == ":memory:" else _PLACES.setdefault(name, new)
