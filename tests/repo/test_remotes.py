"""Remotes: names of other stores, URLs without secrets, and tracking refs."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_files import chain, refs_of, whole

from vstate import Disk, Memory
from vstate.errors import AlreadyExists, InvalidInput, NotFound
from vstate.repo import Repository
from vstate.repo.clone import clone
from vstate.repo.names.remotes import Remotes, absolute, expanded

# Names and URLs


def test_remotes_are_added_listed_and_removed() -> None:
    """A remote needs a free name; removing one also removes its tracking refs, and nothing else."""
    store, other = Memory(), Memory()
    chain(other, 2)
    repo = Repository(store)
    assert repo.remotes.add("b", "redis://host/0") == "redis://host/0"
    repo.remotes.add("a", "/there")
    assert repo.remotes.list() == {"a": "/there", "b": "redis://host/0"}
    with pytest.raises(AlreadyExists):
        repo.remotes.add("a", "/elsewhere")
    for name in ("a", "b"):
        repo.fetch(other, remote=name)
    assert repo.remotes.remove("a") == "/there"
    assert repo.remotes.list() == {"b": "redis://host/0"}
    assert set(refs_of(store)) == {"remotes/b/main"}
    with pytest.raises(NotFound, match="no remote 'a'; there is 1 remote, which `vstate remote` lists"):
        repo.remotes.remove("a")


def test_the_default_is_origin_or_the_only_one() -> None:
    """Without `origin`, and with several remotes, the caller must name one."""
    remotes = Remotes(Memory())
    with pytest.raises(NotFound, match="vstate remote add origin URL"):
        remotes.default()
    remotes.add("one", "/one")
    assert remotes.default() == "one"
    remotes.add("two", "/two")
    with pytest.raises(InvalidInput, match="did you mean: one, two"):
        remotes.default()
    remotes.add("origin", "/o")
    assert remotes.default() == "origin"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "HEAD", "-x", "a..b"])
def test_names_of_remotes_are_checked(name: str) -> None:
    """A remote's name is a branch name without a slash, so that `origin/main` is clear."""
    with pytest.raises(InvalidInput, match="no name for a remote"):
        Remotes(Memory()).add(name, "/there")
    here, there = Repository(chain(Memory(), 1).store), Repository(Memory())
    with pytest.raises(InvalidInput):
        here.push(there.store, remote=name or " ")
    assert not list(there.store.keys())  # nothing was sent
    with pytest.raises(InvalidInput):
        there.fetch(here.store, remote=name or " ")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host/0",
        "redis://user:hunter2@host:6379/0",
        "redis://user:hun/ter2@host",
        "encrypted:redis://:hunter2@host?key_file=k",
        "cache:prefixed:a:redis://:hunter2@host",
        "postgresql://user@host/db?password=hunter2",
        "postgresql://user@host/db?sslmode=off&%70assword=hunter2",
        "postgresql://${USER}:hunter2@host/db",
        "redis://:${PASSWORD}hunter2@host/0",
        "s3://bucket/prefix?aws_secret_access_key=hunter2",
        "s3://bucket?region=eu&session_token=hunter2",
        "redis://me@example.org:hunter2@host/0",
        "az://container/prefix?access_key=hunter2",
        "az://container?azure_storage_master_key=hunter2",
        "az://container?sas=hunter2",
        "host=h dbname=d password=hunter2",
        "password = 'hunter2 and more' host=h",
        "password=hunter2",
        "cache:host=h password=hunter2",
        "encrypted:readonly:host=h password=hunter2?key_file=k",
        "postgres:host=h password=hunter2",
        "host=h\tuser=me password=hun\\ ter2",
    ],
)
def test_a_password_is_not_kept(url: str) -> None:
    """The error gives the alternative, and does not show the URL."""
    store = Memory()
    with pytest.raises(InvalidInput, match=r"\$\{[A-Z]+\}|as a path or a URL") as caught:
        Remotes(store).add("origin", url)
    assert "hunter2" not in str(caught.value)
    assert not list(store.keys())


@pytest.mark.parametrize(
    "url",
    [
        "redis://:${PASSWORD}@host/0",
        "redis://user@host:6379/0",
        "postgresql://${USER}:${PASSWORD}@host/db?sslmode=require",
        "postgresql://host/db?password=${PASSWORD}",
        "${STORE}",
        "/a/path:with@signs",
        "disk:/a?durability=process",
        "encrypted:/a?key_file=/home/me/secrets/key",
        "postgresql://user@host:5432,other:5432/db",
        "s3://bucket?aws_access_key_id=hunter2",
        "/a/host=h password=x",
        "postgresql://host/db?host=a&user=b",
        "disk:/there/user=a port=b",
        "disk:/there/port=a user=b host=c",
    ],
)
def test_urls_without_secrets(url: str) -> None:
    """Variables are stored unexpanded."""
    remotes = Remotes(Memory())
    assert remotes.add("origin", url) == url == remotes.url("origin")


