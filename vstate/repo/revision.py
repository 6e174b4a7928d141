"""Revisions: what people type to name a commit."""

from __future__ import annotations

import re
from difflib import get_close_matches

from vstate.errors import InvalidInput, NotFound
from vstate.objects.ids import ObjectId
from vstate.repo.history import History
from vstate.repo.objects import Objects
from vstate.repo.refs import HEAD, HEADS, TAGS, Head, Refs

_STEPS = re.compile(r"(?P<base>.*?)(?P<steps>([~^]\d*)*)", re.DOTALL)
_STEP = re.compile(r"([~^])(\d*)")
_HEX = re.compile(r"[0-9a-f]{4,63}")
_FULL_ID = re.compile(r"[0-9a-f]{64}")
_MAX_STEPS = 10**9


def resolve(objects: Objects, refs: Refs, history: History, rev: str, head: Head) -> ObjectId:
    """The commit that `rev` names: an id of 4 or more digits, a branch, a tag or HEAD, then ~n and ^n.

    `~n` goes n first parents back, `^n` to the n-th parent. Raises NotFound with close names, and
    InvalidInput with the candidates for an ambiguous name.
    """
    match = _STEPS.fullmatch(rev)
    assert match is not None  # the pattern takes any text
    oid = _base(objects, refs, match["base"] or HEAD, head) if rev else None
    if oid is None:
        raise InvalidInput("an empty revision; use a commit id, a branch, a tag or HEAD")
    for sign, digits in _STEP.findall(match["steps"]):
        number = int(digits[:10]) if digits else 1
        for _ in range(min(number, _MAX_STEPS) if sign == "~" else 1):
            commit = objects.commit(oid)
            parents = history.parents(commit)
            which = 0 if sign == "~" else number - 1
            if sign == "^" and number == 0:
                break
            if which >= len(parents):
                what = f"has {len(parents)} parents" if parents else "is the first commit"
                if history.is_shallow(commit):
                    what = "is where gc cut the history off"
                raise NotFound(f"no revision {rev!r}: {oid.short} {what}", name=rev)
            oid = parents[which]
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
    if name.startswith((HEADS, TAGS)) and (oid := refs.read(name)) is not None:
        return oid
    branch, tag = refs.read(HEADS + name), refs.read(TAGS + name)
    if branch is not None and tag is not None and branch != tag:
        raise InvalidInput(f"{name!r} is both a branch and a tag", candidates=[HEADS + name, TAGS + name])
    if branch is not None or tag is not None:
        return branch or tag  # type: ignore[return-value]  # one of them is an id
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
    known = [*refs.list(HEADS), *refs.list(TAGS), HEAD]
    hint = "; a commit id needs at least 4 digits" if re.fullmatch(r"[0-9a-f]{1,3}", lower) else ""
    raise NotFound(
        f"no revision {name!r}{hint}",
        name=name,
        candidates=get_close_matches(name, known, cutoff=0.5) or known[:5],
    )
