"""The store that a command works on."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vstate.errors import InvalidInput, NotFound
from vstate.kv.disk.database import FILE_NAME
from vstate.kv.url import open_store
from vstate.repo.names.remotes import expanded, is_url
from vstate.repo.repository import Repository

DIRECTORY = ".vstate"
VARIABLE = "VSTATE_STORE"

_MEMORY = re.compile("((cache|encrypted|prefixed|readonly):)*memory:")

_NAME_ONE = f"name a store with --store PATH, or set {VARIABLE}"


def find_store(place: str | None, *, create: bool = False) -> str:
    """The path or URL `place`; without one, the nearest store here or in a parent.

    A store is the directory `.vstate` in a directory, or the directory itself, as a clone is. If there is
    none, NotFound. With `create`, no parent is looked at: the path here, at which to make one.
    """
    if place == "":
        raise InvalidInput(f"the path of the store is empty; {_NAME_ONE}")
    if place is not None:
        if _MEMORY.match(place):
            raise InvalidInput(
                "a memory: store ends with the process that made it; name another one with --store PATH"
            )
        return place
    try:
        here = Path.cwd()
    except OSError:
        raise NotFound(f"the current directory no longer exists; {_NAME_ONE}") from None
    for directory in (here,) if create else (here, *here.parents):
        if (directory / DIRECTORY).is_dir():
            return str(directory / DIRECTORY)
        if (directory / FILE_NAME).is_file():  # a clone, for one
            return str(directory)
    if create:
        return str(here / DIRECTORY)
    raise NotFound(f"no store and no {DIRECTORY} directory in {here} or above it; {_NAME_ONE}")


def with_variables(place: str) -> str:
    """A URL with each `${NAME}` replaced by that variable of the environment; a path unchanged.

    A password belongs into a variable: every user of the machine can list command lines.
    """
    return expanded(place) if is_url(place) else place


def open_repository(place: str | None, *, create: bool = False) -> Repository:
    """The repository in the store at `place`. NotFound if there is no store and `create` is false."""
    named = find_store(place, create=create)
    place = with_variables(named)
    try:
        store = open_store(place, create=create)
    except NotFound as error:
        if not str(error).startswith("no store at "):
            raise  # the store exists, but its key file does not
        hint = "check the path, or name another store with --store PATH"
        if named == os.environ.get(VARIABLE):
            hint = f"the variable {VARIABLE} names it; correct the variable, or use --store PATH"
        # The error's own text hides a password in the URL.
        raise NotFound(f"{error}; {hint}", name=error.name) from None
    try:
        return Repository(store)
    except BaseException:
        store.close()
        raise
