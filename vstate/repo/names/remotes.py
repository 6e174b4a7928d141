"""Remotes: the names of other stores, and what is known of their branches."""

from __future__ import annotations

import os
import re
from os import PathLike
from urllib.parse import quote, unquote

from vstate.errors import AlreadyExists, CorruptStore, InvalidInput, NotFound
from vstate.kv.base import KVStore
from vstate.kv.url import is_connection_string
from vstate.repo.names.refs import REMOTES, Refs, check_ref_name

REMOTE = "remote/"
"""The keys that begin so hold the URL of another store, by the name that it has here."""

ORIGIN = "origin"
"""The name of the store that this one was cloned from."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # one letter is a drive
_OVER_PATHS = ("disk", "cache", "encrypted", "prefixed", "readonly")
_IN_FRONT = re.compile(f"(?:(?:{'|'.join(_OVER_PATHS)}):)*")
_WITH_PATHS = ("key_file", "directory")  # the options that are paths
_PASSWORD = re.compile(r"://[^/:@?#]*:[^@]+@|://[^/?#]*:[^/?#@]+@")
_SECRET = re.compile(
    "passw|secret|token|credential|(account|access|master|api|sas)_key(?!_id)|^sas$|^sig$", re.IGNORECASE
)


class Remotes:
    """The other stores that one store knows by name. Their URLs hold no secret: see `check_url`."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._refs = Refs(store)

    def list(self) -> dict[str, str]:
        """The URLs by name, sorted."""
        found = {}
        for key, value in self._store.items(REMOTE):
            found[key.removeprefix(REMOTE)] = self._parse(key, value)
        return dict(sorted(found.items()))

    def url(self, name: str) -> str | None:
        """The URL of a remote, None if there is none of that name."""
        if not is_remote_name(name):
            return None
        value = self._store.get(REMOTE + name)
        return None if value is None else self._parse(REMOTE + name, value)

    def add(self, name: str, url: str) -> str:
        """Give another store a name; the URL as it is kept. AlreadyExists if the name is taken.

        `${NAME}` in the URL stands for what that variable of the environment says when the store is opened:
        so no password has to be kept here, and InvalidInput refuses one. A path is kept as an absolute one.
        """
        if not is_remote_name(name):
            raise InvalidInput(f"{name!r} is no name for a remote: as a branch is named, without '/'")
        url = absolute(check_url(url))
        if not self._store.compare_and_swap(REMOTE + name, None, url.encode()):
            raise AlreadyExists(
                f"there is a remote {name!r} already; remove it first, or choose another name", name=name
            )
        return url

    def remove(self, name: str) -> str:
        """Forget a remote, and where its branches were; its URL."""
        url = self.url(name)
        if url is None:
            raise self._no_remote(name)
        for branch, oid in self._refs.list(f"{REMOTES}{name}/").items():
            ref = f"{REMOTES}{name}/{branch}"
            self._refs.compare_and_swap(ref, expected=oid, new=None, action="remote: removed")
        self._store.delete(REMOTE + name)
        return url

    def default(self) -> str:
        """The remote that is meant when none is named: `origin`, else the only one; NotFound otherwise."""
        names = list(self.list())
        if ORIGIN in names or len(names) == 1:
            return ORIGIN if ORIGIN in names else names[0]
        if names:
            raise InvalidInput("there are several remotes; name one", candidates=names)
        raise NotFound(
            f"{self._store.location} has no remote; `vstate remote add origin URL` makes one", name=ORIGIN
        )

    def _no_remote(self, name: str) -> NotFound:
        return NotFound(f"no remote {name!r}", name=name, candidates=list(self.list())[:10])

    def _parse(self, key: str, value: bytes) -> str:
        try:
            return parse_row(value)
        except ValueError as error:
            raise CorruptStore(self._store.location, f"{key}: {error}") from error


def parse_row(value: bytes) -> str:
    """The URL that a row holds; ValueError if it makes no sense."""
    text = value.decode("utf-8")
    if not text or not text.isprintable():
        raise ValueError("it holds no URL")
    return text


def check_stays(place: str | PathLike[str]) -> None:
    """InvalidInput for the URL of a store in memory: whoever gives a URL has no hold of what would be in it."""
    if re.match("([a-z]+:)*memory:", os.fspath(place)):
        raise InvalidInput("memory: is gone with the process that made it; name a store that stays")


def check_url(url: str | PathLike[str]) -> str:
    """The URL, if it may be kept; InvalidInput if it holds a password, or could, or names nothing that lasts.

    The message does not show it.
    """
    text = os.fspath(url)
    if not text or not text.isprintable():
        raise InvalidInput("a remote is given as a path or a URL")
    check_stays(text)
    if is_connection_string(_IN_FRONT.sub("", text)):
        raise InvalidInput(
            "a connection string of libpq is no URL, and may hold a password, which is not kept: write it as "
            "'postgresql://USER:${PGPASSWORD}@HOST/DATABASE'; a path that looks like one is written with ./ before it"
        )
    shown = _VARIABLE.sub("", text)
    _, _, query = shown.partition("?")
    options = [part.partition("=") for part in re.split("[&?]", query)]
    if _PASSWORD.search(shown) or any(value and _SECRET.search(unquote(name)) for name, _, value in options):
        raise InvalidInput(
            "the URL holds a password, which is not kept: put that into a variable of the environment, and "
            "${NAME} in its place, as in 'redis://:${REDIS_PASSWORD}@host'"
        )
    return text


def absolute(url: str) -> str:
    """The URL with a path that does not depend on the current directory."""
    scheme, _, rest = url.partition(":")
    if scheme == "disk" and ":" in url:
        place, question, options = rest.partition("?")
        return f"disk:{_absolute_path(place.removeprefix('//'))}{question}{options}"
    if scheme in _OVER_PATHS and ":" in url:
        # A path behind it may hold a "?", and a store its own options.
        place, question, query = rest.rpartition("?") if "?" in rest else (rest, "", "")
        options = "&".join(_absolute_option(option) for option in query.split("&"))
        return f"{scheme}:{absolute(place)}{question}{options}"
    return url if is_url(url) else _absolute_path(url)


def _absolute_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if name not in _WITH_PATHS or not value or value.startswith("${"):
        return option
    return f"{name}{equals}{quote(_absolute_path(unquote(value)))}"


def _absolute_path(path: str) -> str:
    return path if path.startswith("${") else os.path.abspath(os.path.expanduser(path))


def is_url(place: str) -> bool:
    """Whether a place is written as a URL, and not as a path."""
    return _SCHEME.match(place) is not None


def expanded(url: str) -> str:
    """The URL with what the environment says in place of each `${NAME}`; InvalidInput, naming it, if that is
    not set.

    In the part with the user and the password it is escaped as a URL wants it.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise InvalidInput(f"the URL needs the variable {match[1]}, which is not set in the environment")
        before, behind = url[: match.start()], url[match.end() :]
        in_front_of_host = re.search("://[^/?#]*$", before) and re.match("[^/?#]*@", behind)
        return quote(found, safe="") if in_front_of_host else found

    return _VARIABLE.sub(value, url)


def is_remote_name(name: str) -> bool:
    try:
        return "/" not in check_ref_name(name, "remote")
    except InvalidInput:
        return False
