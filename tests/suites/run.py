"""Run the tests of other projects on vstate: `python tests/suites/run.py [--page PAGE] [SUITE …]`.

`table.py` names the suites. The sources of a suite are an sdist with a pinned hash, or a pinned commit of a
repository. Nothing is built of them. The packages of a suite go into an environment of their own. Both stay
in a cache outside of the repository: `vstate-suites` in `XDG_CACHE_HOME`, or the directory `VSTATE_SUITES`. A
suite that cannot be fetched is skipped, and the output says so. The run fails if another test than the listed
ones fails, or if another number of tests passes or is skipped. It writes the counts into PAGE.

The environment of a suite has the framework, so vstate's own tests of its adapter run there too. The extra
`dev` leaves large frameworks out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree

from table import SUITES, Suite, modules

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CACHE = Path(
    os.environ.get("VSTATE_SUITES")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vstate-suites")
)
SECONDS = 1800
"""The time that one run of a suite may take."""

MARKS = re.compile(r"(<!-- suites -->\n).*(<!-- /suites -->)", re.DOTALL)
HEAD = "| suite | tests of | on | pass | fail | skipped | own |\n|---|---|---|---|---|---|---|\n"


class Unreachable(Exception):
    """A suite's sources or packages cannot be fetched."""


@dataclass(frozen=True)
class Outcome:
    """The tests of one run: how many pass, why each of the others fails, and how many are skipped."""

    passed: int
    failed: dict[str, str]
    skipped: int

    def problems(self, suite: Suite) -> list[str]:
        """One line for each difference to the outcome that the table expects."""
        lines = [
            f"{test}: NEW: {reason}" for test, reason in self.failed.items() if test not in suite.failing
        ]
        lines += [f"{test}: it passes now" for test in suite.failing if test not in self.failed]
        for name, found, expected in [
            ("pass", self.passed, suite.passed),
            ("are skipped", self.skipped, suite.skipped),
        ]:
            if expected not in (found, None):
                lines.append(f"{found} {name}, and {expected} are expected")
        return lines


def source_of(suite: Suite) -> Path:
    """The directory with the sources of a suite."""
    return CACHE / "sources" / re.sub(r"[^\w.-]+", "-", suite.source)


def python_of(suite: Suite) -> Path:
    """The interpreter for a suite. Suites with the same packages share one."""
    packages = hashlib.sha256("\n".join(packages_of(suite)).encode()).hexdigest()[:12]
    return CACHE / "environments" / packages / "bin" / "python"


def mark_of(suite: Suite) -> Path:
    """The file that says that the environment of a suite has all its packages."""
    return python_of(suite).parents[1] / "complete"


