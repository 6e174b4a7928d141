"""Intake: the values of a shelve file, or of a directory of JSON files, as commits of a branch.

No pickle is loaded: its objects are moved by their opcodes, as a merge of the command moves them.
"""

from __future__ import annotations

import dbm
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vstate.arguments import check_new_key
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import Kind, NewObjects, ObjectId
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.values import inert, recipes
from vstate.values.budget import InertError, Limits
from vstate.values.entry import Encoded, encode_value

BATCH_KEYS = 1000
BATCH_BYTES = 16 * 1024 * 1024
"""The most keys of a commit, and about how many bytes of values."""

_PYTHON_3 = 3  # the first protocol that names modules as Python 3 does


class Refusal(Exception):
    """A value that cannot be taken, and why."""


Source = Iterable[tuple[str, Callable[[], Encoded]]]
"""Keys, each with a function that gives its value as an entry, or raises Refusal."""


@dataclass(frozen=True, slots=True)
class IntakeReport:
    """The results of `take`: the branch's commit, the numbers of keys that were found and of those that were
    new or changed, and the keys that were left out, each with the reason.
    """

    branch: str
    commit: Commit | None
    keys: int
    written: int
    left_out: tuple[tuple[str, str], ...]


def take(
    core: Core,
    branch: str,
    source: Source,
    *,
    name: str,
    prefix: str = "",
    progress: Callable[[int], None] = lambda keys: None,
) -> IntakeReport:
    """Commit the values of a source to a branch under their keys behind `prefix`, some at a time.

    Each value is read back from the store and compared. A key that is there with the same value is no change,
    so an interrupted intake that is called again continues. `name` tells the source in the messages.
    """
    commit = core.newest(branch)
    keys = written = 0
    left_out: list[tuple[str, str]] = []
    for batch in _batches(source, prefix, left_out):
        commit, changed = _commit(core, branch, batch, f"import: {counted(len(batch), 'key')} of {name}")
        _read_back(core, commit, batch)
        keys += len(batch)
        written += changed
        progress(keys)
    return IntakeReport(branch, commit, keys + len(left_out), written, tuple(left_out))


def _batches(source: Source, prefix: str, left_out: list[tuple[str, str]]) -> Iterator[dict[str, Encoded]]:
    batch: dict[str, Encoded] = {}
    size = 0
    for key, value in source:
        try:
            encoded = value()
            batch[check_new_key(prefix + key)] = encoded
        except (Refusal, InvalidInput) as error:
            left_out.append((key, str(error)))
            continue
        size += encoded.size
        if size > BATCH_BYTES or len(batch) == BATCH_KEYS:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _commit(core: Core, branch: str, batch: dict[str, Encoded], message: str) -> tuple[Commit, int]:
    """The commit of the branch that has the batch, and the number of keys that changed."""
    entries = {key: encoded.entry for key, encoded in batch.items()}
    objects: NewObjects = {}
    for encoded in batch.values():
        objects.update(encoded.objects)
    while True:
        head = core.newest(branch)
        root = None if head is None else head.root
        before = tree.lookup_many(core.objects.nodes, root, entries)
        changed = {key: entry for key, entry in entries.items() if before.get(key) != entry}
        if head is not None and not changed:
            return head, 0
        new_root, made, nodes = tree.update(core.objects.node, root, changed)
        commit = core.build_commit(new_root, () if head is None else (head,), message=message)
        expected = None if head is None else head.oid
        if core.publish(branch, [commit], objects | made, nodes, expected=expected, action=message):
            return commit, len(changed)


def _read_back(core: Core, commit: Commit, batch: dict[str, Encoded]) -> None:
    """Raise CorruptObject unless the store holds each value of the batch."""
    found = tree.lookup_many(core.objects.nodes, commit.root, batch)
    for key, encoded in batch.items():
        if found.get(key) != encoded.entry:
            raise CorruptObject(commit.id, f"it does not hold the value of {key!r} that was imported")
        kinds: dict[Kind, list[ObjectId]] = {}
        for oid, (kind, _) in encoded.objects.items():
            kinds.setdefault(kind, []).append(oid)
        for kind, ids in kinds.items():
            core.objects.read_many(kind, ids)  # which proves each body by its id


# Sources


def json_files(directory: str | os.PathLike[str]) -> Source:
    """The values of the files `*.json` in a directory and below: `a/b.json` has the key `a/b`."""
    top = Path(directory).expanduser()
    if not top.is_dir():
        raise NotFound(f"no directory {os.fspath(directory)}", name=os.fspath(directory))
    for path in sorted(top.rglob("*.json")):
        if path.is_file():
            yield path.relative_to(top).with_suffix("").as_posix(), partial(_parsed, path)


def _parsed(path: Path) -> Encoded:
    try:
        return encode_value(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path} holds no JSON that Python can read: {error}") from None
    except OSError as error:
        raise Refusal(str(error)) from None


def shelve_file(file: str | os.PathLike[str]) -> Source:
    """The values of a file that `shelve` wrote. Their classes need not be there, and are not imported."""
    name = os.path.expanduser(file)
    kind = dbm.whichdb(name)
    if not kind:
        problem = f"no shelve file {name}" if kind is None else f"{name} is no shelve file"
        raise NotFound(f"{problem}: name it as the program does, without the suffix of dbm", name=name)
    with ExitStack() as stack:
        try:
            shelf = stack.enter_context(dbm.open(name, "r"))
            keys = sorted(map(_as_bytes, shelf.keys()))
        except ImportError as error:
            raise InvalidInput(f"{name} is a file of {kind}, which this Python lacks: {error}") from None
        except Exception as error:  # a module of dbm may raise anything for a damaged file
            raise InvalidInput(f"{kind} cannot read {name}: {error}") from None
        for key in keys:
            yield key.decode("utf-8", "backslashreplace"), partial(_moved_from, shelf, key)


def _as_bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


def _moved_from(shelf: Any, key: bytes) -> Encoded:
    try:
        pickled = bytes(shelf[key])
    except Exception as error:  # as above
        raise Refusal(f"it cannot be read: {error}") from None
    return moved(pickled)


def moved(pickled: bytes) -> Encoded:
    """The value of a pickle as an entry, without loading it; Refusal."""
    try:
        value, is_plain = recipes.read(pickled, (), Limits())
        if is_plain:
            return encode_value(value)
        protocol = pickled[1] if pickled[:1] == pickle.PROTO else 0
        if protocol < _PYTHON_3:
            raise Refusal(
                f"its pickle has protocol {protocol}, with the names of Python 2: write it with protocol 4"
            )
        if isinstance(value, recipes.Recipe):
            value.label = getattr(inert.read(pickled), "type", "object")
        return encode_value(value, dump=recipes.dumps)
    except InertError as error:
        raise Refusal(f"its pickle cannot be taken apart: {error.reason}") from None
    except RecursionError:
        raise Refusal("it is nested too deep for pickle") from None
