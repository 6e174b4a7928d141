"""Remotes: names and URLs of other stores."""

from __future__ import annotations

import os
import re
from os import PathLike
from urllib.parse import quote, unquote

from vstate.errors import AlreadyExists, CorruptStore, InvalidInput, NotFound
from vstate.kv.base import KVStore
from vstate.kv.url import is_connection_string
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import REMOTES, Refs, absent, check_ref_name

REMOTE = "remote/"
"""Keys with this prefix hold the URL of another store, by its name here."""

ORIGIN = "origin"
"""The usual name of the store that this one was cloned from."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # a single letter is a drive
_OVER_PATHS = ("disk", "cache", "encrypted", "prefixed", "readonly")
_IN_FRONT = re.compile(f"(?:(?:{'|'.join(_OVER_PATHS)}):)*")
_WITH_PATHS = ("key_file", "directory")  # options whose values are paths
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
        """The URL of a remote, None if there is no such remote."""
        if not is_remote_name(name):
            return None
        value = self._store.get(REMOTE + name)
        return None if value is None else self._parse(REMOTE + name, value)

    def add(self, name: str, url: str) -> str:
        """Give another store a name; its URL as stored. AlreadyExists if the name is taken.

        `${NAME}` in the URL stands for the environment variable NAME at the time of opening. So no password
        needs to be stored, and InvalidInput refuses one. A path is stored as an absolute path.
        """
        check_remote_name(name)
        url = absolute(check_url(url))
        if not self._store.compare_and_swap(REMOTE + name, None, url.encode()):
            raise AlreadyExists(
                f"there is a remote {name!r} already; remove it first, or choose another name", name=name
            )
        return url

    def remove(self, name: str) -> str:
        """Forget a remote and its tracking refs; its URL."""
        url = self.url(name)
        if url is None:
            raise absent(f"no remote {name!r}", name, self.list(), "remote", "vstate remote")
        for branch, oid in self._refs.list(f"{REMOTES}{name}/").items():
            ref = f"{REMOTES}{name}/{branch}"
            self._refs.compare_and_swap(ref, expected=oid, new=None, action="remote: removed")
        self._store.delete(REMOTE + name)
        return url

    def upstream(self, branch: str) -> tuple[str, ObjectId] | None:
        """The branch of a remote, as `origin/main`, of the last push, pull or clone, and its commit then."""
        latest = None
        for name, oid in self._refs.list(REMOTES).items():
            if not name.endswith(f"/{branch}") or name.count("/") != branch.count("/") + 1:
                continue
            last = next(self._refs.reflog(REMOTES + name), None)
            if last is not None and (latest is None or last.time > latest[0]):
                latest = last.time, (name, oid)
        return None if latest is None else latest[1]

    def default(self) -> str:
        """The default remote: `origin`, or else the only one; NotFound for none, InvalidInput for several."""
        names = list(self.list())
        if ORIGIN in names or len(names) == 1:
            return ORIGIN if ORIGIN in names else names[0]
        if names:
            raise InvalidInput("there are several remotes; name one", candidates=names)
        raise NotFound(
            f"{self._store.location} has no remote; add one with `vstate remote add origin URL`", name=ORIGIN
        )

    def _parse(self, key: str, value: bytes) -> str:
        try:
            return parse_remote(value)
        except ValueError as error:
            raise CorruptStore(self._store.location, f"{key}: {error}", repairable=True) from error


def parse_remote(value: bytes) -> str:
    """The URL in a row; ValueError if the row holds none."""
    text = value.decode("utf-8")
    if not text or not text.isprintable():
        raise ValueError("it holds no URL")
    return text


def check_stays(place: str | PathLike[str]) -> None:
    """InvalidInput for the URL of a store in memory: nothing would outlive the call that opens it."""
    if re.match("([a-z]+:)*memory:", os.fspath(place)):
        raise InvalidInput("memory: is gone with the process that made it; name a store that stays")


def check_url(url: str | PathLike[str]) -> str:
    """The URL, if it may be stored; InvalidInput if it may hold a password, or names a store in memory.

    The message does not show the URL.
    """
    text = os.fspath(url)
    if not text or not text.isprintable():
        raise InvalidInput("name a remote as a path or a URL")
    check_stays(text)
    if is_connection_string(_IN_FRONT.sub("", text)):
        raise InvalidInput(
            "a libpq connection string is no URL, and may hold a password, which is not stored: "
            "write it as a URL, 'postgresql://USER:${PGPASSWORD}@HOST/DATABASE'; "
            "write ./ before a path that looks like one"
        )
    shown = _VARIABLE.sub("", text)
    _, _, query = shown.partition("?")
    options = [part.partition("=") for part in re.split("[&?]", query)]
    if _PASSWORD.search(shown) or any(value and _SECRET.search(unquote(name)) for name, _, value in options):
        raise InvalidInput(
            "the URL holds a password, which is not stored: put the password into an environment variable, "
            "and ${NAME} in its place, as in 'redis://:${REDIS_PASSWORD}@host'"
        )
    return text


def absolute(url: str) -> str:
    """The URL with an absolute path in place of a relative one."""
    scheme, _, rest = url.partition(":")
    if scheme == "disk" and ":" in url:
        place, question, options = rest.partition("?")
        return f"disk:{_absolute_path(place.removeprefix('//'))}{question}{options}"
    if scheme in _OVER_PATHS and ":" in url:
        # The path may contain "?", and the inner store may have options of its own: only the last "?" counts.
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
    """Whether a place is written as a URL, not as a path."""
    return _SCHEME.match(place) is not None


def expanded(url: str) -> str:
    """The URL with each `${NAME}` replaced from the environment; InvalidInput if a variable is not set.

    A value in the user and password part is percent-encoded.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise InvalidInput(f"the URL needs the variable {match[1]}, which is not set in the environment")
        before, behind = url[: match.start()], url[match.end() :]
        in_front_of_host = re.search("://[^/?#]*$", before) and re.match("[^/?#]*@", behind)
        return quote(found, safe="") if in_front_of_host else found

    return _VARIABLE.sub(value, url)


def check_remote_name(name: str) -> str:
    """The name, if a remote may have it; InvalidInput otherwise."""
    if not is_remote_name(name):
        raise InvalidInput(f"{name!r} is no name for a remote: use a branch name without '/'")
    return name


def is_remote_name(name: str) -> bool:
    """Whether a remote may have this name."""
    try:
        return "/" not in check_ref_name(name, "remote")
    except InvalidInput:
        return False
