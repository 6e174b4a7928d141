"""open_store: opens the store at a path or URL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

from vstate.errors import InvalidInput, NotFound, VStateError
from vstate.kv.base import KVStore
from vstate.kv.cache import Cache
from vstate.kv.disk import Disk
from vstate.kv.encrypted import MARK, Encrypted
from vstate.kv.memory import Memory
from vstate.kv.prefixed import Prefixed
from vstate.kv.servers import BAD_ESCAPE
from vstate.kv.wrapper import ReadOnly

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "vstate.stores"
"""The group of the entry points by which other packages open stores. Each is named after its scheme, and is a
function of the URL, `opener(url: str, *, create: bool) -> KVStore`."""


def open_store(store: KVStore | str | os.PathLike[str] | None, *, create: bool = True) -> KVStore:
    """The store at a path or URL.

    None is a new Memory; a KVStore is returned as it is; a path is a Disk in that directory, "~" the home
    directory. A str may also be a URL:

    | | |
    |---|---|
    | `memory:` | a new Memory |
    | `disk:PATH` | a Disk; options: durability, size_limit, timeout |
    | `redis://`, `rediss://`, `redis+unix://` | a Redis; options: prefix, ttl, timeout, redis-py's own |
    | `redis+cluster://`, `rediss+cluster://` | the same on a cluster |
    | `redis+sentinel://`, `rediss+sentinel://` | the same on the primary that sentinels name |
    | `postgresql://`, `postgres://` | a Postgres; options: table, timeout, connections, libpq's own |
    | `s3://`, `gs://`, `az://` | an S3; options: timeout, and those of obstore: endpoint, region, ... |
    | `encrypted:STORE?key_file=PATH` | an Encrypted over the STORE |
    | `cache:STORE` | a Cache in front of it; options: max_bytes, directory, directory_bytes |
    | `prefixed:STORE?name=NAME` | the part of it that has this name |
    | `readonly:STORE` | a ReadOnly over it, which must exist |

    STORE is a path or a URL, and keeps its other options. Options stand behind "?", with "&" between them, as
    in `disk:agent-state?durability=process&size_limit=1000000`. In their values and in passwords,
    percent-encode the characters that mean something in a URL. Give a path that holds "?" without "disk:".
    Other packages add schemes, see ENTRY_POINTS.

    Anything else raises InvalidInput, which shows no more of a URL than its scheme and the names of its
    options. If `create` is False, NotFound if there is no store; on Redis, in a bucket, and as a part of
    another store, an empty store counts as none.
    """
    if store is None:
        return Memory()
    if isinstance(store, KVStore):
        return store
    text = os.fspath(check_store(store))
    scheme = _scheme_of(text) if isinstance(store, str) else None
    if scheme is None:
        return Disk(text, create=create)
    known = _SCHEMES.get(scheme)
    if known is None:
        return _open_with_plugin(scheme, text, create)
    place, options = _parse(scheme, known, text[len(scheme) + 1 :])
    return known.open(f"{scheme}:{place}", create, **options)


_S = TypeVar("_S")


def check_store(store: _S) -> _S:
    """Return `store`; InvalidInput unless `open_store` takes its type. Nothing is opened."""
    if store is None or isinstance(store, KVStore | str | os.PathLike):
        return store
    raise InvalidInput(f"a store is given as a KVStore, a path or a URL, not as {type(store).__name__}")


def location_of(store: KVStore | str | os.PathLike[str] | None) -> str:
    """Where a store is, for messages: its location, its path, or the scheme of its URL. No secret."""
    if store is None or isinstance(store, KVStore):
        return "memory" if store is None else store.location
    text = os.fspath(store)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text) if isinstance(store, str) else None
    if scheme is not None:
        return f"{scheme[1]}:..."
    return "..." if "://" in text or is_connection_string(text) else text


# Reading


class _Scheme(NamedTuple):
    """How a URL of a scheme is opened and read: its options, with their types, and the kind of its rest.

    `open` gets the URL without these options, whether to create the store, and the options as values. The
    rest is a "path", without other options; a "store", another path or URL, with its own options; a "server",
    an address for a driver, with options of the driver; or a "bucket", whose driver takes its options apart
    from the address.
    """

    open: Callable[..., KVStore]
    options: Mapping[str, type] = MappingProxyType({})
    holds: Literal["path", "store", "server", "bucket"] = "path"


def _scheme_of(text: str) -> str | None:
    """The scheme of a URL, None for a path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?", text)
    if match is not None:
        if match[2]:
            return match[1].lower()
        # "C:" is a drive, and a file may be called "a:b". But "encryped:a" is probably a slip, and would be a
        # store that is not encrypted.
        known = match[1] in _SCHEMES or (len(match[1]) > 1 and _plugins(match[1]))
        if known or (_resembled(match[1]) and not os.path.exists(text)):
            return match[1]
    if "://" in text and not text.startswith(("/", ".", "~")):
        # The URL of a server with a slip in its scheme, or a space before it, would become a directory named
        # after its password.
        raise InvalidInput(
            "this is no URL: a URL begins with its scheme and no space, as in redis://; write a path that "
            "holds :// with ./ before it"
        )
    if is_connection_string(text):
        # It would become a directory named after its password, too.
        raise InvalidInput(
            "only Postgres(…) takes a connection string of libpq: write it as a URL, "
            "postgresql://USER@HOST/DATABASE; write a path that looks like one with ./ before it"
        )
    return None


