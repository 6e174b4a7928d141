"""The changes of Files as patches in the form of git, taken by git itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from folders import found_in, put
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK
from vstate_cli.app import cli

from vstate import Disk, File, Memory, Versioned
from vstate.errors import InvalidInput
from vstate.repo.compare.patches import file_patch

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

NAMES = (
    "a.py", "dir/with space.txt", 'quote".txt', "back\\slash", "东京.md", "tab\there", "line\nend",
    "cafe\u0301/é.txt", "--- a", " x", "é b", "empty", "b/a.py",
)  # fmt: skip

LINES = ("a\n", "b\n", "\n", "c\r\n", "-- a\n", "@@ -1 +1 @@\n", "é\f\v\u2028\x1b[31m\n")

lines = st.lists(st.sampled_from(LINES), max_size=30)
texts = st.builds(lambda lines, end: "".join(lines) + end, lines, st.sampled_from(["", "end", "\r"]))
files = st.one_of(
    st.builds(lambda text, kind: File(text.encode(), kind), texts, st.sampled_from(["file", "executable"])),
    st.builds(lambda name: File(name.encode(), "link"), st.sampled_from(["a.py", "../x", "é"])),
)
directories = st.dictionaries(st.sampled_from(NAMES), files, max_size=6)


def apply(directory: Path, patch: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(directory.parent)}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "apply", *options, "-"], input=patch, cwd=directory, env=environment, capture_output=True
    )


@pytest.mark.slow
@settings(max_examples=2000 if SOAK else 60, deadline=None)
@given(directories, directories)
def test_git_apply_makes_the_new_files_of_the_old(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, File], new: dict[str, File]
) -> None:
    """What `vstate diff` prints turns A's files into B's, whatever their names, kinds and line ends are."""
    root = tmp_path_factory.mktemp("patch")
    state = Versioned(Disk(root / "store", durability="process"))
    state.update({"plan": {"a": 1}, "text": "one\ntwo\n", **old})
    state.commit("old")
    for name in old.keys() - new.keys():
        del state[name]
    # Other keys keep their look, and git passes over them.
    state.update({"plan": {"a": "diff --git a/x b/x"}, "text": "--- a\n+++ b\n@@ -1 +1 @@\n", **new})
    state.commit("new")
    state.store.close()
    result = CliRunner().invoke(cli, ["-s", str(root / "store"), "diff", "HEAD~1", "HEAD"])
    assert result.exit_code == 0
    (directory := root / "files").mkdir()
    put(directory, old)
    if old != new:
        applied = apply(directory, result.stdout_bytes)
        assert applied.returncode == 0, (applied.stderr, result.stdout_bytes)
    assert found_in(directory) == new
    shutil.rmtree(root)


NUMBERS = "".join(f"{n}\n" for n in range(30))

CHANGES: dict[str, tuple[File | None, File | None]] = {
    "a b": (None, File(b"one\ntwo", "executable")),
    "gone": (File(b"one\n"), None),
    "emptied": (File(b"one\n"), File(b"")),
    "filled": (File(b""), File(b"one\n")),
    "é\t": (File(NUMBERS.encode()), File(NUMBERS.replace("5\n", "five\n").replace("17\n", "").encode())),
    "mode": (File(b"a\n"), File(b"b\n", "executable")),
    "link": (File(b"a", "link"), File(b"b", "link")),
    "became": (File(b"a\n"), File(b"a", "link")),
    "data": (File(b"\0"), File(b"\1\0")),
}


def test_the_text_of_a_patch_is_gits(tmp_path: Path) -> None:
    """Also where git would take less: the places of no lines, and the tab behind a name with a space."""
    put(tmp_path, {name: old for name, (old, _) in CHANGES.items() if old})
    for words in ("init -q", "add ."):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    for name in CHANGES:
        (tmp_path / name).unlink(missing_ok=True)
    put(tmp_path, {name: new for name, (_, new) in CHANGES.items() if new})
    subprocess.run(["git", "add", "-N", "a b"], cwd=tmp_path, check=True, capture_output=True)
    for name, pair in CHANGES.items():
        sides = [side and (side.data if name == "data" else side.data.decode(), side.kind) for side in pair]
        command = ["git", "-c", "core.quotePath=true", "diff", "--no-color", "--", name]
        told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        lines = [line for line in told.split("\n") if not line.startswith("index ")]
        # Behind the second @@, git has a heading: the line above that looks like one.
        wanted = re.sub(r"^(@@ .* @@) .*$", r"\1", "\n".join(lines), flags=re.MULTILINE)
        assert str(file_patch(name, *sides)) == wanted, name


def test_a_patch_of_many_lines_is_one_that_git_takes(tmp_path: Path) -> None:
    """Where too many lines differ to align them, the patch is coarse and still right."""
    state = Versioned(Memory())
    old = "".join(f"{n * 7919 % 1000}\n" for n in range(20_000))
    new = "".join(f"{n * 104729 % 1000}\n" for n in range(20_000))
    state["f"] = File(old.encode())
    state.commit()
    state["f"] = File(new.encode())
    state.commit()
    patch = state.diff("HEAD~1", "HEAD").patch("f")
    assert patch is not None
    assert patch.added == patch.removed > 0
    put(tmp_path, {"f": File(old.encode())})
    assert apply(tmp_path, str(patch).encode()).returncode == 0
    assert (tmp_path / "f").read_text() == new


@pytest.mark.slow
def test_values_that_have_no_patch(tmp_path: Path) -> None:
    """Only Files have patches. Of a file that is no text, git is told no more than that it differs."""
    state = Versioned(Memory())
    state.update(text="a\n", became="a\n", gone=File(b"\xff"), large=File(bytes(70_000_000)))
    state.commit()
    state.update(text="b\n", became=File(b"a\n"), large=File(b"1" + bytes(70_000_000)))
    del state["gone"]
    state.commit()
    diff = state.diff("HEAD~1", "HEAD")
    assert [diff.patch(key) for key in ("text", "became", "absent")] == [None, None, None]
    patch = diff.patch("gone")
    assert patch is not None
    assert patch.text.split("\n")[:-1] == [
        "diff --git a/gone b/gone", "deleted file mode 100644", "Binary files a/gone and /dev/null differ"
    ]  # fmt: skip
    put(tmp_path, {"gone": File(b"\xff")})
    assert b"cannot apply binary patch" in apply(tmp_path, str(patch).encode()).stderr
    with pytest.raises(InvalidInput, match="too long to show"):
        diff.patch("large")


def test_a_snapshot_gives_the_file_itself() -> None:
    """Data without its classes is a File too, with its kind: nothing of it is a pickle."""
    state = Versioned(Memory())
    for data in (b"", b"x" * 1000, bytes(200_000)):
        state["f"] = File(data, "link")
        state.commit()
        assert state.checkout("HEAD").inert("f") == File(data, "link")


def test_the_kind_of_a_file_is_a_change_of_its_own() -> None:
    """`details` has it beside the change of the text, within its limit, and not for a part."""
    state = Versioned(Memory())
    state["f"] = File(b"a\n")
    state.commit()
    state["f"] = File(b"b\n", "executable")
    state.commit()
    diff = state.diff("HEAD~1", "HEAD")
    found = [(each.path, each.old, each.new) for each in diff.details("f")]
    assert found == [("", "file", "executable"), ("", "a\n", "b\n")]
    assert len(diff.details("f", limit=1)) == 1
