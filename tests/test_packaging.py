"""The names that `import vstate` gives, and the modules that it does not load."""

import importlib
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from running import load_module

import vstate
from vstate import errors
from vstate.repo.rules import policies
from vstate.values.merging import POLICIES

TOP = Path(__file__).parent.parent
HEAVY = {"click", "rich", "numpy", "pandas", "sqlite3", "vstate.testing"}


def test_import_loads_nothing_heavy(run_python) -> None:
    """`import vstate` loads no driver, no framework and not the test kit."""
    loaded = run_python("import sys, vstate; print(*sys.modules)").split()
    assert "vstate.state" in loaded
    assert not HEAVY & set(loaded)


def test_public_names() -> None:
    """`__all__` lists exactly the names of the public API, and each has a docstring."""
    expected = {
        *("Versioned", "Live", "Snapshot", "Namespace", "Memory", "Disk", "Cache", "Encrypted", "KVStore"),
        *("open_store", "quote_ref", "unquote_ref", "BranchChanges", "Commit", "Diff", "Change", "Event"),
        *("File", "Workspace", "KeyConflict", "MergeResult", "ABSENT", "PublicKey", "SigningKey"),
        *("task", "events", "view", "renamed", "upgrade", "compare", "Keep"),
    }
    assert expected | set(errors.__all__) == set(vstate.__all__)
    for name in vstate.__all__:
        assert getattr(vstate, name).__doc__
    assert set(policies.NAMES) == {*POLICIES, "ours", "theirs", "newest"}


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
    assert "ToolStateManager needs pydantic; type: pip install '.[agents]'" in shown
    assert "KVStoreTests needs pytest; type: pip install '.[testing]'" in shown


def test_an_adapter_without_its_framework_names_its_extra(run_python) -> None:
    """Each adapter whose framework is missing says how to install it, by an extra that exists."""
    shown = run_python("""
import sys
from importlib import import_module
from pkgutil import iter_modules
import vstate.integrations
names = "agent_framework agents agentscope agno burr claude_agent_sdk crewai deepagents google key_value "
names += "langgraph llama_index nontainer pydantic_ai strands"
for name in ("fsspec", *names.split()):
    sys.modules[name] = None
for module in iter_modules(vstate.integrations.__path__):
    try:
        import_module("vstate.integrations." + module.name)
    except ModuleNotFoundError as error:
        print(module.name, error)
    else:
        print(module.name, "has no framework")
""")
    # Not from the metadata of an editable install, which may be older than the project's file.
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for line in shown.splitlines():
        module, _, said = line.partition(" ")
        extra = module.replace("_", "-")
        if module in ("branches", "opening"):
            assert said == "has no framework"
            continue
        assert f"pip install '.[{extra}]' in a clone of vstate" in said or module == "openai_sqlite", line
        assert extra in extras or module == "openai_sqlite"
    assert len(shown.splitlines()) > 10


def test_every_public_name_is_documented() -> None:
    """The reference of the site has each public name of each public module, and each has a docstring."""
    site = load_module(TOP / "docs" / "build_site.py")
    names = [name for module in site.MODULES for name in site.public_names(module)]
    assert len(names) > 150
    for name in names:
        module, _, last = name.rpartition(".")
        if not module.startswith("vstate.integrations"):
            found = getattr(importlib.import_module(module), last)
            assert found.__doc__, name
            continue
        folder = TOP / module.replace(".", "/")
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        source = "".join(each.read_text("utf-8") for each in file.parent.glob("*.py"))
        assert re.search(rf'class {last}\b[^"]*?:\n    """', source), name


@pytest.mark.skipif("VSTATE_SOAK" not in os.environ, reason="make soak runs it")
def test_the_wheel_in_an_empty_environment() -> None:
    """`make dist` builds it, installs it, and runs the program of the README with it."""
    done = subprocess.run(["make", "dist"], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "say goodbye" in done.stdout
    assert ".whl" in done.stdout
