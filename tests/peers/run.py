"""Run the tests of the systems that people come from on vstate: `python tests/peers/run.py [PEER …]`.

Each peer's sources are fetched by pip at a pinned commit into a cache outside of the repository, with an
environment of their own: `~/.cache/vstate-peers`, or `VSTATE_PEERS`. A peer that cannot be fetched is
skipped, and the output says so. `adapters.py` puts vstate's classes under the peer's names. The run fails if
another test than the ones below fails, or if another number of tests passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CACHE = Path(os.environ.get("VSTATE_PEERS") or Path.home() / ".cache" / "vstate-peers")

PRIVATE = "it reads a private name"
NEEDS_TABLESTORE = "it needs the client of a cloud service; it fails on AgentScope alone too"


@dataclass(frozen=True)
class Peer:
    """A system, its tests, and the outcome: the tests that pass, and why each of the others fails."""

    source: str
    tests: list[str]
    packages: list[str]
    passed: int
    failing: dict[str, str] = field(default_factory=dict)
    needs_redis: bool = False


PYTEST = ["pytest==9.2.0", "pytest-asyncio==1.5.0"]

PEERS = {
    # The package on the registry has no tests, so the sources are those of its tag v1.0.21.
    "agentscope": Peer(
        source="git+https://github.com/agentscope-ai/agentscope@278696c38c7d1e36d031a4ba1dbe04e707218fb8",
        tests=[f"tests/{name}_test.py" for name in ("session", "memory", "plan", "tablestore_session")],
        # Newer releases of mcp and pydantic lack names that this AgentScope imports.
        packages=[
            "agentscope==1.0.21",
            "mcp<2",
            "pydantic<2.13",
            "greenlet",
            "tqdm",
            "fakeredis",
            "aiosqlite",
            *PYTEST,
        ],
        passed=33,
        failing=dict.fromkeys(
            [
                "test_empty_user_id_defaults_to_default",
                "test_save_and_load_with_memory_module",
                "test_save_session_state",
                "test_save_session_state_existing_session",
            ],
            NEEDS_TABLESTORE,
        ),
    ),
    # The last version with tests of its state services, v1.0.5.post1.
    "agentscope-runtime": Peer(
        source="git+https://github.com/agentscope-ai/agentscope-runtime@593555d9f39e40de3491448609559a3fb1afa80a",
        tests=["tests/unit/test_redis_state_service.py", "tests/unit/test_state_service_factory.py"],
        packages=PYTEST,
        passed=16,
        failing=dict.fromkeys(
            [
                "test_ttl_expiration",
                "test_ttl_refresh_on_write",
                "test_ttl_refresh_on_read",
                "test_ttl_disabled",
                "test_load_env_kwargs",
                "test_load_env_kwargs_empty",
            ],
            PRIVATE,
        ),
        needs_redis=True,
    ),
}


PEERS["agex"] = Peer(
    # The last version with tests of a state of its own, v0.1.2.
    source="git+https://github.com/ashenfad/agex@0e68bb57d1da8076d4194001d742d35530a7c4f4",
    tests=["tests/agex/state"],
    packages=["tiktoken", "xxhash", "diskcache", "pydantic", "pygments", "numpy", *PYTEST],
    passed=50,
    failing={
        "test_cache_hit_vs_miss": "it reads the dict inside a Cache",
        "test_cache_get_with_default": "it reads the dict inside a Cache",
        "test_cache_eviction_basic": "it reads the dict inside a Cache",
        "test_disk_type_validation": "vstate's message for a value that is no bytes has other words",
        "test_versioned_snapshot": "it reads the keys of agex' own layout in the store",
        "test_snapshot_creates_diff_keys": "it reads a key of agex' own layout in the state",
    },
)


class Unreachable(Exception):
    """A peer's sources or packages cannot be fetched."""


def sources(name: str, peer: Peer) -> Path:
    """The directory with the sources of a peer, fetched if they are not in the cache."""
    place = CACHE / name / "source"
    if not place.is_dir():
        with tempfile.TemporaryDirectory() as directory:
            pip(sys.executable, "download", "--quiet", "--no-deps", "--dest", directory, peer.source)
            (archive,) = Path(directory).iterdir()
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(Path(directory, "unpacked"))
            (unpacked,) = Path(directory, "unpacked").iterdir()
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(unpacked, place)
    return place


def environment(name: str, peer: Peer) -> Path:
    """The interpreter of an environment with the packages of a peer and of vstate."""
    place = CACHE / name / "venv"
    python = place / "bin" / "python"
    done = place / "packages"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = [*peer.packages, *project["dependencies"], *extras["agents"], *extras["redis"]]
    if not done.exists() or done.read_text().split("\n") != packages:
        venv.create(place, clear=True, with_pip=True)
        pip(str(python), "install", "--quiet", *packages)
        done.write_text("\n".join(packages))
    return python


def pip(python: str, *arguments: str) -> None:
    ended = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True, text=True
    )
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines()]
        told = next((line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))), "pip failed")
        raise Unreachable(told)


@contextmanager
def redis_url(directory: Path) -> Iterator[str]:
    """A real Redis for the block."""
    sys.path.insert(0, str(HERE.parent))
    from redis_server import RedisServer

    server = RedisServer(directory)
    try:
        yield server.url
    finally:
        server.stop()


def outcome(name: str, peer: Peer, python: Path, source: Path) -> tuple[int, dict[str, str]]:
    """The number of tests that pass, and the reason of each one that does not."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        variables = {
            **os.environ,
            "VSTATE_PEER": name,
            "VSTATE_PEER_SOURCE": str(source),
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{HERE}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # In a directory of its own: the tests of AgentScope write files where they run.
        command = [python, "-m", "pytest", "-q", "-p", "adapters", "-p", "no:cacheprovider", "-c", os.devnull]
        command += [
            f"--rootdir={source}",
            f"--junitxml={report}",
            *(str(source / test) for test in peer.tests),
        ]
        with redis_url(Path(directory, "redis")) if peer.needs_redis else nullcontext("") as url:
            variables["VSTATE_PEER_REDIS"] = url
            ended = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True)
        if not report.exists():
            sys.exit(f"{name}: pytest wrote no report:\n{ended.stdout}{ended.stderr}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        failed: dict[str, str] = {}
        passed = 0
        for case in cases:
            told = [child for child in case if child.tag in ("failure", "error", "skipped")]
            if told:
                failed[case.attrib["name"]] = told[0].attrib.get("message", "").partition("\n")[0]
            else:
                passed += 1
        return passed, failed


def check(name: str, peer: Peer) -> bool:
    """Run the tests of a peer and print the outcome. Returns whether it is the known one."""
    try:
        source, python = sources(name, peer), environment(name, peer)
    except Unreachable as error:
        print(f"{name}: skipped, because it cannot be fetched: {error}")
        return True
    passed, failed = outcome(name, peer, python, source)
    is_right = passed == peer.passed and failed.keys() == peer.failing.keys()
    print(f"{name}: {passed} of {passed + len(failed)} pass{'' if is_right else ', and that is new'}")
    for test, reason in failed.items():
        print(f"    {test}: {peer.failing.get(test) or f'NEW: {reason}'}")
    for test in peer.failing.keys() - failed.keys():
        print(f"    {test}: it passes now")
    return is_right


def main() -> int:
    """Run the peers that the arguments name, or all."""
    names = sys.argv[1:] or list(PEERS)
    for name in names:
        if name not in PEERS:
            sys.exit(f"there is no peer {name!r}; there are: {', '.join(PEERS)}")
    right = [check(name, PEERS[name]) for name in names]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
