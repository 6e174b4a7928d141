"""The stores that a suite runs on."""

import os
from uuid import uuid4

_URLS: dict[str, str] = {}


def store_url(name: str) -> str:
    """The URL of the store for a name that a test uses, such as a file. ":memory:" is a new one each time."""
    new = os.environ["VSTATE_SUITE_STORE"].replace("{}", uuid4().hex)
    return new if name == ":memory:" else _URLS.setdefault(name, new)
