"""open_store: paths and URLs."""

from pathlib import Path

import pytest

from vstate.errors import InvalidInput, NotFound
from vstate.kv import Disk, Memory, open_store


def test_none_and_memory() -> None:
    """None and "memory:" are new stores in memory."""
    for text in (None, "memory:", "memory://"):
        store = open_store(text)
        assert isinstance(store, Memory)
        assert open_store(text) is not store


def test_a_store_is_itself() -> None:
    """A store that is open already is returned as it is."""
    store = Memory()
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
        here.set("key", b"value")
    assert (tmp_path / "here" / "vstate.db").exists()


def test_odd_directory_names(tmp_path: Path) -> None:
    """Characters that mean something in a URL mean nothing in a path."""
    for name in ("a?b", "a#b", "a%20b", "a b", "ä&=", "a:b", "C:x"):
        with open_store(tmp_path / name) as store:
            store.set("key", name.encode())
        assert (tmp_path / name / "vstate.db").exists()
        with open_store(str(tmp_path / name), create=False) as store:
            assert store.get("key") == name.encode()


def test_create_false(tmp_path: Path) -> None:
    """Without `create`, what is not there is NotFound and is not made."""
    with pytest.raises(NotFound):
        open_store(tmp_path / "absent", create=False)
    with pytest.raises(NotFound):
        open_store(f"disk:{tmp_path / 'absent'}", create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_scheme_shows_no_password() -> None:
    """The error names the known schemes and nothing behind the unknown one."""
    with pytest.raises(InvalidInput, match=r"'gopher'.*disk:.*memory:") as caught:
        open_store("gopher://user:secret@host/x")
    assert "secret" not in str(caught.value)
    assert "user" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "disk:", "memory:x", "disk:x?speed=1", "disk:x?size_limit=big", "disk:x?size_limit=0", "a\0b"]
    + ["disk:x?durability=none", "disk:x?timeout=soon", 7],
)
def test_malformed_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What is malformed raises InvalidInput and makes nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput):
        open_store(text)
    assert list(tmp_path.iterdir()) == []
