"""Revisions: the text that people type to name a commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import dated, microseconds
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.history import History
from vstate.repo.names.dates import parse_time
from vstate.repo.names.refs import (
    DEFAULT_BRANCH,
    HEAD,
    HEADS,
    REMOTES,
    TAGS,
    Head,
    ReflogEntry,
    Refs,
    absent,
    typed_ref,
)
from vstate.repo.objects import Objects
from vstate.similar import similar

_STEPS = re.compile(r"(?P<base>.*?)(?P<steps>([~^]\d*)*)", re.DOTALL)
_STEP = re.compile(r"([~^])(\d*)")
_HEX = re.compile(r"[0-9a-f]{4,64}")
_FULL_ID = re.compile(r"[0-9a-f]{64}")
_MOVES_OR_TIME = re.compile(r"(?P<name>.*?)@\{(?P<where>.*)\}", re.DOTALL)
_MAX_STEPS = 10**9
_KINDS = {HEADS: "a branch", TAGS: "a tag", REMOTES: "a branch of a remote"}

NAMES_LISTED = "; `vstate branch` and `vstate tag` list the names"
REV_AND_KEY = re.compile(r"((?:@\{[^}]*\}|[^:@]|@(?!\{))*):(.*)", re.DOTALL)
"""`REV:KEY`. A time in braces may have colons."""

_TO = re.compile(r"(?:(?:checkout|switch): to|clone: on) (.+)")
_RENAMED = re.compile(r"branch: renamed to (.+)")

FIRST = "a program makes the first: state['key'] = value; state.commit('begin')"
"""The first step with an empty store."""


class Revisions:
    """Resolves the revisions of one store."""

    def __init__(self, objects: Objects, refs: Refs, history: History) -> None:
        self._objects = objects
        self._refs = refs
        self._history = history

    def resolve(self, rev: str, head: Head) -> ObjectId:
        """The commit that `rev` names: an id of 4 or more digits, a branch, a tag or HEAD, then ~n and ^n.

        - `origin/main` is the last known position of the branch `main` of the remote `origin`.
        - `heads/x`, `tags/x` and `remotes/x` are full names. The name `x` alone is ambiguous if several of
          them exist at different commits. Each of them takes precedence over an abbreviated id.
        - `~n` goes n first parents back, `^n` to the n-th parent.
        - `main@{n}` is the branch's position n moves ago by its reflog, `main@{time}` its position at a
          time of `parse_time`. Before the reflog begins, that is the newest first parent of that time.
        - `HEAD@{…}` and `@{…}` stand for the branch that HEAD is on, or for a detached HEAD itself.

        Raises NotFound with close names, and InvalidInput with the candidates for an ambiguous name.
        """
        if not rev:
            raise InvalidInput("an empty revision; use a commit id, a branch, a tag or HEAD")
        match = _STEPS.fullmatch(rev)
        assert match is not None  # the pattern matches any text
        base = match["base"] or HEAD
        oid = self._by_reflog(base, head) if "@{" in base else self._named(base, head)
        for sign, digits in _STEP.findall(match["steps"]):
            number = int(digits[:10]) if digits else 1
            if sign == "^":
                oid = self._parent(oid, number, rev) if number else oid
                continue
            left = min(number, _MAX_STEPS)
            while left:
                oid, steps = self._history.back(oid, left)
                if not steps:
                    oid, steps = self._parent(oid, 1, rev), 1
                left -= steps
        return oid

    def _parent(self, oid: ObjectId, number: int, rev: str) -> ObjectId:
        (commit,) = self._history.commits([oid])
        parents = self._history.parents(commit)
        if number <= len(parents):
            return parents[number - 1]
        reason = "is the first commit"
        if self._history.is_shallow(commit):
            reason = "is where the history was cut off"
        elif parents:
            reason = f"has {len(parents)} parent{'s' if len(parents) > 1 else ''}"
        raise _not_found(rev, f"{oid.short} {reason}")

    def _named(self, name: str, head: Head) -> ObjectId:
        if name == HEAD:
            if head.commit is None:
                where = f"branch {head.branch!r}" if head.branch else "this store"
                raise NotFound(self._unborn(where), name=name)
            return head.commit
        asked, name = name, typed_ref(name)
        lower = name.lower()
        if _FULL_ID.fullmatch(lower) and (now := self._objects.find_current(ObjectId.parse(lower))):
            return now.oid
        if name.startswith((HEADS, TAGS, REMOTES)) and (oid := self._refs.read(name)) is not None:
            return oid
        full = [prefix + name for prefix in _KINDS]
        named = {
            ref: oid for ref, oid in zip(full, self._refs.read_many(full), strict=True) if oid is not None
        }
        if len(set(named.values())) > 1:
            raise _ambiguous(name, list(named))
        if named:
            return next(iter(named.values()))
        if _HEX.fullmatch(lower):
            found = sorted(self._objects.commit_ids(lower)) or sorted(self._objects.replacements(lower))
            if len(found) > 1:
                raise InvalidInput(
                    f"the commit id {name} is ambiguous: give more digits",
                    candidates=[
                        f"{str(oid)[: len(name) + 6]} {self._objects.commit(oid).message}".rstrip()
                        for oid in found[:10]
                    ],
                )
            if found:
                return found[0]
        if name == head.branch:
            raise NotFound(self._unborn(f"branch {name!r}"), name=name)
        known = [name for kind in (HEADS, TAGS, REMOTES) for name in self._refs.names(kind)]
        known += [HEAD] if head.commit is not None else []
        hint = "; a commit id needs at least 4 digits" if re.fullmatch(r"[0-9a-f]{1,3}", lower) else ""
        if _is_time(name):
            hint, known = f"; for a branch at that time, write {head.branch or 'main'}@{{{name}}}", []
        near = similar(name, known)
        hint = hint or ("" if near else NAMES_LISTED)
        raise NotFound(f"no revision {asked!r}{hint}", name=asked, candidates=near)

    def _unborn(self, where: str) -> str:
        """The message for a branch without a commit."""
        names = self._refs.names(HEADS)
        others = f"the store has {counted(len(names), 'branch')}, such as {names[-1]}" if names else FIRST
        return f"no commit yet on {where}; {others}"

    def _by_reflog(self, base: str, head: Head) -> ObjectId:
        match = _MOVES_OR_TIME.fullmatch(base)
        if match is None or "@{" in match["where"] or not match["where"].strip():
            raise InvalidInput(
                f"{base!r} is not a revision: write main@{{1}} for the branch one move ago, or "
                "main@{2026-11-20 10:00} for the branch at that time; ~n and ^n may follow"
            )
        where = match["where"].strip()
        is_count = where.isascii() and where.isdigit() and len(where) <= 9
        moves_or_time = int(where) if is_count else parse_time(where)
        ref, shown, now = self._logged(match["name"], head)
        moves = self._refs.reflog(ref)
        if isinstance(moves_or_time, int):
            oid = _moves_ago(moves, base, shown, now, moves_or_time)
        else:
            oid = self._at_time(moves, base, shown, now, moves_or_time)
        if self._objects.find_commit(oid) is None:
            raise _not_found(base, f"{oid.short}, where {shown} was, is gone: gc has removed it")
        return oid

    def _logged(self, name: str, head: Head) -> tuple[str, str, ObjectId | None]:
        """The ref whose reflog to read, its name in messages, and its commit."""
        if name in ("", HEAD):
            if head.branch is None:
                return HEAD, HEAD, head.commit
            return HEADS + head.branch, head.branch, head.commit
        asked, name = name, typed_ref(name)
        branch = name.removeprefix(HEADS)
        ref = HEADS + branch
        tracking = REMOTES + name.removeprefix(REMOTES)
        now, tracked = self._refs.read_many([ref, tracking])
        if now is not None and tracked is not None and not name.startswith((HEADS, REMOTES)):
            raise _ambiguous(name, [ref, tracking])  # even at one commit: their reflogs differ
        if tracked is not None and (now is None or name.startswith(REMOTES)):
            return tracking, name.removeprefix(REMOTES), tracked
        # A deleted branch still has its reflog.
        if now is None and next(self._refs.reflog(ref), None) is None:
            if name.startswith(TAGS) or self._refs.read(TAGS + name) is not None:
                raise InvalidInput(f"{name!r} is a tag, which does not move: @{{…}} is for branches and HEAD")
            known = self._refs.names(HEADS)
            raise absent(f"no branch {asked!r}", asked, known, "branch", "vstate branch")
        return ref, branch, now

    def _at_time(
        self,
        moves: Iterator[ReflogEntry],
        base: str,
        shown: str,
        now: ObjectId | None,
        time: datetime,
    ) -> ObjectId:
        clock, wanted = microseconds(datetime.now(UTC)), microseconds(time)
        if now is not None and wanted >= clock:
            return now
        oldest = None
        for move, date in dated(moves, clock):
            if date <= wanted:
                if move.new is None:
                    raise _not_found(base, f"{shown} was nowhere after {move.action!r}")
                return move.new
            oldest = move
        # Before the reflog begins, the times of the commits decide.
        starts = (now,) if oldest is None else (oldest.old, oldest.new)
        start = next(
            (oid for oid in starts if oid is not None and self._objects.find_commit(oid) is not None), None
        )
        if start is None:
            raise _not_found(base, f"no position of {shown} is on record")
        earliest = datetime.max.replace(tzinfo=UTC)
        for first, date in dated(self._history.first_parents(start), clock):
            if date <= wanted:
                return first.oid
            earliest = min(earliest, first.time)
        raise _not_found(base, f"{shown} goes back to {_local(earliest)}")


def _not_found(rev: str, reason: str) -> NotFound:
    return NotFound(f"no revision {rev!r}: {reason}", name=rev)


def _ambiguous(name: str, full: list[str]) -> InvalidInput:
    first, second = (_KINDS[ref.partition("/")[0] + "/"] for ref in full[:2])
    return InvalidInput(f"{name!r} is both {first} and {second}", candidates=full)


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except InvalidInput:
        return False
    return not _HEX.fullmatch(text)


def _moves_ago(
    moves: Iterator[ReflogEntry], base: str, shown: str, now: ObjectId | None, count: int
) -> ObjectId:
    if count == 0 and now is not None:
        return now
    newest = list(islice(moves, count + 1))
    if not newest:
        raise _not_found(base, f"no move of {shown} is on record")
    oldest = newest[-1]
    if len(newest) < count:
        moved = f"{len(newest)} move" + ("" if len(newest) == 1 else "s")
        raise _not_found(base, f"its reflog has {moved} of {shown}, since {_local(oldest.time)}")
    oid, when = (oldest.new, "after") if len(newest) > count else (oldest.old, "before")
    if oid is None:
        raise _not_found(base, f"{shown} was nowhere {when} {oldest.action!r}")
    return oid


def _local(time: datetime) -> str:
    try:
        time = time.astimezone()
    except (OverflowError, ValueError, OSError):
        pass  # the system cannot convert such a year: keep UTC
    return f"{time:%Y-%m-%d %H:%M:%S %z}"


def previous_checkout(refs: Refs) -> str:
    """The branch, or the id of the commit, that HEAD was on before it came to where it is now.

    A branch that was renamed meanwhile has its new name. NotFound if HEAD was nowhere else.
    """
    head = refs.head()
    for line in refs.reflog(HEAD):
        match = _TO.fullmatch(line.action)
        if match is None:
            continue
        name = _name_now(refs, match[1])
        if name == head.branch:
            continue
        # The line of a detached HEAD shows an abbreviated id.
        if line.new is None or name != line.new.short or refs.read(HEADS + name) is not None:
            return name
        if head.branch is not None or line.new != head.commit:
            return str(line.new)
    first = _name_now(refs, DEFAULT_BRANCH)
    if first == head.branch or refs.read(HEADS + first) is None:
        raise NotFound("HEAD was on no other branch or commit before; name one", name="-")
    return first


def _name_now(refs: Refs, branch: str) -> str:
    """The name that a branch has now, after its renames."""
    seen = {branch}
    while refs.read(HEADS + branch) is None:
        last = next(refs.reflog(HEADS + branch), None)
        match = None if last is None else _RENAMED.fullmatch(last.action)
        if match is None or match[1] in seen:
            break
        branch = match[1]
        seen.add(branch)
    return branch