def packages_of(suite: Suite) -> list[str]:
    """The packages of a suite, and those that vstate needs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [
        *suite.packages,
        *project["dependencies"],
        *extras["agents"],
        *extras["redis"],
        *extras["postgres"],
        *extras["s3"],
    ]


def is_fetched(suite: Suite) -> bool:
    """Are the sources and the packages of the suite in the cache?"""
    return source_of(suite).is_dir() and mark_of(suite).exists()


def fetch(suite: Suite) -> None:
    """Bring the sources and the packages of a suite into the cache. Raises Unreachable."""
    place = source_of(suite)
    if suite.tests and not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as directory:
            if suite.sha256:
                unpacked = unpack(suite, Path(directory))
            else:
                unpacked = check_out(suite, Path(directory))
            unpacked.rename(place)
    if not mark_of(suite).exists():
        venv.create(mark_of(suite).parent, clear=True, with_pip=True)
        pip(str(python_of(suite)), "install", *packages_of(suite))
        mark_of(suite).touch()


def unpack(suite: Suite, directory: Path) -> Path:
    """The sources of an sdist, unpacked without a build."""
    wanted = directory / "wanted.txt"
    wanted.write_text(f"{suite.source} --hash=sha256:{suite.sha256}")
    name, downloads = suite.source.partition("==")[0], directory / "downloads"
    options = ["--no-deps", "--no-binary", name, "--dest", str(downloads), "-r", str(wanted)]
    pip(sys.executable, "download", *options)
    (archive,) = downloads.iterdir()
    shutil.unpack_archive(archive, directory / "unpacked", filter="data")
    (unpacked,) = (directory / "unpacked").iterdir()
    return unpacked


def check_out(suite: Suite, directory: Path) -> Path:
    """The files of a commit of a repository, which need not be a package."""
    url, _, at = suite.source.removeprefix("git+").rpartition("@")
    commit, _, below = at.partition("#subdirectory=")
    (work := directory / "checkout").mkdir()
    for command in (["init"], ["fetch", "--depth=1", url, commit], ["checkout", "FETCH_HEAD"]):
        ended = subprocess.run(
            ["git", *command[:1], "-q", *command[1:]], cwd=work, capture_output=True, text=True
        )
        if ended.returncode:
            raise Unreachable(ended.stderr.strip().rpartition("\n")[2])
    return work / below


def pip(python: str, *arguments: str) -> None:
    """Run pip. Raises Unreachable with the line in which pip says why it failed."""
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines()]
        told = (line for line in lines if line.lower().startswith(("fatal:", "error:")))
        raise Unreachable(next(told, "pip failed"))


@contextmanager
def store_urls(store: str, directory: Path) -> Iterator[str]:
    """A URL for the block, with `{}` in the place of a name: each name is another empty store."""
    sys.path.append(str(HERE.parent))  # the modules of the servers
    if store == "memory":
        yield "memory:"
    elif store == "disk":
        yield f"disk:{directory}/{{}}"
    elif store == "redis":
        from redis_server import RedisServer

        redis = RedisServer(directory / "redis")
        try:
            yield f"{redis.url}?prefix={{}}"
        finally:
            redis.stop()
    elif store == "s3":
        from seaweed_server import BUCKET, SeaweedServer, options

        s3 = SeaweedServer(directory)
        try:
            yield f"s3://{BUCKET}/{{}}?{urlencode(options(s3.port))}"
        finally:
            s3.kill()
    else:
        from postgres_server import PostgresServer

        server = PostgresServer(directory / "template")
        try:
            yield f"{server.dsn}?table=t{{}}"
        finally:
            server.stop()


def run(suite: Suite, store: str, python: Path, source: Path) -> Outcome:
    """Run the tests of a suite on one kind of store."""
    with tempfile.TemporaryDirectory(prefix="vstate-suite-") as directory:
        report = Path(directory, "report.xml")
        # In a directory of its own: some tests write files where they run.
        command = [python, "-m", "pytest", "-q", "-p", suite.plugin, "-p", "no:cacheprovider"]
        command += [
            "-o",
            "asyncio_mode=auto",
            "-c",
            os.devnull,
            f"--rootdir={source}",
            f"--junitxml={report}",
            *suite.options,
        ]
        command += [str(source / test) for test in suite.tests]
        imports = [
            REPOSITORY,
            REPOSITORY / "cli",
            HERE / "plugins",
            *(source / each for each in suite.imports),
        ]
        with store_urls(store, Path(directory)) as url:
            variables = {
                **os.environ,
                "VSTATE_SUITE": suite.name,
                "VSTATE_SUITE_SOURCE": str(source),
                "VSTATE_SUITE_STORE": url,
                "PYTHONPATH": os.pathsep.join(map(str, imports)),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            ended = subprocess.run(
                command, cwd=directory, env=variables, capture_output=True, text=True, timeout=SECONDS
            )
        if not report.exists():
            sys.exit(f"{suite.name}: pytest wrote no report:\n{ended.stdout}{ended.stderr}")
        failed: dict[str, str] = {}
        passed = skipped = 0
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            told = {child.tag: child.attrib.get("message", "").partition("\n")[0] for child in case}
            if reason := told.get("failure", told.get("error")):
                name = case.attrib["name"]
                if name in failed:  # in another class
                    name = f"{case.attrib['classname'].rpartition('.')[2]}.{name}"
                failed[name] = reason
            elif "skipped" in told:
                skipped += 1
            else:
                passed += 1
        return Outcome(passed, failed, skipped)


def own_suites(suite: Suite) -> list[Suite]:
    """vstate's own tests of the adapter, and those of all adapters, which skip adapters without a framework.

    Only the first have an expected number: a new test of all adapters changes no row of the table.
    """
    if not suite.own:
        return []
    settings = ("-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={REPOSITORY}")
    # pytest-asyncio warns where it is not set, and vstate's settings make a warning an error.
    settings += ("-o", "asyncio_default_fixture_loop_scope=function")
    plain = replace(suite, plugin="places", options=settings, stores=("memory",), failing={}, skipped=0)
    own, common = (modules(f"{HERE.parent}/integrations", *names) for names in (suite.own, ["adapters"]))
    any_number = {"passed": None, "skipped": None}
    return [
        replace(plain, name=f"vstate's own tests of {suite.name}", tests=own, passed=suite.own_passed),
        replace(plain, name=f"those of all adapters, for {suite.name}", tests=common, **any_number),
    ]


def check(suite: Suite) -> bool | None:
    """Run a suite on each of its stores and print the outcomes.

    Returns whether they are as expected, and None if the suite cannot be fetched.
    """
    try:
        fetch(suite)
    except Unreachable as error:
        print(f"{suite.name}: skipped, because it cannot be fetched: {error}")
        return None
    right = True
    for part in (suite, *own_suites(suite)):
        for store in part.stores:
            found = run(part, store, python_of(suite), source_of(suite))
            problems = found.problems(part)
            right = right and not problems
            counts = f"{found.passed} pass, {len(found.failed)} fail, {found.skipped} are skipped"
            print(f"{part.name} on {store}: {counts}")
            for line in [*(f"{test}: {reason}" for test, reason in part.failing.items()), *problems]:
                print(f"    {line}", flush=True)
    return right


def write_counts(page: Path, suites: list[Suite]) -> None:
    """Put the rows of these suites into the table of the page. Rows of other suites stay as they are."""
    text = page.read_text(encoding="utf-8")
    marks = MARKS.search(text)
    if marks is None:
        sys.exit(f"{page} has no <!-- suites --> … <!-- /suites -->")
    rows = {line.split("|")[1].strip(): line for line in marks[0].splitlines() if line.startswith("|")}
    for suite in suites:
        counts = [suite.passed, len(suite.failing), suite.skipped, suite.own_passed or ""]
        cells = [suite.name, suite.title, ", ".join(suite.stores), *map(str, counts)]
        rows[suite.name] = f"| {' | '.join(cells)} |"
    body = "".join(f"{rows[name]}\n" for name in SUITES if name in rows)
    page.write_text(f"{text[: marks.start()]}{marks[1]}{HEAD}{body}{text[marks.start(2) :]}", "utf-8")


def main() -> int:
    """Run the suites that the arguments name, or all."""
    parser = argparse.ArgumentParser(description="Run the tests of other projects on vstate.")
    parser.add_argument("--page", type=Path, help="the page with the table of counts")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    given = parser.parse_args()
    names = given.suites or list(SUITES)
    for name in names:
        if name not in SUITES:
            parser.error(f"there is no suite {name!r}; there are: {', '.join(SUITES)}")
    outcomes = {name: check(SUITES[name]) for name in names}
    if given.page:
        write_counts(given.page, [SUITES[name] for name, right in outcomes.items() if right])
    return 1 if False in outcomes.values() else 0


if __name__ == "__main__":
    sys.exit(main())
