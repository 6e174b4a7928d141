"""The runner of other projects' tests, and those suites that take seconds."""

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from run import REPOSITORY, Outcome, is_fetched, python_of, run, source_of, write_counts
from table import SUITES, Suite

PAGE = REPOSITORY / "docs" / "integrations.md"

SAMPLE = Suite(
    name="sample",
    title="a sample",
    source="sample==1.0",
    tests=("test_sample.py",),
    packages=(),
    plugin="places",
    passed=1,
    skipped=1,
    failing={"test_fails": "it compares two numbers"},
)


@pytest.mark.slow
def test_another_outcome_than_the_expected_one_is_told(tmp_path: Path) -> None:
    """A run counts passed, failed and skipped tests, and names each difference to the table."""
    (tmp_path / "test_sample.py").write_text(
        "import os, pytest\nfrom places import place\n"
        "def test_passes(): assert place('a') == place('a') != place(':memory:')\n"
        "def test_fails(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='sample')\ndef test_is_skipped(): pass\n"
    )
    found = run(SAMPLE, "disk", Path(sys.executable), tmp_path)
    assert found == Outcome(1, {"test_fails": "assert 1 == 2"}, 1)
    assert found.problems(SAMPLE) == []
    assert found.problems(replace(SAMPLE, passed=2, skipped=0, failing={"test_old": "it is gone"})) == [
        "test_fails: NEW: assert 1 == 2",
        "test_old: it passes now",
        "1 pass, and 2 are expected",
        "1 are skipped, and 0 are expected",
    ]


def test_the_page_has_the_counts_of_the_table(tmp_path: Path) -> None:
    """`docs/integrations.md` says of each suite exactly what its row in the table expects."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    write_counts(page, list(SUITES.values()))
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_the_head_of_the_page_has_the_counts_of_the_table() -> None:
    """Its row of an adapter says how many tests pass, of how many."""
    head = PAGE.read_text(encoding="utf-8").partition("###")[0]
    counts = {f"{suite.passed} of {suite.passed + len(suite.failing)}" for suite in SUITES.values()}
    found = re.findall(r"\d+ of \d+", head)
    assert len(found) > 15
    assert set(found) <= counts


def test_each_adapter_outside_of_the_extra_dev_has_a_suite_that_runs_its_own_tests() -> None:
    """`make test` skips them: it installs no large framework."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    in_dev = set(re.findall(r"[\w-]+", " ".join(each for each in extras["dev"] if "vstate[" in each)))
    tests = {
        path.stem.removeprefix("test_") for path in (REPOSITORY / "tests/integrations").glob("test_*.py")
    }
    outside = {extra.replace("-", "_") for extra in extras.keys() - in_dev} & tests
    assert outside <= {name for suite in SUITES.values() for name in suite.own}
    assert len(outside) > 7


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if suite.is_quick])
def test_a_quick_suite(name: str) -> None:
    """The tests of the other project have the expected outcome on the first of the suite's stores."""
    suite = SUITES[name]
    if not is_fetched(suite):
        pytest.skip(f"{name} is not in the cache; `make suites` fetches it")
    assert run(suite, suite.stores[0], python_of(suite), source_of(suite)).problems(suite) == []
