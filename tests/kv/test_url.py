"""open_store: paths and URLs."""

import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import with_options

from vstate.errors import InvalidInput, NotFound, ReadOnly
from vstate.kv import S3, Cache, Disk, Memory, Postgres, Prefixed, Redis, open_store
from vstate.kv.encrypted import save_key


def test_none_and_memory() -> None:
    """None and "memory:" are new stores in memory; an open store is returned as it is."""
    for text in (None, "memory:", "memory://"):
        store = open_store(text)
        assert isinstance(store, Memory)
        assert open_store(text) is not store
        assert open_store(store) is store


@pytest.mark.parametrize(
    "form", ["{0}", "disk:{0}", "disk://{0}", "disk:{0}?durability=process&size_limit=100000"]
)
def test_a_path_is_a_disk(tmp_path: Path, form: str) -> None:
    """A path, plain or after "disk:", is the directory of a Disk."""
    with open_store(form.format(tmp_path / "store")) as store:
        assert isinstance(store, Disk)
        store.set("key", b"value")
    with open_store(tmp_path / "store", create=False) as store:
        assert store.get("key") == b"value"
        assert store.location == str(tmp_path / "store")


def test_relative_paths_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts from here, "~" from home, and a later chdir changes neither."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with open_store("here") as here, open_store("~/there") as there, open_store("disk:~/too") as too:
        monkeypatch.chdir("/")
        assert here.location == str(tmp_path / "here")
        assert there.location == str(tmp_path / "home" / "there")
        assert too.location == str(tmp_path / "home" / "too")
        assert repr(here) == "Disk('here')"
        here.set("key", b"value")
    assert (tmp_path / "here" / "vstate.db").exists()


@pytest.mark.parametrize(
    "path",
    ["a?b", "a#b", "a%20b", "a b", "ä&=", "user=alice", "./host=h port=1", "a=b c=d", "my user=alice"]
    + ["agent:state", "./encryped:x", "./a://b", *map(Path, ["host=h port=1", "a:b", "C:x"])],
)
def test_odd_directory_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | Path) -> None:
    """What means something in a URL, or in a connection string, means nothing in a path. One setting alone,
    and a colon behind no scheme, are common in the names of directories.
    """
    monkeypatch.chdir(tmp_path)
    with open_store(path) as store:
        store.set("key", b"value")
    assert (tmp_path / path / "vstate.db").exists()
    with open_store(path, create=False) as store:
        assert store.get("key") == b"value"


