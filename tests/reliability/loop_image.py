"""An ext4 file system in a file on a loop device.

The file holds exactly the writes that reached the device.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

MEGABYTES = 32

_SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_FLUSHING_THE_JOURNAL = 2


def run(*command: object) -> str:
    """Run the command and return its output. Raises OSError with the command's reason if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        reason = next(iter(done.stderr.strip().splitlines()), "").rpartition(": ")[2]
        raise OSError(f"{command[0]} failed: {reason or done.returncode}")
    return done.stdout.strip()


class LoopImage:
    """The image in `file`, attached to a loop device and mounted at `place` on demand."""

    def __init__(self, file: Path, place: Path) -> None:
        self.file = file
        self.place = place
        self.device: str | None = None
        self.mounted = False
        place.mkdir(parents=True, exist_ok=True)

    def make(self, megabytes: int = MEGABYTES) -> None:
        """Make an empty file system, fully written, so the kernel writes nothing later."""
        with self.file.open("wb") as file:
            file.truncate(megabytes << 20)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.file)

    def mount(self, options: str = "defaults") -> None:
        if self.device is None:
            try:
                # Bypass the page cache of the image's file, as a disk would.
                self.device = run("losetup", "--find", "--show", "--direct-io=on", self.file)
            except OSError:
                self.device = run("losetup", "--find", "--show", self.file)
        run("mount", "-t", "ext4", "-o", options, self.device, self.place)
        self.mounted = True

    def unmount(self) -> None:
        for attempt in range(200):
            try:
                run("umount", self.place)
                break
            except OSError:
                if attempt == 199:
                    raise
                time.sleep(0.1)  # a killed process may still be ending
        self.mounted = False

    def close(self) -> None:
        """Unmount and detach, in any state."""
        if self.mounted:
            try:
                self.unmount()
            except OSError:
                subprocess.run(["umount", "--lazy", str(self.place)], capture_output=True)
                self.mounted = False
        if self.device is not None:
            subprocess.run(["losetup", "--detach", self.device], capture_output=True)
            self.device = None

    def shut_down(self) -> None:
        """Cut the file system off from its device at once. Nothing more is written, not even the journal."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUT_DOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_JOURNAL))
        finally:
            os.close(descriptor)

    def copy_at_one_moment(self, target: Path) -> None:
        """Copy the image while nothing writes to it. Copies again if something did."""
        for _ in range(100):
            before = self._writes()
            run("cp", "--sparse=always", self.file, target)
            if before is not None and self._writes() == before:
                return
        raise OSError(f"{self.device} is written to all the time")

    def _writes(self) -> str | None:
        """The amount written to the device so far; None while a write is in flight."""
        assert self.device is not None
        fields = Path("/sys/block", Path(self.device).name, "stat").read_text().split()
        writes, sectors, in_flight = fields[4], fields[6], fields[8]
        return f"{writes} {sectors}" if in_flight == "0" else None


@contextmanager
def loop_image(file: Path, place: Path) -> Iterator[LoopImage]:
    """An image that is always unmounted and detached at the end."""
    image = LoopImage(file, place)
    try:
        yield image
    finally:
        image.close()


@cache
def why_not() -> str | None:
    """The reason why loop devices do not work here; None if they do."""
    if not sys.platform.startswith("linux"):
        return "loop devices and ext4 are Linux's"
    for program in ("mkfs.ext4", "losetup", "mount", "umount", "cp"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "only root may attach a loop device and mount it"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with loop_image(Path(directory, "image"), Path(directory, "mounted")) as image:
                image.make(8)
                image.mount()
        except OSError as error:
            return f"no ext4 on a loop device can be mounted here: {error}"
    return None
