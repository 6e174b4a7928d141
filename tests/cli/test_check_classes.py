"""`vstate check-classes`."""

import json
import sys
from types import ModuleType

import pytest

from vstate import Disk, Versioned


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A directory with a module `here`, which must not be imported, and values of four kinds of classes."""
    (tmp_path / "here.py").write_text(
        "raise SystemExit('imported')\nclass Plan:\n    class Inner: pass\ntry:\n    from x import Task\n"
        "except ImportError:\n    pass\ndef f():\n    class Hidden: pass\n"
    )
    (tmp_path / "vague.py").write_text("from elsewhere import *\n")
    monkeypatch.chdir(tmp_path)
    for name, names in {"here": ["Plan", "Task", "Hidden"], "vague": ["X"], "gone.deep": ["Y"]}.items():
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        if "." in name:
            monkeypatch.setitem(sys.modules, "gone", ModuleType("gone"))
        for each in names:
            setattr(module, each, type(each, (), {"__module__": name}))
    return sys.modules


def test_check_classes(vstate, tmp_path, places):
    """Each name has its commits, its keys, and whether a module here defines it; nothing is imported."""
    here, vague, gone = (places[name] for name in ("here", "vague", "gone.deep"))
    vstate = type(vstate)(tmp_path / "classes")  # a store that holds nothing else
    with Versioned(Disk(vstate.store)) as state:
        state["plan"], state["x"] = here.Plan(), [vague.X()]
        first = state.commit("one")
        state["plan"], state["task"], state["y"] = here.Hidden(), here.Task(), {"y": gone.Y}
        state["own"] = type("Own", (), {"__module__": "__main__"})()
        state["code"] = [lambda: 1]
        second = state.commit("two")
        state["plan"] = here.Plan()
        third = state.commit("three")
    for name in ("here", "vague", "gone.deep", "gone"):
        del sys.modules[name]
    found = {each["name"]: each for each in json.loads(vstate("check-classes", "--json"))}
    assert {name: each["here"] for name, each in found.items()} == {
        "here.Plan": "found",
        "here.Task": "found",
        "here.Hidden": "missing",
        "vague.X": "unsure",
        "gone.deep.Y": "missing",
        "__main__.Own": "by value",
        f"{__name__}.test_check_classes.<locals>.<lambda>": "by value",
        __name__: "found",  # it has the globals of the lambda
    }
    plan = found["here.Plan"]
    assert (plan["first"], plan["last"], plan["commits"], plan["keys"]) == (first.id, third.id, 2, ["plan"])
    assert (found["here.Hidden"]["last"], found["here.Hidden"]["keys"]) == (second.id, [])
    assert {each["python"] for each in found.values() if each["here"] == "by value"} == {
        f"Python 3.{sys.version_info.minor}"
    }
    assert found["gone.deep.Y"]["python"] is None
    lines = vstate("check-classes").splitlines()
    assert len(lines) == 8
    assert lines[1].startswith("missing   gone.deep.Y")
    assert [line.split()[1] for line in vstate("check-classes", "HEAD~2").splitlines()] == [
        "here.Plan",
        "vague.X",
    ]
    assert "here" not in sys.modules
