"""Multiplied threads: the rows of a real thread once more, with another name and room, and other times.

A store of a million threads would take hours to write by real puts. A copy has all the rows that the same
puts would have left there: `tests/test_scale.py` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import NamedTuple

from vstate.kv.base import OBJECT_PREFIX, KVStore, batches
from vstate.objects.canonical import decode, encode, encode_checked
from vstate.objects.commit import Commit
from vstate.repo.graph import GRAPH
from vstate.repo.names.refs import HEADS, LABELS, NEWEST, REF, REFLOG, WITH, line_check
from vstate.repo.repository import Repository
from vstate.repo.rooms import ROOM_OF, Room, entry, prefix_of
from vstate.repo.rules.labels import LabelRow, parse_labels

_TOGETHER = 5000  # copies in one transaction
_line = re.compile(f"{REFLOG}.+:([0-9a-f]{{16}})[0-9a-f]{{8}}").fullmatch


class Line(NamedTuple):
    """A line of a reflog: its place in nanoseconds, and the move."""

    place: int
    old: bytes | None
    new: bytes | None
    action: str


class Original(NamedTuple):
    """A thread: its commits, the oldest first, other objects by key, its reflog, labels, and the rows of the
    index that find it by them, without its name.
    """

    commits: list[Commit]
    objects: dict[str, bytes]
    lines: list[Line]
    labels: LabelRow | None
    found_by: list[str]


class Copy(NamedTuple):
    """A thread to write: like the original, on this branch, in this room, later by so many microseconds."""

    original: Original
    branch: str
    room: int
    later: int


def original_of(repo: Repository, branch: str) -> Original:
    """Read a thread that has a room for itself; ValueError if it has what a copy would lack."""
    store = repo.store
    room = repo.home(HEADS + branch).store
    assert isinstance(room, Room)
    commits = list(repo.log(branch))[::-1]
    if any(commit.events or commit.signature for commit in commits):
        raise ValueError(f"branch {branch} has commits with events or signatures, which are not copied")
    own = {OBJECT_PREFIX + commit.id for commit in commits}
    objects: dict[str, bytes] = {}
    lines: list[Line] = []
    for name, row in store.items(room.prefix):
        key = name.removeprefix(room.prefix)
        if found := _line(key):
            lines.append(Line(int(found[1], 16), *decode(row)))
        elif key.startswith(OBJECT_PREFIX):
            objects |= {} if key in own else {key: row}
        elif key != REF + HEADS + branch and not key.startswith(GRAPH):
            raise ValueError(f"the room of branch {branch} has a row {key}, which is not copied")
    labels = store.get(LABELS + HEADS + branch)
    found_by = [key.removesuffix(branch) for key in store.keys(WITH) if key.endswith(f"/{branch}")]
    return Original(commits, objects, lines, None if labels is None else parse_labels(labels), found_by)


def rows_of(copy: Copy) -> dict[str, bytes]:
    """The rows of a copy by their keys in the store."""
    original, branch, number, later = copy
    commits = _commits_later(original.commits, later)
    newest = commits[original.commits[-1].oid]
    start, ref = prefix_of(number), HEADS + branch
    rows = {start + key: row for key, row in original.objects.items()}
    rows |= {f"{start}{OBJECT_PREFIX}{commit.id}": b"c" + commit.body for commit in commits.values()}
    rows[start + REF + ref] = newest.id.encode()
    moved = newest.order - original.commits[-1].order
    for place, old, new, action in original.lines:
        key = f"{REFLOG}{ref}:{place + 1000 * moved:016x}"
        row = encode([old and commits[old].oid, new and commits[new].oid, action])
        rows[start + key + line_check(key, row)] = row
    rows[ROOM_OF + ref] = entry(number)
    rows[f"{NEWEST}{2**40 - 1 - (newest.order >> 20):010x}/{branch}"] = b""
    rows |= {begin + branch: b"" for begin in original.found_by}
    if original.labels is not None:
        at, labels = original.labels
        rows[LABELS + ref] = encode_checked([commits[at].oid, labels])
    return rows


def write(store: KVStore, copies: Iterable[Copy]) -> Iterator[int]:
    """Write the copies, many in one transaction, and give the number of those that are there so far."""
    done = 0
    for some in batches(copies, _TOGETHER):
        store.set_many(dict(sorted(chain.from_iterable(rows_of(copy).items() for copy in some))))
        done += len(some)
        yield done


def _commits_later(commits: Sequence[Commit], later: int) -> dict[bytes, Commit]:
    """The same commits by the ids of the old ones, later by so many microseconds, or by some more.

    A commit whose id ends in a zero byte would have a row of the commit graph. So they get a time at which
    none has such an id.
    """
    while True:
        made: dict[bytes, Commit] = {}
        for old in commits:
            made[old.oid] = Commit(
                old.root,
                tuple([made[parent].oid for parent in old.parent_ids]),
                old.time + timedelta(microseconds=later),
                old.message,
                old.info,
                order=old.order + later,
            )
        if all(commit.oid[-1] for commit in made.values()):
            return made
        later += 1
