"""Programs and threads that tests run, and the stores that they leave behind."""

import threading
from collections.abc import Callable
from pathlib import Path

from vstate import Disk
from vstate.repo.repository import Repository

RunPython = Callable[..., str]
"""The type of the fixture `run_python`: it runs a script in another process and returns its output."""


def at_once(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, and wait for all of them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)


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
