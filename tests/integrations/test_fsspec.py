"""The filesystem of fsspec over the Files of a store: as a directory, and under pandas, polars, pyarrow."""

from __future__ import annotations

import io
import pickle
import random
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from counting import Counting
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Disk, File, Memory, Versioned

pytest.importorskip("fsspec", reason="needs the extra fsspec: pip install '.[fsspec]'")

import fsspec
from fsspec.implementations.local import LocalFileSystem

from vstate.integrations.fsspec import VstateFileSystem

TOP = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """The entry point of an editable install may be older than the project's file."""
    fsspec.register_implementation("vstate", VstateFileSystem, clobber=True)
    yield
    VstateFileSystem.clear_instance_cache()


@pytest.fixture
def state() -> Versioned:
    """A state with two commits of files, links and another value."""
    state = Versioned(Memory())
    state["files/data.csv"], state["plan"] = File(b"a,b\n1,2\n"), {"a": 1}
    state.commit("one")
    state["files/data.csv"] = File(b"a,b\n3,4\n5,6\n", "executable")
    state["files/deep/er/x.csv"], state["a:b"] = File(b"a\n7\n"), File(b"colon")
    state["files/last"], state["files/loop"] = File(b"deep/../deep/er/x.csv", "link"), File(b"loop", "link")
    state["files/out"], state["text"] = File(b"../../etc/passwd", "link"), "no file" * 50
    state.commit("two")
    return state


def test_the_entry_point_names_the_filesystem() -> None:
    """So `pip install` is all that fsspec needs to know the protocol."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
    module, name = project["entry-points"]["fsspec.specs"]["vstate"].split(":")
    assert getattr(import_module(module), name) is VstateFileSystem


names = st.sampled_from(["a", "b", "é x", "a.csv"])
trees = st.dictionaries(
    st.lists(names, min_size=1, max_size=3).map("/".join), st.binary(max_size=5), max_size=8
)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_it_is_as_a_local_directory(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, bytes]) -> None:
    """What fsspec finds, lists and reads is what it finds in a directory with the same files."""
    folders = {str(parent) for name in tree for parent in PurePosixPath(name).parents} - {"."}
    tree = {name: data for name, data in tree.items() if name not in folders}
    state, root = Versioned(Memory()), tmp_path_factory.mktemp("local")
    state["other"], state["files0"] = 1, File(b"beside")
    for name, data in tree.items():
        state[f"files/{name}"] = File(data)
        (root / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "files" / name).write_bytes(data)
    state.commit()
    ours, local = VstateFileSystem(state.store, skip_instance_cache=True), LocalFileSystem()

    def of(found: Any) -> Any:
        return sorted(str(name).removeprefix(f"{root}/") for name in found)

    def about(info: dict[str, Any]) -> tuple[str, int]:
        return info["type"], info["size"] if info["type"] == "file" else 0

    assert of(ours.find("files")) == of(local.find(f"{root}/files"))
    for pattern in ("files/*", "files/**", "files/*/*", "files/**/*.csv", "files/[ab]/*"):
        assert of(ours.glob(pattern)) == of(local.glob(f"{root}/{pattern}")), pattern
    for path in {"files", *(f"files/{name}" for name in tree.keys() | folders)}:
        assert ours.exists(path) == local.exists(f"{root}/{path}") == bool(tree)
        if tree:
            assert about(ours.info(path)) == about(local.info(f"{root}/{path}"))
            assert of(ours.ls(path, detail=False)) == of(local.ls(f"{root}/{path}", detail=False))
    assert {name: ours.cat_file(f"HEAD:files/{name}") for name in tree} == tree
    assert ours.ls("", detail=False) == (["files"] if tree else []) + ["files0"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("vstate://files/data.csv?rev=HEAD~1", b"a,b\n1,2\n"),
        ("vstate://HEAD~1:files/data.csv", b"a,b\n1,2\n"),
        ("main@{2100-01-01 10:00}:files/data.csv", b"a,b\n3,4\n5,6\n"),
        ("files/data.csv", b"a,b\n3,4\n5,6\n"),
        ("files/last", b"a\n7\n"),
        ("a:b", b"colon"),
        ("HEAD:a:b", b"colon"),
        ("a:c", "no revision 'a'"),
        ("HEAD:absent", "no such file at "),
        ("vstate://files/data.csv?rev=v9", "no revision 'v9'"),
        ("HEAD~1:files/deep", "no such file at "),
        ("plan", "the value is a dict and no vstate.File"),
        ("text", "the value is a str and no vstate.File"),
        ("files", "a directory, or a link that leads to no file"),
        ("files/loop", "a directory, or a link that leads to no file"),
        ("files/out", "a directory, or a link that leads to no file"),
    ],
)
def test_paths(state: Versioned, path: str, found: bytes | str) -> None:
    """A path is a key, or a revision and a key; an error says why there is no file."""
    filesystem = VstateFileSystem(state.store)
    if isinstance(found, bytes):
        assert filesystem.cat_file(path) == found
        return
    with pytest.raises(OSError, match=found) as caught:
        filesystem.open(path)
    assert isinstance(caught.value, FileNotFoundError | IsADirectoryError)
    if "link" not in found:
        assert not filesystem.isfile(path)


def test_what_a_listing_says(state: Versioned) -> None:
    """Links have the size of their file, and one that leads nowhere says so; names keep their revision."""
    filesystem = VstateFileSystem(state.store)
    rows = [(each["name"], each["type"], each["size"]) for each in filesystem.ls("HEAD:files")]
    assert rows == [
        ("HEAD:files/data.csv", "file", 12),
        ("HEAD:files/deep", "directory", 0),
        ("HEAD:files/last", "file", 4),
        ("HEAD:files/loop", "link", 4),
        ("HEAD:files/out", "link", 16),
    ]
    one, two = (filesystem.info(f"{rev}:files/data.csv")["id"] for rev in ("HEAD~1", "HEAD"))
    assert one != two
    assert filesystem.ukey("HEAD:files/data.csv") == filesystem.ukey("HEAD:files/data.csv")
    assert filesystem.ls("files/data.csv", detail=False) == ["files/data.csv"]
    for nothing in ("nothing", "HEAD~1:files/deep"):
        with pytest.raises(FileNotFoundError):
            filesystem.ls(nothing)


def test_nothing_is_written(state: Versioned) -> None:
    """A write is refused with the way to do it, and changes nothing."""
    filesystem = VstateFileSystem(state.store)
    head = state.repo.resolve("HEAD")
    for write in (lambda: filesystem.open("files/x", "wb"), lambda: filesystem.pipe("files/x", b"1")):
        with pytest.raises(OSError, match="read-only: commit a "):
            write()
    with pytest.raises(NotImplementedError):
        filesystem.rm("files/data.csv")
    assert state.repo.resolve("HEAD") == head


def test_a_branch_moves_and_an_open_file_stays(state: Versioned) -> None:
    """A filesystem sees new commits of its branch; a file is read as it was when it was opened."""
    filesystem, before = VstateFileSystem(state.store), VstateFileSystem(state.store, rev="HEAD~1")
    with filesystem.open("files/data.csv") as file:
        assert before.cat_file("files/data.csv") == b"a,b\n1,2\n"
        state["files/data.csv"] = File(b"new")
        state.commit()
        assert file.read() == b"a,b\n3,4\n5,6\n"
    assert filesystem.cat_file("files/data.csv") == b"new"


@pytest.mark.parametrize("size", [20, 1000, 60_000, 20_000_000])
def test_a_range_costs_its_chunks(size: int) -> None:
    """Files in the entry, in one blob and in many: any range is right, and a short one is cheap."""
    data = random.Random(size).randbytes(size)
    state = Versioned(Memory())
    state["f"] = File(data)
    state.commit()
    store = Counting(state.store)
    filesystem = VstateFileSystem(store)
    for start, stop in ((0, size), (size // 2, size // 2 + 9), (size - 5, size + 5), (7, 7), (-4, None)):
        store.lengths.clear()
        assert filesystem.cat_file("f", start, stop) == data[start:stop]
    entry = state.repo.entry(state.repo.resolve("HEAD").root, "f")
    assert entry is not None
    assert filesystem.read(entry.parts[0], 3, 9) == data[3:9]
    with filesystem.open("f", block_size=10_000) as file:
        store.lengths.clear()
        file.seek(size // 3)
        assert file.read(100) == data[size // 3 :][:100]
    assert sum(store.lengths) < min(size, 1_500_000) + 5000


def test_where_the_store_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a path or a URL, by the variable, or in the directory; a copy in another process finds it again."""
    with Versioned(Disk(tmp_path / ".vstate")) as state:
        state["f"] = File(b"here")
        state.commit()
    monkeypatch.setenv("PLACE", str(tmp_path))
    for store in (str(tmp_path / ".vstate"), "disk:${PLACE}/.vstate"):
        filesystem = VstateFileSystem(store)
        assert filesystem.cat_file("f") == b"here"
        assert pickle.loads(pickle.dumps(filesystem)).cat_file("f") == b"here"
    monkeypatch.setenv("VSTATE_STORE", str(tmp_path / ".vstate"))
    assert VstateFileSystem().cat_file("f") == b"here"
    VstateFileSystem.clear_instance_cache()
    monkeypatch.delenv("VSTATE_STORE")
    monkeypatch.chdir(tmp_path)
    with fsspec.open("vstate://f?rev=main") as file:
        assert file.read() == b"here"


