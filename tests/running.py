"""Programs and threads that tests run, and the stores that they leave behind."""

import ast
import importlib.util
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TypeVar

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
