"""Selection: the commits of a log, by revisions, ranges and conditions."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from vstate.errors import NotFound
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import ObjectId
from vstate.repo.core import Core
from vstate.repo.names.dates import parse_time
from vstate.repo.names.refs import HEAD, REMOTES, TAGS
from vstate.repo.rules.signing import signer_of
from vstate.repo.search.texts import moves_text

RANGE: Final = re.compile(
    r"(?P<a>(?:@\{[^}]*\}|[^.@]|\.(?!\.)|@(?!\{))*)(?P<dots>\.{2,3})(?P<b>.*)", re.DOTALL
)
"""A range. A time in braces may hold dots."""


@dataclass(frozen=True)
class Selection:
    """The commits up to `starts` that `excluded` do not reach, and that meet the conditions; newest first."""

    repo: Core
    starts: tuple[ObjectId, ...]
    excluded: tuple[ObjectId, ...] = ()
    keys: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    patterns: Sequence[re.Pattern[str]] = ()
    info: Sequence[tuple[str, str | None]] = ()
    author: str = ""
    """The beginning of the key of the signature, as text; "" for any commit."""
    text: str = ""
    """A text that the commit brought into a value or a key, or took out; "" for any commit."""
    first_parent: bool = False
    limit: int | None = None
    branches: bool = False
    """Whether the walk begins at all branches too."""
    walked: list[Commit] | None = field(default=None)
    """If it is a list, it gets all commits that the walk meets, shown or not."""

    @property
    def is_partial(self) -> bool:
        """Whether commits between the shown ones, or their ancestors, may be left out."""
        return bool(
            self.excluded
            or self.keys
            or self.since
            or self.until
            or self.patterns
            or self.info
            or self.author
            or self.text
        )

    def walk(self) -> Iterator[tuple[Commit, bool]]:
        """The commits of the walk, and whether each is shown; with no regard to `limit`."""
        since = None if self.since is None else microseconds(self.since)
        is_partial = self.is_partial
        heads = (commit for _, commit in self.repo.newest_branches()) if self.branches else ()
        walk = self.repo.history.outside
        for commit in walk(self.starts, self.excluded, first_parent=self.first_parent, heads=heads):
            # The walk goes back in order, and no time is later than its order.
            if since is not None and commit.order < since:
                return
            if self.walked is not None:
                self.walked.append(commit)
            yield commit, not is_partial or self._is_shown(commit)

    def _is_shown(self, commit: Commit) -> bool:
        info = [(name, _text(value)) for name, value in commit.info.items()]
        texts = [commit.message, *(f"{name}{sign}{value}" for name, value in info for sign in ":=")]
        return (
            (self.since is None or commit.time >= self.since)
            and (self.until is None or commit.time <= self.until)
            and (
                not self.patterns or any(pattern.search(text) for pattern in self.patterns for text in texts)
            )
            and all(_has(commit.info, *wanted) for wanted in self.info)
            and (not self.author or str(signer_of(commit) or "").startswith(self.author))
            and (not self.keys or any(self._changes_key(commit, key) for key in self.keys))
            and (not self.text or moves_text(self.repo, commit, self.text))
        )

    def _changes_key(self, commit: Commit, key: str) -> bool:
        return self.repo.history.changes_key(commit, key, first_parent=self.first_parent)


def _has(info: Any, name: str, text: str | None) -> bool:
    """Whether a commit's info has an item, with this value as text or as JSON."""
    if name not in info:
        return False
    value = info[name]
    return text is None or str(value) == text or (not isinstance(value, str) and _json(value) == text)


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value) or str(value)


def _json(value: object) -> str | None:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


def select(
    repo: Core,
    revs: Sequence[str],
    *,
    all_refs: bool = False,
    since: str | None = None,
    until: str | None = None,
    info: Sequence[str] = (),
    **conditions: Any,
) -> Selection:
    """The selection of these words. NotFound and InvalidInput for a bad revision or time."""
    starts: list[ObjectId] = []
    excluded: list[ObjectId] = []
    for word in revs:
        if (match := RANGE.fullmatch(word)) is not None:
            a, b = _resolve(repo, match["a"] or HEAD), _resolve(repo, match["b"] or HEAD)
            starts.append(b)
            if match["dots"] == "...":
                starts.append(a)
                excluded += repo.history.merge_bases(a, b)
            else:
                excluded.append(a)
        elif word.startswith("^"):
            excluded.append(_resolve(repo, word[1:]))
        else:
            starts.append(_resolve(repo, word))
    head = repo.refs.head().commit if all_refs or not starts else None
    # With HEAD on a branch without a commit, as adapters leave it: of all refs.
    if all_refs or (head is None and not starts):
        others = [*repo.refs.list(TAGS).values(), *repo.refs.list(REMOTES).values()]
        all_refs = all_refs or bool(others) or any(True for _ in repo.newest_branches())
        starts += [*others, head] if head is not None else others
    if not (all_refs or starts):
        starts.append(_resolve(repo, HEAD))
    return Selection(
        repo,
        tuple(dict.fromkeys(starts)),
        tuple(excluded),
        branches=all_refs,
        since=None if since is None else parse_time(since),
        until=None if until is None else parse_time(until),
        info=[_item(text) for text in info],
        **conditions,
    )


def _resolve(repo: Core, rev: str) -> ObjectId:
    try:
        return repo.resolve(rev).oid
    except NotFound:
        head = repo.refs.head().commit
        if head is None or repo.entry(repo.objects.commit(head).root, rev) is None:
            raise
        hint = f"it is a key of HEAD: vstate log -- {shlex.quote(rev)}"
        raise NotFound(f"no revision {rev!r}; {hint}", name=rev) from None


def _item(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def links(
    walked: Sequence[Commit], shown: set[ObjectId], parents: Callable[[Commit], Sequence[ObjectId]]
) -> dict[ObjectId, list[ObjectId]]:
    """For each shown commit of a walk, its nearest ancestors that are shown too."""
    nearest: dict[ObjectId, list[ObjectId]] = {}
    found = {}
    for commit in reversed(walked):  # parents before their children
        above = dict.fromkeys(near for parent in parents(commit) for near in nearest.get(parent, ()))
        if commit.oid in shown:
            found[commit.oid] = [*above]
            nearest[commit.oid] = [commit.oid]
        else:
            nearest[commit.oid] = [*above]
    return found