def test_pandas_reads_by_url(state: Versioned) -> None:
    """A URL with a revision reads the file as it was there."""
    pandas = pytest.importorskip("pandas")
    options = {"store": state.store}
    old = pandas.read_csv("vstate://files/data.csv?rev=HEAD~1", storage_options=options)
    assert old.to_dict("list") == {"a": [1], "b": [2]}
    now = pandas.read_csv("vstate://files/data.csv", storage_options=options)
    assert now.to_dict("list") == {"a": [3, 5], "b": [4, 6]}


def test_polars_and_pyarrow_read(state: Versioned) -> None:
    """polars takes an open file, pyarrow a filesystem: a file, and a directory as one dataset."""
    pyarrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    parquet, dataset = import_module("pyarrow.parquet"), import_module("pyarrow.dataset")
    for part in range(3):
        file = io.BytesIO()
        parquet.write_table(pyarrow.table({"x": range(part * 1000, part * 1000 + 1000)}), file)
        state[f"files/parts/{part}.parquet"] = File(file.getvalue())
    state.commit()
    del state["files/parts/0.parquet"]
    state.commit()
    filesystem = fsspec.filesystem("vstate", store=state.store)
    assert parquet.read_table("files/parts/1.parquet", filesystem=filesystem).num_rows == 1000
    for path, rows in (("files/parts", 2000), ("HEAD~1:files/parts", 3000)):
        assert dataset.dataset(path, filesystem=filesystem).count_rows() == rows
    with filesystem.open("HEAD~1:files/parts/0.parquet") as file:
        assert polars.read_parquet(file)["x"].sum() == 499_500
    url = "vstate://files/data.csv?rev=HEAD~3"
    assert polars.read_csv(fsspec.open(url, store=state.store).open()).to_dicts() == [{"a": 1, "b": 2}]
