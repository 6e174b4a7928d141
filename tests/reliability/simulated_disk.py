"""A simulated disk: the files that a power cut leaves, computed from a record of writes and syncs.

A power cut keeps all synced data. It may keep any part of the other data: any sector of any write, and a
first part of the list of created and removed names. Data that a failed sync was to write is lost, although
the process goes on reading it, as on Linux.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
_LINE = struct.Struct("=B3xIqq")


@dataclass(frozen=True)
class Line:
    """One line of a record, as faulty_disk.c writes it."""

    kind: str
    name: str
    offset: int
    data: bytes


def read_record(file: Path) -> Iterator[Line]:
    """The lines of a record, in order."""
    raw = memoryview(file.read_bytes())
    at = 0
    while at < len(raw):
        kind, name_length, offset, length = _LINE.unpack_from(raw, at)
        at += _LINE.size
        name = bytes(raw[at : at + name_length]).decode()
        at += name_length
        yield Line(chr(kind), name, offset, bytes(raw[at : at + length]))
        at += length


@dataclass(eq=False)
class File:
    """A file's content on the disk, and the writes that are not synced."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Line] = field(default_factory=list)

    def sync(self) -> None:
        for line in self.pending:
            _apply(self.durable, line)
        self.pending.clear()

    def after_a_cut(self, chance: random.Random, kept: float) -> bytes:
        content = bytearray(self.durable)
        for line in self.pending:
            if line.kind == "t":
                if chance.random() < kept:
                    _apply(content, line)
                continue
            for start in range(0, len(line.data), SECTOR):
                if chance.random() < kept:
                    part = line.data[start : start + SECTOR]
                    _apply(content, Line("w", line.name, line.offset + start, part))
        return bytes(content)


def _apply(content: bytearray, line: Line) -> None:
    end = line.offset + len(line.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if line.kind == "t":
        del content[line.offset :]
    else:
        content[line.offset : end] = line.data


class SimulatedDisk:
    """A disk that is fed the lines of a record. `cut` works between any two lines."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self._names: dict[str, File] = {}  # the names that the process sees
        self._durable: dict[str, File] = {}
        self._moves: list[tuple[str, File | None]] = []  # names made and removed since the last sync

    def feed(self, line: Line) -> None:
        """Repeat one action of the process."""
        if line.kind == "a":
            self.acknowledged = line.offset
        elif line.kind == "c":
            self._names[line.name] = File()
            self._moves.append((line.name, self._names[line.name]))
        elif line.kind == "u":
            self._names.pop(line.name, None)
            self._moves.append((line.name, None))
        elif line.kind in "wt":
            self._names[line.name].pending.append(line)
        elif line.kind == "s" and line.name in self._names:
            self._names[line.name].sync()
        elif line.kind == "s":  # of a directory
            for name, file in self._moves:
                _move(self._durable, name, file)
            self._moves.clear()
        elif line.kind == "f" and line.name in self._names:
            self._names[line.name].pending.clear()

    def cut(self, directory: Path, chance: random.Random, *, kept: float) -> None:
        """Empty `directory`, and write the files that a power cut would leave now.

        `kept` is the probability that an unsynced part reached the disk.
        """
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        files = dict(self._durable)
        # A journaling file system keeps the order in which names were made and removed.
        for name, file in self._moves:
            if chance.random() >= kept:
                break
            _move(files, name, file)
        for name, file in files.items():
            (directory / Path(name).name).write_bytes(file.after_a_cut(chance, kept))


def _move(names: dict[str, File], name: str, file: File | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file
