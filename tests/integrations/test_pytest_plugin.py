"""The plugin of pytest: a state for each test, which stays if the test fails, and its command."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from page import examples
from vstate_cli.app import cli

from vstate import Disk, Versioned

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]
COMMAND = re.compile(r"^vstate (-s .+ log)$", re.MULTILINE)
FAILING = """
def test_sum(vstate_state):
    vstate_state["sum"] = 1
    vstate_state.commit("one")
    vstate_state["sum"] += 1
    assert vstate_state["sum"] == 3
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run tests in a pytest of their own, with this plugin and those that are named."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(program: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(program)
        return pytester.runpytest_subprocess("-p", "vstate_pytest", *arguments)

    return run


def shown(result: pytest.RunResult) -> list[tuple[Path, str]]:
    """The store of each command in a report, and what the command prints."""
    found = []
    for line in COMMAND.findall(result.stdout.str()):
        arguments = shlex.split(line)
        ended = CliRunner(env={"VSTATE_STORE": None}).invoke(cli, arguments)
        assert ended.exit_code == 0
        found.append((Path(arguments[1]), ended.stdout))
    return found


@pytest.mark.parametrize("arguments", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_a_failing_test_tells_the_command_that_shows_its_state(run: Any, arguments: list[str]) -> None:
    """Each failing test has a store of its own, whose history ends with the edits at the failure."""
    result = run(FAILING + FAILING.replace("sum(", "other("), *arguments)
    result.assert_outcomes(failed=2)
    found = shown(result)
    assert len({store for store, _ in found}) == 2
    for store, printed in found:
        assert printed.index("as the test failed") < printed.index("one")
        with Disk(store) as disk, Versioned(disk) as state:
            assert state["sum"] == 2
            assert state.head.info["test"].startswith("test_a_failing")


def test_a_passing_test_prints_nothing_and_leaves_nothing_that_warns(run: Any) -> None:
    """The same holds for a test that is skipped, or fails as expected; edits may stay uncommitted."""
    result = run(
        """
        import pytest

        def test_passes(vstate_state):
            vstate_state["n"] = 1

        def test_skips(vstate_state):
            pytest.skip()

        @pytest.mark.xfail
        def test_fails(vstate_state):
            assert not "n"

        def test_closes(vstate_state):
            vstate_state["n"] = 1
            vstate_state.commit("one")
            vstate_state.close()
        """,
        "-W",
        "error",
    )
    result.assert_outcomes(passed=2, skipped=1, xfailed=1)
    assert not shown(result)


def test_a_failure_in_another_fixture_counts(run: Any) -> None:
    """The store is told too if a later fixture fails, or the state is asked for by its name."""
    result = run(
        """
        import pytest

        @pytest.fixture
        def broken(vstate_state):
            vstate_state["n"] = 1
            raise ValueError("broken")

        def test_setup(broken):
            pass

        def test_by_name(request):
            request.getfixturevalue("vstate_state")["n"] = 1
            assert not "n"
        """
    )
    result.assert_outcomes(failed=1, errors=1)
    assert ["as the test failed" in printed for _, printed in shown(result)] == [True, True]


def test_a_failure_without_a_commit_is_told(run: Any) -> None:
    """No command is printed for a store without a commit. A failure after the test's end is told as such."""
    result = run(
        """
        import pytest

        def test_block(vstate_state):
            with vstate_state.transaction():
                vstate_state["n"] = 1
                assert not "n"

        @pytest.fixture
        def late(vstate_state):
            yield
            raise ValueError("late")

        def test_end(late, vstate_state):
            vstate_state["n"] = 1
            vstate_state.commit("one")
            vstate_state["n"] = 2
        """
    )
    result.assert_outcomes(failed=1, passed=1, errors=1)
    result.stdout.fnmatch_lines_random(
        ["The store has no commit.", "Changes * are not in it: it failed after its end."]
    )
    assert ["one" in printed for _, printed in shown(result)] == [True]


def test_what_cannot_be_stored_hides_no_failure(run: Any) -> None:
    """The test's own error comes first. The report also says why the changes of the test are lost."""
    result = run(
        """
        def test_lock(vstate_state):
            vstate_state["n"] = 1
            vstate_state.commit("one")
            vstate_state["iterator"] = (n for n in [])
            assert not "n"

        def test_closed(vstate_state):
            vstate_state["n"] = 1
            vstate_state.commit("one")
            vstate_state.close()
            assert not "n"
        """,
        "-W",
        "error",
    )
    result.assert_outcomes(failed=2)
    assert ["one" in printed for _, printed in shown(result)] == [True, True]
    (reason,) = re.findall(r"^The uncommitted changes of the test are lost: (.+)$", result.stdout.str(), re.M)
    assert 'state["iterator"]' in reason


def test_pytest_keeps_the_store_as_it_keeps_tmp_path(run: Any, pytester: pytest.Pytester) -> None:
    """With the policy "failed", the stores of failing tests are left, and those of others go."""
    policy = ("-o", "tmp_path_retention_policy=failed", "--basetemp", "kept")
    run(FAILING + "\n\ndef test_passes(vstate_state): vstate_state.commit(message='')", *policy)
    kept = {path.resolve().parent.name for path in pytester.path.glob("kept/*/vstate_state")}
    assert kept == {"test_sum0"}


def test_a_run_without_the_fixture_imports_nothing_of_vstate(run: Any) -> None:
    """pytest loads the plugin in every run, so it costs no import of vstate."""
    result = run(
        """
        import sys

        def test_modules():
            assert "vstate_pytest" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] == "vstate"]
        """
    )
    result.assert_outcomes(passed=1)


def test_the_example_of_the_page_fails_as_the_page_says(example: Any, run: Any) -> None:
    """Its assertion holds, and with another one the report has the command under its title."""
    assert "test_an_order_is_paid" in example("pytest")
    (program,) = examples()["pytest"]
    run(program).assert_outcomes(passed=1)
    result = run(program.replace('"tea"\n', '"coffee"\n'))
    result.stdout.fnmatch_lines(["*-- vstate --*", "vstate -s */test_an_order_is_paid0/vstate_state log"])


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    """The distribution names the plugin, and the installed one does so too, once it is installed anew."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
    named = project["entry-points"]["pytest11"]
    assert hasattr(import_module(named["vstate"]), "vstate_state")
    installed = entry_points(group="pytest11", name="vstate")
    assert [each.value for each in installed] in ([], [named["vstate"]])
