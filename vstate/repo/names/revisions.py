"""Revisions: the text that people type to name a commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from vstate.errors import InvalidInput, NotFound
from vstate.objects.ids import ObjectId
from vstate.repo.history import History
from vstate.repo.names.dates import parse_time
from vstate.repo.names.refs import HEAD, HEADS, REMOTES, TAGS, Head, ReflogEntry, Refs
from vstate.repo.objects import Objects

_STEPS = re.compile(r"(?P<base>.*?)(?P<steps>([~^]\d*)*)", re.DOTALL)
_STEP = re.compile(r"([~^])(\d*)")
_HEX = re.compile(r"[0-9a-f]{4,63}")
_FULL_ID = re.compile(r"[0-9a-f]{64}")
_MOVES_OR_TIME = re.compile(r"(?P<name>.*?)@\{(?P<where>.*)\}", re.DOTALL)
_MAX_STEPS = 10**9
_KINDS = {HEADS: "a branch", TAGS: "a tag", REMOTES: "a branch of a remote"}


def resolve(objects: Objects, refs: Refs, history: History, rev: str, head: Head) -> ObjectId:
    """The commit that `rev` names: an id of 4 or more digits, a branch, a tag or HEAD, then ~n and ^n.

    - `origin/main` is the last known position of the branch `main` of the remote `origin`.
    - `heads/x`, `tags/x` and `remotes/x` are full names. The name `x` alone is ambiguous if several of them
      exist at different commits. Each of them takes precedence over an abbreviated id.
    - `~n` goes n first parents back, `^n` to the n-th parent.
    - `main@{n}` is the branch's position n moves ago by its reflog, `main@{time}` its position at a time of
      `parse_time`. Before the reflog begins, that is the newest first parent of that time.
    - `HEAD@{…}` and `@{…}` stand for the branch that HEAD is on, or for a detached HEAD itself.

    Raises NotFound with close names, and InvalidInput with the candidates for an ambiguous name.
    """
    match = _STEPS.fullmatch(rev)
    assert match is not None  # the pattern matches any text
    base = match["base"] or HEAD
    oid = None
    if "@{" in base:
        oid = _by_reflog(objects, refs, history, base, head)
    elif rev:
        oid = _base(objects, refs, base, head)
    if oid is None:
        raise InvalidInput("an empty revision; use a commit id, a branch, a tag or HEAD")
    for sign, digits in _STEP.findall(match["steps"]):
        number = int(digits[:10]) if digits else 1
        for _ in range(min(number, _MAX_STEPS) if sign == "~" else 1):
            commit = objects.commit(oid)
            parents = history.parents(commit)
            index = 0 if sign == "~" else number - 1
            if sign == "^" and number == 0:
                break
            if index >= len(parents):
                reason = "is the first commit"
                if history.is_shallow(commit):
                    reason = "is where the history was cut off"
                elif parents:
                    reason = f"has {len(parents)} parent{'s' if len(parents) > 1 else ''}"
                raise NotFound(f"no revision {rev!r}: {oid.short} {reason}", name=rev)
            oid = parents[index]
    return oid


def _base(objects: Objects, refs: Refs, name: str, head: Head) -> ObjectId:
    if name == HEAD:
        if head.commit is None:
            where = f"branch {head.branch!r}" if head.branch else "this store"
            raise NotFound(f"no commit yet on {where}", name=name)
        return head.commit
    lower = name.lower()
    if _FULL_ID.fullmatch(lower) and objects.find_commit(ObjectId.parse(lower)) is not None:
        return ObjectId.parse(lower)
    if name.startswith((HEADS, TAGS, REMOTES)) and (oid := refs.read(name)) is not None:
        return oid
    full = [prefix + name for prefix in _KINDS]
    named = {ref: oid for ref, oid in zip(full, refs.read_many(full), strict=True) if oid is not None}
    if len(set(named.values())) > 1:
        raise _ambiguous(name, list(named))
    if named:
        return next(iter(named.values()))
    if _HEX.fullmatch(lower):
        found = sorted(objects.commit_ids(lower))
        if len(found) > 1:
            raise InvalidInput(
                f"the commit id {name} is ambiguous: give more digits",
                candidates=[
                    f"{str(oid)[: len(name) + 6]} {objects.commit(oid).message}".rstrip()
                    for oid in found[:10]
                ],
            )
        if found:
            return found[0]
    known = [*refs.list(HEADS), *refs.list(TAGS), *refs.list(REMOTES), HEAD]
    hint = "; a commit id needs at least 4 digits" if re.fullmatch(r"[0-9a-f]{1,3}", lower) else ""
    raise NotFound(
        f"no revision {name!r}{hint}",
        name=name,
        candidates=_candidates(name, known),
    )


def _candidates(name: str, known: list[str]) -> list[str]:
    from difflib import get_close_matches  # late, for a quick `import vstate`

    return get_close_matches(name, known, cutoff=0.5) or known[:5]


def _ambiguous(name: str, full: list[str]) -> InvalidInput:
    first, second = (_KINDS[ref.partition("/")[0] + "/"] for ref in full[:2])
    return InvalidInput(f"{name!r} is both {first} and {second}", candidates=full)


# By the reflog


def _by_reflog(objects: Objects, refs: Refs, history: History, base: str, head: Head) -> ObjectId:
    match = _MOVES_OR_TIME.fullmatch(base)
    if match is None or "@{" in match["where"] or not match["where"].strip():
        raise InvalidInput(
            f"{base!r} is not a revision: where a branch was is main@{{1}}, one move ago, or "
            "main@{2026-11-20 10:00}, at that time, with ~n and ^n behind it"
        )
    name, where = match["name"], match["where"].strip()
    count = int(where) if where.isascii() and where.isdigit() and len(where) <= 9 else None
    time = parse_time(where) if count is None else None
    ref, shown, now = _logged(refs, name, head)
    if count is not None:
        oid = _moves_ago(refs.reflog(ref), base, shown, now, count)
    else:
        assert time is not None
        oid = _at_time(refs.reflog(ref), objects, history, base, shown, now, time)
    if objects.find_commit(oid) is None:
        raise NotFound(
            f"no revision {base!r}: {oid.short}, where {shown} was, is gone: gc has removed it", name=base
        )
    return oid


def _logged(refs: Refs, name: str, head: Head) -> tuple[str, str, ObjectId | None]:
    """The ref whose reflog to read, its name in messages, and its commit."""
    if name in ("", HEAD):
        if head.branch is None:
            return HEAD, HEAD, head.commit
        return HEADS + head.branch, head.branch, head.commit
    branch = name.removeprefix(HEADS)
    ref = HEADS + branch
    tracking = REMOTES + name.removeprefix(REMOTES)
    now, tracked = refs.read_many([ref, tracking])
    if now is not None and tracked is not None and not name.startswith((HEADS, REMOTES)):
        raise _ambiguous(name, [ref, tracking])  # even at one commit: their reflogs differ
    if tracked is not None and (now is None or name.startswith(REMOTES)):
        return tracking, name.removeprefix(REMOTES), tracked
    # A deleted branch still has its reflog.
    if now is None and next(refs.reflog(ref), None) is None:
        if name.startswith(TAGS) or refs.read(TAGS + name) is not None:
            raise InvalidInput(f"{name!r} is a tag, which does not move: @{{…}} is for branches and HEAD")
        known = list(refs.list(HEADS))
        raise NotFound(
            f"no branch {name!r}",
            name=name,
            candidates=_candidates(name, known),
        )
    return ref, branch, now


def _moves_ago(
    moves: Iterator[ReflogEntry], base: str, shown: str, now: ObjectId | None, count: int
) -> ObjectId:
    if count == 0 and now is not None:
        return now
    newest = list(islice(moves, count + 1))
    if not newest:
        raise NotFound(f"no revision {base!r}: no move of {shown} is on record", name=base)
    oldest = newest[-1]
    if len(newest) < count:
        moved = f"{len(newest)} move" + ("" if len(newest) == 1 else "s")
        raise NotFound(
            f"no revision {base!r}: its reflog has {moved} of {shown}, since {_local(oldest.time)}", name=base
        )
    oid, when = (oldest.new, "after") if len(newest) > count else (oldest.old, "before")
    if oid is None:
        raise NotFound(f"no revision {base!r}: {shown} was nowhere {when} {oldest.action!r}", name=base)
    return oid


def _at_time(
    moves: Iterator[ReflogEntry],
    objects: Objects,
    history: History,
    base: str,
    shown: str,
    now: ObjectId | None,
    time: datetime,
) -> ObjectId:
    oldest = None
    for move in moves:
        if move.time <= time:
            if move.new is None:
                raise NotFound(f"no revision {base!r}: {shown} was nowhere after {move.action!r}", name=base)
            return move.new
        oldest = move
    # Before the reflog begins, the times of the commits decide.
    starts = (now,) if oldest is None else (oldest.old, oldest.new)
    start = next((oid for oid in starts if oid is not None and objects.find_commit(oid) is not None), None)
    if start is None:
        raise NotFound(f"no revision {base!r}: no position of {shown} is on record", name=base)
    first = None
    for first in history.first_parents(start):
        if first.time <= time:
            return first.oid
    assert first is not None
    raise NotFound(f"no revision {base!r}: {shown} goes back to {_local(first.time)}", name=base)


def _local(time: datetime) -> str:
    try:
        time = time.astimezone()
    except (OverflowError, ValueError, OSError):
        pass  # the system cannot convert such a year: keep UTC
    return f"{time:%Y-%m-%d %H:%M:%S %z}"