def test_a_connection_string_names_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a place to push to, or from the environment, it is refused, and no directory is created."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "host=h password=hunter2")
    state = chain(Memory(), 1)
    state.repo.remotes.add("origin", "${PLACE}")
    for place in ("host=h password=hunter2", "origin"):
        with pytest.raises(InvalidInput, match="write it as a URL") as caught:
            state.push(place, create=True)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidInput):
        clone("host=h password=hunter2", tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_variables_are_expanded_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value before the host is percent-encoded; a variable that is not set is named."""
    monkeypatch.setenv("SECRET", "a/b@c d")
    monkeypatch.setenv("PLACE", "/my store")
    assert expanded("redis://me:${SECRET}@host/${SECRET}") == "redis://me:a%2Fb%40c%20d@host/a/b@c d"
    assert expanded("disk:${PLACE}/x") == "disk:/my store/x"
    assert expanded("${PLACE}") == "/my store"
    with pytest.raises(InvalidInput, match="the variable NOT_THERE, which is not set"):
        expanded("redis://:${NOT_THERE}@host")
    state = chain(Memory(), 1)
    state.repo.remotes.add("origin", "${PLACE}/store")
    monkeypatch.setenv("PLACE", str(tmp_path))
    state.push(create=True)
    with Disk(tmp_path / "store", create=False) as disk:
        assert refs_of(disk)["heads/main"] == refs_of(state.store)["remotes/origin/main"]
    monkeypatch.setenv("PLACE", str(tmp_path / "elsewhere"))
    with pytest.raises(NotFound):
        state.pull()


@pytest.mark.parametrize("url", ["", "memory:", "cache:memory:", "a\nb", "a\0b"])
def test_stores_that_do_not_stay(url: str) -> None:
    """An empty text, a store in memory, and malformed URLs are refused."""
    with pytest.raises(InvalidInput):
        Remotes(Memory()).add("origin", url)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("x/../y", "HERE/y"),
        ("disk:x?durability=process", "disk:HERE/x?durability=process"),
        ("encrypted:x?key_file=../k", "encrypted:HERE/x?key_file=ABOVE/k"),
        ("encrypted:x?y?key_file=../k", "encrypted:HERE/x?y?key_file=ABOVE/k"),
        (
            "encrypted:redis://h/0?key_file=../k&prefix=p",
            "encrypted:redis://h/0?key_file=ABOVE/k&prefix=p",
        ),
        ("encrypted:x?key_file=${KEY}", "encrypted:HERE/x?key_file=${KEY}"),
        ("cache:s3://b?directory=a%20b", "cache:s3://b?directory=HERE/a%20b"),
        ("prefixed:x?name=n", "prefixed:HERE/x?name=n"),
        ("readonly:disk://x", "readonly:disk:HERE/x"),
        ("s3://bucket/x", "s3://bucket/x"),
    ],
)
def test_paths_are_kept_as_absolute_ones(
    url: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in a URL becomes absolute, too."""
    monkeypatch.chdir(tmp_path)
    assert absolute(url) == kept.replace("HERE", str(tmp_path)).replace("ABOVE", str(tmp_path.parent))


# Tracking refs


def test_revisions_of_a_remote() -> None:
    """All forms of reflog revisions work, and a name that is close is named."""
    store, other = Memory(), Memory()
    repo = Repository(store)
    for start in (0, 3):
        chain(other, 3, start=start)
        repo.fetch(other, remote="o")
    for rev, message in (("", "c5"), ("~1", "c4"), ("@{1}", "c2"), ("@{now}", "c5")):
        assert repo.resolve(f"o/main{rev}").message == message
        assert repo.resolve(f"remotes/o/main{rev}").message == message
    with pytest.raises(NotFound, match="did you mean: o/main"):
        repo.resolve("o/mian")


def test_a_long_branch_of_a_remote_is_no_fault() -> None:
    """A remote's branch may have as long a name as a local one, and is no local branch."""
    store, target = Memory(), Memory()
    chain(store, 1, "b" * 200)
    Repository(target).fetch(store, remote="r" * 100)
    whole(target)
    assert Repository(target).branches() == {}
