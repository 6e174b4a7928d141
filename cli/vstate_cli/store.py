"""Finding the store that a command is about."""

from __future__ import annotations

import re
from pathlib import Path

from vstate.errors import InvalidInput, NotFound
from vstate.kv.url import open_store
from vstate.repo.names.remotes import expanded, is_url
from vstate.repo.repository import Repository

DIRECTORY = ".vstate"
VARIABLE = "VSTATE_STORE"

_MEMORY = re.compile("((cache|encrypted|prefixed|readonly):)*memory:")

_HOW = f"point at one with --store PATH, or set {VARIABLE}"


def find(given: str | None, *, create: bool = False) -> str:
    """The path or URL given, else the `.vstate` directory here or in a parent; NotFound if there is none.

    With `create` it is then the one that is to be made here.
    """
    if given:
        if _MEMORY.match(given):
            raise InvalidInput(f"memory: is gone with the process that made it; {_HOW}")
        return given
    try:
        here = Path.cwd()
    except OSError:
        raise NotFound(f"the current directory does not exist any more; {_HOW}") from None
    for directory in (here, *here.parents):
        if (directory / DIRECTORY).is_dir():
            return str(directory / DIRECTORY)
    if create:
        return str(here / DIRECTORY)
    raise NotFound(f"no {DIRECTORY} directory in {here} or above it; {_HOW}")


def with_variables(place: str) -> str:
    """A URL with what the environment says in place of each `${NAME}`; a path as it is.

    The password of a command line is seen by whoever lists the processes.
    """
    return expanded(place) if is_url(place) else place


def open_repository(given: str | None, *, create: bool = False) -> Repository:
    """The repository in the store that is there; only a command that was told to create one does."""
    place = with_variables(find(given, create=create))
    try:
        store = open_store(place, create=create)
    except NotFound as error:
        if not str(error).startswith("no store at "):
            raise  # a key file is missing, say
        inside = Path(place) / DIRECTORY
        hint = f"did you mean {inside}?" if inside.is_dir() else _HOW
        # The store's own words for the place: the URL may hold a password.
        raise NotFound(f"{error}; {hint}", name=error.name) from None
    try:
        return Repository(store)
    except BaseException:
        store.close()
        raise