def is_connection_string(text: str) -> bool:
    """Whether the text is a connection string of libpq, `host=HOST dbname=DATABASE`, rather than a path."""
    found = set(_LIBPQ.findall(text))
    return not text.startswith(("/", ".", "~")) and (len(found) > 1 or any("pass" in name for name in found))


_LIBPQ: Final = re.compile(
    r"(?:^|[\s:])(host|hostaddr|port|dbname|user|password|passfile|service|sslmode|sslpassword)\s*="
)


def _resembled(scheme: str) -> list[str]:
    """The known scheme that this one resembles, if there is one."""
    from difflib import get_close_matches  # late, for a quick `import vstate`

    return get_close_matches(scheme.lower(), _SCHEMES, 1, 0.75)


def _parse(scheme: str, known: _Scheme, text: str) -> tuple[str, dict[str, Any]]:
    """The text behind the scheme's colon without the options of vstate, and those options as values."""
    # The STORE of "store" may be a path with a "?" in it.
    place, mark, query = text.rpartition("?") if known.holds == "store" else text.partition("?")
    if not mark:
        place, query = text, ""
    options: dict[str, Any] = {}
    others = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        kind = known.options.get(name)
        if known.holds == "bucket" and _is_name(name):
            kind = kind or str
        if kind is None and known.holds in ("store", "server") and _is_name(name):
            others.append(part)
        elif kind is None:
            which = f"; it has {', '.join(known.options)}" if known.options else ""
            raise InvalidInput(f"{scheme}: has no option {_shown(name)}{which}")
        elif name in options:
            raise InvalidInput(f"{scheme}: has the option {_shown(name)} twice")
        else:
            options[name] = _value(scheme, name, value, kind)
    if others:
        if known.holds == "store" and _scheme_of(place) is None:
            # Behind a plain path the options would be part of its name.
            place = f"disk:{place}"
        place = f"{place}?{'&'.join(others)}"
    return place, options


def _value(scheme: str, name: str, text: str, kind: type) -> Any:
    wrong = None
    try:
        if not re.search(BAD_ESCAPE, text):
            return kind(unquote(text, errors="strict"))
        wrong = "is wrongly percent-encoded: write a single % as %25"
    except UnicodeDecodeError:
        wrong = "is not percent-encoded UTF-8"
    except ValueError:
        wrong = f"is not a {'whole ' if kind is int else ''}number"
    raise InvalidInput(f"the option {_shown(name)} of {scheme}: {wrong}")


def _shown(name: str) -> str:
    # Any other text may be the end of a password that holds "?".
    return repr(name) if _is_name(name) else "of that name"


def _is_name(text: str) -> bool:
    return re.fullmatch("[A-Za-z][A-Za-z0-9_.-]{0,40}", text) is not None


# Opening


def _open_memory(url: str, create: bool) -> KVStore:
    if url.partition(":")[2].strip("/"):
        raise InvalidInput('"memory:" takes nothing behind it: it is always a new, empty store')
    return Memory()


def _open_disk(url: str, create: bool, **options: Any) -> KVStore:
    # People who are used to URLs write "disk:///var/state".
    return Disk(url.removeprefix("disk:").removeprefix("//"), create=create, **options)


def _open_redis(url: str, create: bool, **options: Any) -> KVStore:
    from vstate.kv.redis import Redis  # late, as is every driver

    return _found(Redis(url.replace("redis+unix:", "unix:"), **options), create)


def _open_postgres(url: str, create: bool, **options: Any) -> KVStore:
    from vstate.kv.postgres import Postgres  # late, as is every driver

    return Postgres(url, create=create, **options)