@pytest.mark.parametrize(
    "text",
    ["", "disk:", "memory:x", "disk:x?speed=1", "disk:x?size_limit=big", "disk:x?size_limit=0", "a\0b", 7]
    + ["disk:x?durability=none", "disk:x?timeout=soon", "encrypted:", "encrypted:x", "encrypted:?key_file=x"]
    + ["encrypted:x?key_file=", "encryped:enc?key_file=key", "Disk:state", "rediss:x", "postgre://h/d"]
    + ["cache:", "readonly:", "cache:?max_bytes=1", "prefixed:x", "prefixed:x?name=", "prefixed:?name=a"]
    + ["prefixed:memory:?name=o", "prefixed:memory:?name=a%2Fb", "cache:memory:?speed=1"]
    + ["cache:memory:?max_bytes=many", "cache:memory:?max_bytes=-1", "cache:memory:?max_bytes=1&max_bytes=2"]
    + ["disk:x?timeout=1&timeout=2", "disk:x?durability=%zz", "disk:x?durability=%ff", "readonly:gopher://x"],
)
def test_malformed_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A malformed URL, or a misspelt scheme, raises InvalidInput and makes nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput):
        open_store(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "host=h dbname=d password=hunter2",
        " password = 'hunter2 too'",
        "service=s\nuser=hunter2",
        "cache:host=h sslpassword=hunter2",
        "encrypted:host=h user=me password=hunter2?key_file=k",
    ],
)
def test_a_connection_string_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Such a path would be a directory named after a password.

    The error has the right form, and shows nothing.
    """
    monkeypatch.chdir(tmp_path)
    for create in (True, False):
        with pytest.raises(InvalidInput, match="write it as a URL, postgresql://") as caught:
            open_store(text, create=create)
        assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# Options and composition


def test_options_are_percent_decoded(tmp_path: Path) -> None:
    """Characters with a meaning in a URL can stand in an option."""
    with open_store(f"cache:{tmp_path / 'store'}?directory={tmp_path}/a%26b%3F%25%20c&max_bytes=0") as store:
        assert isinstance(store, Cache)
        store.set("o/" + "ab" * 32, b"object")
    assert (tmp_path / "a&b?% c" / "vstate.db").exists()
    with open_store(f"prefixed:{tmp_path / 'store'}?name=a%3Fb") as part:
        assert isinstance(part, Prefixed)
        assert part.name == "a?b"


@pytest.mark.parametrize("scheme", ["disk:", ""])
def test_compositions_nest(tmp_path: Path, scheme: str) -> None:
    """Each takes its own options and leaves the others to the store that it stands before."""
    key_file = tmp_path / "key"
    save_key(key_file, bytes(32))
    place = tmp_path / "store"
    options = f"name=tenant-1&timeout=5&key_file={key_file}&max_bytes=1000&durability=process"
    text = f"cache:encrypted:prefixed:{scheme}{place}?{options}"
    with open_store(text) as store:
        assert repr(store) == f"Cache(Encrypted(Prefixed(Disk({str(place)!r}), 'tenant-1')))"
        store.set("key", b"value")
    with open_store(f"readonly:{text}") as store:
        assert store.get("key") == b"value"
        with pytest.raises(ReadOnly):
            store.set("key", b"other")
    with Disk(place) as disk:
        assert all(key.startswith("tenant-1/") for key in disk.keys())  # noqa: SIM118  # a store, not a dict


def test_closing_a_composition_closes_all_of_it(tmp_path: Path) -> None:
    """open_store closes every store that it opened, a part of a store too."""
    store = open_store(f"prefixed:{tmp_path / 'store'}?name=a")
    behind = store._store  # type: ignore[attr-defined]
    store.close()
    with pytest.raises(InvalidInput, match="is closed"):
        behind.get("key")


def test_a_part_without_keys_is_not_there(tmp_path: Path) -> None:
    """Without `create`, an empty part and a store to be read are not made."""
    with open_store(f"prefixed:{tmp_path / 'store'}?name=a") as store:
        store.set("key", b"value")
    with open_store(f"prefixed:{tmp_path / 'store'}?name=a", create=False) as store:
        assert store.get("key") == b"value"
    with pytest.raises(NotFound, match=r"no store at .*store \(b/\)"):
        open_store(f"prefixed:{tmp_path / 'store'}?name=b", create=False)
    with pytest.raises(NotFound):
        open_store(f"readonly:{tmp_path / 'absent'}")
    assert not (tmp_path / "absent").exists()


# Addresses of servers


OF_REDIS = ["/hunter2", ":hunter2", ":port/0", "?hunter2=1", "?socket_timeout=hunter2", "?ttl=hunter2"]
OF_REDIS += ["?prefix=a&prefix=hunter2", "?decode_responses=1", "?encoding=latin-1"]
OF_SENTINELS = ["h", "h/", "/main", "h,/main", ",h/main", "h:1/main/x", "h/main/0/1", "h:99999/main"]
PASSWORDS = ["hunt/er2", "hunt@er2", "12/er2", "12?er2", "hunter2#x", "hunter2%ff", "hunter2%zz"]
OPTIONS: list[Any] = [{"nosuchoption": "hunter2"}, {"access_key_id": 7, "session_token": "hunter2"}]
OPTIONS += [{"endpoint": f"{begin}hunter2"} for begin in ("", "https://host:", "http://", "https://a:b@")]
OPTIONS += [{"endpoint_url": "https://key:hunter2@host"}, {"AWS_ENDPOINT_URL": "http://hunter2"}]
OPTIONS += [{"client_options": wrong} for wrong in ("hunter2", {"timeout": "hunter2"})]
OPTIONS += ["hunter2", {7: "hunter2"}, {"timeout": "soon"}, {"retry_config": {"max_retries": 3}}]
NAMELESS = [{"access_key": "hunter2"}]
WRONG: dict[Callable[..., object], list[Any]] = {
    open_store: [f"redis://user:hunter2@host{rest}" for rest in OF_REDIS]
    + [f"redis+sentinel://:hunter2@{rest}" for rest in [*OF_SENTINELS, "h/main?hunter2=1"]]
    + [f"{name}://user:{word}@host/0" for name in ("redis", "postgresql") for word in PASSWORDS]
    + [f"postgresql://user:hunter2@{rest}" for rest in ("host:hunter2/db", "host:99999/db", "[host/db")]
    + [f"postgresql://user:hunter2@{rest}" for rest in ("host:1,other:port/db", "host/db?table=%ffhunter2")]
    + [f"postgresql://{rest}" for rest in ("user@host/db?hunter2=1", "user:hunter2@host/db?timeout=hunter2")]
    + ["redis://user:hunter2@[::1/0", "redis://user:hunter2@host /0", "redis:user:hunter2@host"]
    + ["redis+cluster://user:hunter2@localhost/3", "redis+cluster://localhost?hunter2=1"]
    + ["postgresql+psycopg://user:hunter2@host/db", "mysql://user:hunter2@host/db", "az://"]
    + ["s3://key:hunter2@bucket/path", "s3://hunter2@bucket/path", "s3://bucket/path?secret@hunter2=x"]
    + ["s3://bucket?secret_access_key=hunter2&secret_access_key=hunter2", "s3:///hunter2", "gs://hunter2:1/x"]
    + ["cache:redis://user:hunter2@host:port/0", "cache: redis://user:hunter2@host/0?max_bytes=5"]
    + ["encrypted:postgresql://user:hunter2@host:port/db?key_file=absent", "gopher://user:hunter2@host/x"]
    + [" redis://user:hunter2@host/0", "3s://user:hunter2@host", "state at redis://user:hunter2@host/0"],
    Redis: ["http://localhost", "localhost:6379", "redis:localhost", "hunter2://localhost", "", 7],
    Postgres: ["user:hunter2@host/db", "hunter2", "host=x password='hunter2", "host=x hunter2=1", 7, b"x"],
    S3: ["file:///tmp/hunter2", "memory:///hunter2", "s3://bucket/path?secret_access_key=hunter2"],
    lambda options: S3("s3://bucket", options=options): OPTIONS,
    lambda options: S3("az://container", options=options): NAMELESS,
}


@pytest.mark.parametrize(
    ("make", "argument"), [(make, argument) for make, arguments in WRONG.items() for argument in arguments]
)
def test_a_malformed_address_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., object], argument: Any
) -> None:
    """It raises InvalidInput before a driver sees it. No part of it is in the error, its cause, or on the
    disk.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        make(argument)
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert "hunt" not in shown
    assert "er2" not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert list(tmp_path.iterdir()) == []


