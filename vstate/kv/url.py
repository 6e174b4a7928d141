"""open_store: from what a person writes, a path or a URL, to a store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.kv.disk import Disk
from vstate.kv.encrypted import Encrypted
from vstate.kv.memory import Memory


def open_store(store: KVStore | str | os.PathLike[str] | None, *, create: bool = True) -> KVStore:
    """The store that `store` stands for.

    None or "memory:" is a new Memory; a KVStore is itself; a path, or "disk:PATH", a Disk in that
    directory, with options as in `disk:agent-state?durability=process&size_limit=1000000`. "~" is the home
    directory; a path that holds "?" must be given without "disk:". "encrypted:STORE?key_file=PATH" is an
    Encrypted over the STORE, a path or URL that keeps its other options. Anything else raises InvalidInput,
    and a Disk that is not there NotFound if `create` is False.
    """
    if store is None:
        return Memory()
    if isinstance(store, KVStore):
        return store
    if not isinstance(store, str | os.PathLike):
        raise InvalidInput(f"a store is given as a KVStore, a path or a URL, not as {type(store).__name__}")
    text = os.fspath(store)
    if isinstance(store, str):
        scheme, _, rest = text.partition(":")
        if scheme in _SCHEMES:
            return _SCHEMES[scheme](rest, create)
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
            # Only the scheme is shown: what follows may hold a password.
            raise InvalidInput(f"no store has the scheme {scheme!r}; known are {_known()}, and plain paths")
    return Disk(os.path.expanduser(text), create=create)


def _open_memory(rest: str, create: bool) -> KVStore:
    if rest.strip("/"):
        raise InvalidInput('"memory:" takes nothing behind it: every one is a new, empty store')
    return Memory()


def _open_disk(rest: str, create: bool) -> KVStore:
    path, _, query = rest.partition("?")
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in ("durability", "size_limit", "timeout"):
            raise InvalidInput(f"disk: has no option {name!r}; it has durability, size_limit and timeout")
        options[name] = value
    durability = options.get("durability", "power")
    if durability not in ("power", "process"):
        raise InvalidInput(f'durability is "power" or "process", not {durability!r}')
    try:
        size_limit = int(options["size_limit"]) if "size_limit" in options else None
        timeout = float(options.get("timeout", "60"))
    except ValueError as error:
        raise InvalidInput(f"an option of disk: is not a number: {error}") from None
    return Disk(
        # "disk:///var/state" is what people write who are used to URLs.
        os.path.expanduser(path.removeprefix("//")),
        size_limit=size_limit,
        durability="process" if durability == "process" else "power",
        create=create,
        timeout=timeout,
    )


def _open_encrypted(rest: str, create: bool) -> KVStore:
    inner, _, query = rest.rpartition("?")
    options = [part for part in query.split("&") if part]
    files = [part.removeprefix("key_file=") for part in options if part.startswith("key_file=")]
    others = "&".join(part for part in options if not part.startswith("key_file="))
    if not inner or len(files) != 1 or not files[0]:
        raise InvalidInput("an encrypted store is given as encrypted:STORE?key_file=PATH")
    if others:
        # Behind a plain path they would be part of its name.
        scheme = "" if inner.partition(":")[0] in _SCHEMES else "disk:"
        inner = f"{scheme}{inner}?{others}"
    store = open_store(inner, create=create)
    try:
        return Encrypted(store, os.path.expanduser(files[0]))
    except BaseException:
        store.close()
        raise


_SCHEMES: dict[str, Callable[[str, bool], KVStore]] = {
    "memory": _open_memory,
    "disk": _open_disk,
    "encrypted": _open_encrypted,
}


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in sorted(_SCHEMES))