def _open_s3(url: str, create: bool, *, timeout: float | None = None, **options: Any) -> KVStore:
    from vstate.kv.s3 import S3  # late, as is every driver

    return _found(S3(url, options=options or None, timeout=timeout), create)


def _open_encrypted(url: str, create: bool, *, key_file: str = "") -> KVStore:
    return _over(url, create, lambda store: Encrypted(store, key_file), "key_file=PATH", key_file)


def _open_cache(url: str, create: bool, **options: Any) -> KVStore:
    return _over(url, create, lambda store: Cache(store, **options))


def _open_readonly(url: str, create: bool) -> KVStore:
    return _over(url, False, ReadOnly)


def _open_prefixed(url: str, create: bool, *, name: str = "") -> KVStore:
    def part(store: KVStore) -> KVStore:
        return _found(Prefixed(store, name, owns=True), create)

    return _over(url, create, part, "name=NAME", name)


def _over(
    url: str, create: bool, make: Callable[[KVStore], KVStore], needs: str = "", given: str = ""
) -> KVStore:
    """What `make` puts in front of the store behind the scheme. It needs the option `needs`."""
    scheme, _, behind = url.partition(":")
    if not behind or (needs and not given):
        option = f"?{needs}" if needs else ""
        raise InvalidInput(f"{scheme}: needs the path or the URL of a store: write {scheme}:STORE{option}")
    store = open_store(behind, create=create)
    try:
        return make(store)
    except BaseException:
        store.close()
        raise


def _found(store: KVStore, create: bool) -> KVStore:
    """Return the store; NotFound if it is empty and `create` is False."""
    try:
        # These two keys first: a server may take long to find the first of few keys among many others.
        if create or store.present(["format", MARK]) or next(iter(store.keys()), None) is not None:
            return store
        raise NotFound(f"no store at {store.location}: there is nothing in it", name=store.location)
    except BaseException:
        store.close()
        raise


_REDIS: Final = _Scheme(_open_redis, {"prefix": str, "ttl": float, "timeout": float}, "server")
_POSTGRES: Final = _Scheme(_open_postgres, {"table": str, "timeout": float, "connections": int}, "server")
_S3: Final = _Scheme(_open_s3, {"timeout": float}, "bucket")

_SCHEMES: Final[dict[str, _Scheme]] = {
    "memory": _Scheme(_open_memory),
    "disk": _Scheme(_open_disk, {"durability": str, "size_limit": int, "timeout": float}),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "s3": _S3,
    "gs": _S3,
    "az": _S3,
    "encrypted": _Scheme(_open_encrypted, {"key_file": str}, "store"),
    "cache": _Scheme(_open_cache, {"max_bytes": int, "directory": str, "directory_bytes": int}, "store"),
    "prefixed": _Scheme(_open_prefixed, {"name": str}, "store"),
    "readonly": _Scheme(_open_readonly, holds="store"),
}


# Other packages


def _plugins(scheme: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # late: it is slow to import, and reads every package's files

    return list(entry_points(group=ENTRY_POINTS, name=scheme))


def _open_with_plugin(scheme: str, url: str, create: bool) -> KVStore:
    plugins = _plugins(scheme)
    packages = [plugin.dist.name if plugin.dist is not None else "(unnamed)" for plugin in plugins]
    if not plugins:
        # Only the scheme is shown: the rest may hold a password.
        raise InvalidInput(
            f"no store has the scheme {scheme!r}; known are {_known()}, and plain paths: write ./{scheme}:… "
            "for a directory of that name",
            candidates=[f"{name}:" for name in _resembled(scheme)],
        )
    if len(plugins) > 1:
        raise InvalidInput(
            f"several packages have a store for {scheme}:, {', '.join(sorted(packages))}: uninstall all but "
            "one"
        )
    broken = f"the package {packages[0]}, which has the store for {scheme}:, is broken"
    try:
        opener = plugins[0].load()
    except Exception as error:  # any; it cannot hold the URL, which nobody has passed on yet
        raise InvalidInput(
            f"{broken}: loading {plugins[0].value!r} failed with {type(error).__name__}: {error}; install it "
            "again"
        ) from error
    try:
        store = opener(url, create=create)
    except VStateError:
        raise
    except Exception as error:  # any; its text and its cause are not shown, since they may hold the URL
        raise InvalidInput(f"{broken}: {plugins[0].value!r} failed with {type(error).__name__}") from None
    if not isinstance(store, KVStore):
        raise InvalidInput(f"{broken}: {plugins[0].value!r} returned {type(store).__name__}, not a KVStore")
    return store


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in sorted(_SCHEMES))
