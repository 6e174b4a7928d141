"""What `import vstate` brings and what it leaves out."""

import ast
from pathlib import Path

import pytest

import vstate
from vstate import errors
from vstate.repo.rules import policies
from vstate.values.merging import POLICIES

HEAVY = ("click", "rich", "numpy", "pandas", "sqlite3", "diskcache", "pyfastcdc", "vstate.testing", "asyncio")


@pytest.mark.parametrize("module", HEAVY[:6] + HEAVY[7:8])
def test_import_leaves_it_out(run_python, module: str) -> None:
    """`import vstate` loads no driver, no framework and not the test kit."""
    assert run_python(f"import sys, vstate; print({module!r} in sys.modules)").strip() == "False"


def test_public_names() -> None:
    """The names of the public API are there, and `__all__` lists what there is."""
    expected = [
        "Versioned",
        "Live",
        "Snapshot",
        "Namespace",
        "Memory",
        "Disk",
        "Cache",
        "Encrypted",
        "KVStore",
        "open_store",
        "Commit",
        "Diff",
        "Change",
        "Event",
        "KeyConflict",
        "MergeResult",
        "ABSENT",
        "PublicKey",
        "SigningKey",
        "task",
        "events",
        "view",
    ]
    assert set(expected) | set(errors.__all__) == set(vstate.__all__)
    for name in vstate.__all__:
        assert getattr(vstate, name).__doc__
    assert set(policies.NAMES) == {*POLICIES, "ours", "theirs", "newest"}


def test_every_exception_is_public() -> None:
    """Each exception class of `vstate.errors` can be imported from `vstate`."""
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    ]
    assert sorted(classes) == sorted(errors.__all__)
    assert all(getattr(vstate, name) is getattr(errors, name) for name in classes)


def test_nothing_shipped_imports_the_test_kit() -> None:
    """No module of the library or the command imports `vstate.testing`."""
    root = Path(vstate.__file__).parent.parent
    sources = [*(root / "vstate").rglob("*.py"), *(root / "cli").rglob("*.py")]
    assert len(sources) > 20
    for source in sources:
        if "testing" in source.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            assert not any(name.startswith("vstate.testing") for name in names), source


def test_typed() -> None:
    """The package says that it has type hints."""
    assert (Path(vstate.__file__).parent / "py.typed").exists()
