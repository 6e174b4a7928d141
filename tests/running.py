"""Programs and threads that tests run, and the stores that they leave behind."""

import ast
import importlib.util
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Self, TypeVar

from vstate import Disk
from vstate.repo.repository import Repository

Given = TypeVar("Given")
Result = TypeVar("Result")

RunPython = Callable[..., str]
"""The type of the fixture `run_python`: it runs a script in another process and returns its output."""


def load_module(file: Path) -> ModuleType:
    """A module by its file, which need not be in a package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def imported_packages(source: str) -> set[str]:
    """The packages that a program imports anywhere."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return {module.partition(".")[0] for module in modules}


class Fork:
    """Some work in a fork of this process: the fork has all modules that this process has imported.

    `output` has what the fork prints. As a context manager, it ends with the block.
    """

    _code: int | None = None

    def __init__(self, work: Callable[[], object]) -> None:
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other threads, which the fork does not have
            self.pid = os.fork()
            if self.pid == 0:
                self._work(work, write)
        os.close(write)
        self.output = open(read)  # noqa: SIM115  # `end` closes it

    def _work(self, work: Callable[[], object], write: int) -> None:
        status = 1
        try:
            os.dup2(write, 1)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  # os._exit closes nothing
            work()
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Wait for the end. The exit code, which is -9 if it was killed, and the output that was not read."""
        with self.output:
            rest = self.output.read()
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code, rest

    def killed_after(self, count: int) -> list[str]:
        """Kill the fork once it has printed so many lines. All whole lines that it printed."""
        printed = [self.output.readline() for _ in range(count)]
        self.kill()
        code, rest = self.end()
        assert code == -signal.SIGKILL
        return [*printed, *(line for line in rest.splitlines(keepends=True) if line.endswith("\n"))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            self.kill()
            self.end()


def program(script: Path, *arguments: object) -> Callable[[], None]:
    """The work of a program with these arguments, for a fork."""

    def run() -> None:
        sys.argv = [str(script), *map(str, arguments)]
        sys.path.insert(0, str(script.parent))
        runpy.run_path(str(script), run_name="__main__")

    return run


def run_forked(work: Callable[[], object], *, code: int = 0) -> str:
    """Do the work in a fork of this process; its output. The test fails if it ends with another code."""
    ended, output = Fork(work).end()
    assert ended == code, output
    return output


def at_once(function: Callable[[Given], Result], given: Iterable[Given]) -> list[Result]:
    """Call a function with each argument in a thread of its own; the results, or the first error."""
    arguments = list(given)
    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(function, arguments))


def all_at_once(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own; the first error is raised."""
    at_once(lambda call: call(), calls)


def dull_messages(directory: Path, *, most: int = 2) -> list[str]:
    """Commits of the stores in a directory without a message, or with an equal one more often than `most`."""
    dull = []
    for file in directory.rglob("vstate.db"):
        with Disk(file.parent) as store:
            repo = Repository(store)
            for branch in repo.branch_names():
                messages = [commit.message for commit in repo.log(branch)]
                dull += [
                    f"{file.parent.name}, {branch}: {message!r}"
                    for i, message in enumerate(messages)
                    if not message or messages[i : i + most + 1] == [message] * (most + 1)
                ]
    return dull
