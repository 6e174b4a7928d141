"""The names that `import vstate` gives, and the modules that it does not load."""

from pathlib import Path

import vstate
from vstate import errors
from vstate.repo.rules import policies
from vstate.values.merging import POLICIES

HEAVY = {"click", "rich", "numpy", "pandas", "sqlite3", "diskcache", "vstate.testing"}


def test_import_loads_nothing_heavy(run_python) -> None:
    """`import vstate` loads no driver, no framework and not the test kit."""
    loaded = run_python("import sys, vstate; print(*sys.modules)").split()
    assert "vstate.state" in loaded
    assert not HEAVY & set(loaded)


def test_public_names() -> None:
    """`__all__` lists exactly the names of the public API, and each has a docstring."""
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
        "quote_ref",
        "unquote_ref",
        "BranchChanges",
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
        "renamed",
        "upgrade",
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


def test_typed() -> None:
    """The package says that it has type hints."""
    assert (Path(vstate.__file__).parent / "py.typed").exists()


def test_a_missing_package_is_named_with_its_extra(run_python) -> None:
    """Names that need an optional package say how to install it; the others do without."""
    shown = run_python("""
import sys
sys.modules["pydantic"] = sys.modules["pytest"] = None
import vstate.managers, vstate.testing
print(vstate.managers.StateManager, vstate.testing.Faulty)
for module, name in ((vstate.managers, "ToolStateManager"), (vstate.testing, "KVStoreTests")):
    try:
        getattr(module, name)
    except ImportError as error:
        print(error)
""")
    assert "ToolStateManager needs pydantic; type: pip install 'vstate[agents]'" in shown
    assert "KVStoreTests needs pytest; type: pip install 'vstate[testing]'" in shown