# Schemes of other packages


def distribution(directory: Path, name: str, entry_points: str, module: str = "") -> None:
    """Install a distribution called `name`, as an installer leaves it, with a module `vstate_<name>`."""
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vstate.stores]\n{entry_points}\n")
    (directory / f"vstate_{name}.py").write_text(module)


GOOD = """
from vstate.kv import Memory, Disk
from vstate.errors import NotFound

def open_it(url, *, create):
    store = Memory()
    store.set_many({"url": url.encode(), "create": str(create).encode()})
    return store

def not_found(url, *, create):
    raise NotFound("nothing there")

def wrong(url, *, create):
    return {}

def failing(url, *, create):
    raise RuntimeError("cannot open " + url)

number = 7
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on sys.path."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    yield directory
    for name in [name for name in sys.modules if name.startswith("vstate_")]:
        if str(directory) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_another_package_adds_a_scheme(site: Path) -> None:
    """A plugin gets the URL as written, and works in compositions."""
    entries = [f"{name} = vstate_good:open_it" for name in ("good-1", "plain")]
    distribution(site, "good", "\n".join([*entries, "empty = vstate_good:not_found"]), GOOD)
    with pytest.raises(NotFound, match=r"^nothing there$"):
        open_store("empty://host")
    for text in ("good-1://user:secret@host/x?a=b#c", "plain:x", "GOOD-1://x"):
        with open_store(text) as store:
            assert store.get("url") == text.encode()
            assert store.get("create") == b"True"
    with open_store("readonly:good-1://x?y=1") as store:
        assert (store.get("url"), store.get("create")) == (b"good-1://x?y=1", b"False")
    with open_store("cache:good-1://x?max_bytes=10&my-option=1") as store:
        assert store.get("url") == b"good-1://x?my-option=1"
    # Which of two packages is meant is not guessed, and built-in schemes cannot be replaced.
    distribution(site, "other", "plain = vstate_other:open_it\nredis = vstate_other:failing", GOOD)
    with pytest.raises(InvalidInput, match="several packages have a store for plain:, good, other"):
        open_store("plain://x")
    with pytest.raises(InvalidInput, match="redis: URL cannot be read"):
        open_store("redis://host:port")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "vstate_absent:open_it",
            "loading 'vstate_absent:open_it' failed with ModuleNotFoundError: No module",
        ),
        ("vstate_broken:absent", "loading 'vstate_broken:absent' failed with AttributeError"),
        ("not an object reference", "loading 'not an object reference' failed with"),
        ("vstate_broken:wrong", "'vstate_broken:wrong' returned dict, not a KVStore"),
        ("vstate_broken:failing", "'vstate_broken:failing' failed with RuntimeError"),
        ("vstate_broken:number", "'vstate_broken:number' failed with TypeError"),
    ],
)
def test_a_broken_package_is_named(site: Path, value: str, message: str) -> None:
    """The error names the package and its fault, and nothing of the URL behind the scheme."""
    distribution(site, "broken", f"broken = {value}", GOOD)
    with pytest.raises(InvalidInput) as caught:
        open_store("broken://user:hunter2@host")
    assert "the package broken, which has the store for broken:, is broken" in str(caught.value)
    assert message in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value, limit=0))


# Drivers


@pytest.mark.slow
def test_a_missing_driver(run_python: Callable[..., str], tmp_path: Path) -> None:
    """The error names the package to install, also behind a cache."""
    save_key(tmp_path / "key", bytes(32))
    urls = [
        "redis://host",
        "postgresql://host/db",
        "s3://bucket",
        f"encrypted:memory:?key_file={tmp_path}/key",
    ]
    script = """
