"""What programs do with the stores that the command looks into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vstate import Commit, Disk, Versioned
from vstate.repo import Repository


@dataclass
class Plan:
    """A class of a program. The command never imports it."""

    goal: str
    steps: list[str]


def commit(store: Path, message: str = "change", branch: str | None = None, **values: object) -> Commit:
    """Commit these values."""
    with Versioned(Disk(store, durability="process"), branch=branch) as state:
        state.update(values)
        made = state.commit(message)
    assert made is not None
    return made


def contents(store: Path, branch: str | None = None) -> dict[str, Any]:
    """Every key and value of a branch."""
    with Versioned(Disk(store), branch=branch) as state:
        return dict(state)


def resolve(store: Path, rev: str) -> Commit:
    with Disk(store) as disk:
        return Repository(disk).resolve(rev)


def refs(store: Path) -> dict[str, str]:
    """The commit of each branch, tag and branch of a remote."""
    with Disk(store) as disk:
        return {name: str(oid) for name, oid in Repository(disk).refs.all().items()}


def rows(store: Path) -> dict[str, bytes]:
    with Disk(store) as disk:
        return dict(disk.items())


def change_row(store: Path, key: str, value: bytes | None) -> None:
    with Disk(store) as disk:
        disk.transact({key: value}, {})
