"""A server of the tests in a process of its own, which a test may kill, pause and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

START_SECONDS = 240


class ServerProcess(ABC):
    """A server whose data and log are in `directory`."""

    _command: list[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers requests."""

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                log_text = (self.directory / "log").read_text()
                raise RuntimeError(f"{self._command[0]} did not start: {log_text[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, as the kernel sends it when memory is short."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill the server, and start it again with the data that it left."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the process: the kernel accepts connections, and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # wait until the last of its threads has stopped

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