import sys
for driver in ("redis", "psycopg", "obstore", "cryptography"):
    sys.modules[driver] = None
from vstate import InvalidInput, open_store
for text in sys.argv[1:]:
    try:
        open_store(text)
    except InvalidInput as error:
        print(error)
"""
    printed = run_python(script, *urls, *[f"cache:{url}" for url in urls]).splitlines()
    extras = [f"pip install '.[{name}]'" for name in ("redis", "postgres", "s3", "crypto")] * 2
    assert len(printed) == len(extras)
    assert all(extra in line for extra, line in zip(extras, printed, strict=True))


@pytest.mark.slow
def test_names_come_without_drivers(run_python: Callable[..., str]) -> None:
    """Every store can be imported from `vstate.kv`, which loads a driver only when a store is made."""
    script = """
import sys
import vstate.kv
print([name for name in ("vstate.kv.redis", "vstate.kv.postgres", "vstate.kv.s3") if name in sys.modules])
from vstate.kv import S3, Postgres, ReadOnly, Redis, Tiered
print([store.__module__ for store in (S3, Postgres, Redis)])
vstate.kv.Cache(vstate.kv.Memory())
drivers = ("redis", "psycopg", "psycopg_pool", "obstore", "cryptography", "sqlite3", "pytest")
print([name for name in (*drivers, "asyncio") if name in sys.modules])
print(hasattr(vstate.kv, "Nothing"))
"""
    lines = ["[]", "['vstate.kv.s3', 'vstate.kv.postgres', 'vstate.kv.redis']", "[]", "False"]
    assert run_python(script).splitlines() == lines


# Servers


def test_a_server(server_url: str) -> None:
    """An absent store is not found without `create`. A written one is found again, behind any wrapper."""
    for there in (server_url, f"cache:{server_url}", f"readonly:{server_url}"):
        with pytest.raises(NotFound, match="no store at "):
            open_store(there, create=False)
    with open_store(server_url) as store:
        store.set("key", b"value")
    for there in (server_url, f"cache:{server_url}", f"readonly:{server_url}"):
        with open_store(there, create=False) as store:
            assert store.get("key") == b"value"
    with open_store(f"prefixed:{server_url}&name=tenant") as part:
        part.set("key", b"of the tenant")
    with open_store(f"prefixed:{server_url}&name=tenant", create=False) as part:
        assert part.get("key") == b"of the tenant"
    with pytest.raises(NotFound, match=r"\(nobody/\)"):
        open_store(f"prefixed:{server_url}&name=nobody", create=False)


def test_what_is_vstates_is_taken_out_of_a_url(redis_url: str, redis_prefix: str) -> None:
    """The store gets its options decoded, and redis-py its own."""
    own = f"prefix={redis_prefix}%2Fa&ttl=1000&timeout=9"
    with open_store(with_options(redis_url, ["socket_timeout=7", own, "health_check_interval=3"])) as store:
        store.set("key", b"value")
    with (
        Redis(redis_url, prefix=f"{redis_prefix}/a", ttl=1000) as same,
        Redis(redis_url, prefix=redis_prefix) as other,
    ):
        assert (same.get("key"), other.get("key")) == (b"value", None)
    for wrong in ("ttl=0", "timeout=-1", "prefix=%7B", "nosuch=1", "socket_timeout=x"):
        with pytest.raises(InvalidInput):
            open_store(with_options(redis_url, [wrong]))


def test_options_of_postgres_and_s3(postgres_dsn: str, postgres_table: str, s3_url: str) -> None:
    """Each store checks its own, and its driver's."""
    with open_store(
        with_options(postgres_dsn, [f"table={postgres_table}", "application_name=a%20b"])
    ) as store:
        store.set("key", b"value")
    with Postgres(postgres_dsn, table=postgres_table, create=False) as same:
        assert same.get("key") == b"value"
    for wrong in ("connections=1", "timeout=0", "table=", "nosuch=1"):
        with pytest.raises(InvalidInput):
            open_store(with_options(postgres_dsn, [wrong]))
    for wrong in ("timeout=0", "nosuch=1"):
        with pytest.raises(InvalidInput):
            open_store(with_options(s3_url, [wrong]))
