"""StateConfig: what a StateManager is to do, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from vstate.arguments import check_flag, check_seconds
from vstate.errors import InvalidInput
from vstate.kv.url import check_store, location_of
from vstate.managers.backends import KEY_PREFIX, FileBackend, MemoryBackend, RedisBackend
from vstate.managers.persistence import DIRECTORY, Persistence
from vstate.managers.readable import Format


@dataclass(frozen=True)
class StateConfig:
    """What a `StateManager` is to do, and where.

    - `backend`: "memory", "file", "redis", or a path, a URL or a store; by default what the other fields ask for.
    - `file_path`: for "file". The store is the directory of that name, without an ending of `.json` or
      `.msgpack`, which say how the files in it are written: "./state/app.json" means `./state/app/vstate.db`, and
      files in `./state/app/files/`. None: `./state`.
    - `redis_url`, `key_prefix`: for "redis". None: redis://localhost:6379, "vstate".
    - `ttl`: seconds after which a key is absent unless it is saved or updated again. None: never.
    - `auto_save`: False gathers changes until `flush`.
    - `save_interval`: seconds between two commits at the least; None or 0: each change is committed at once.

    A field that the backend would ignore raises InvalidInput.
    """

    backend: Persistence | None = field(default=None, repr=False)
    file_path: str | None = None
    redis_url: str | None = field(default=None, repr=False)  # which may hold a password, as may a backend
    key_prefix: str | None = None
    ttl: float | None = None
    auto_save: bool = True
    save_interval: float | None = None

    def __post_init__(self) -> None:
        check_store(self.backend)
        asked = {
            "file": self.file_path,
            "redis": self.redis_url if self.key_prefix is None else self.key_prefix,
        }
        wanted = [name for name, value in asked.items() if value is not None]
        if self.backend is None:
            if len(wanted) > 1:
                raise InvalidInput(
                    "file_path and redis_url ask for two backends: say backend='file' or 'redis'"
                )
            object.__setattr__(self, "backend", wanted[0] if wanted else "memory")
        for name in wanted:
            if name != self.backend:
                fields = "file_path is" if name == "file" else "redis_url and key_prefix are"
                raise InvalidInput(f"{fields} for backend={name!r}, not for {location_of(self.backend)!r}")
        check_flag("auto_save", self.auto_save)
        check_seconds("ttl", self.ttl, none="None for ever")
        check_seconds("save_interval", self.save_interval, zero=True, none="None for each change")

    def open(self) -> Persistence:
        """A new store as this says, or what `aio.Versioned` opens later."""
        if self.backend == "file":
            path = Path(self.file_path or DIRECTORY)
            if path.suffix not in (".json", ".msgpack"):
                return FileBackend(path)
            return FileBackend(path.with_suffix(""), format=cast(Format, path.suffix[1:]))
        if self.backend == "redis":
            url = self.redis_url or "redis://localhost:6379"
            return RedisBackend(url, key_prefix=KEY_PREFIX if self.key_prefix is None else self.key_prefix)
        assert self.backend is not None
        return MemoryBackend() if self.backend == "memory" else self.backend
