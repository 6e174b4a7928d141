"""Listing: the commits of a history as rows, made as far as somebody has looked."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from time import monotonic
from typing import Any, Final, NamedTuple

from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.forks import new_lock
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS, REMOTES, TAGS, Head
from vstate.repo.repository import Repository
from vstate.repo.rules.signing import PublicKey
from vstate.repo.search.selection import Selection, select
from vstate.repo.sweeps import retry_after_sweep
from vstate.values.inert import preview
from vstate.viewer.lanes import MOST_LANES, Lanes, Placed

__all__ = ["Gone", "Listings", "Query"]

_FOLDED: Final = 1000  # commits that one row stands for, at most
_FEWEST_FOLDED: Final = 4
_MOST_OPEN: Final = 200  # folded rows that somebody opened
_MOST_NAMES: Final = 8  # of changed keys, in a row
_LONGEST_NAME: Final = 100
_MOST_INFO: Final = 8
_FURTHER: Final = 0.2  # seconds for rows that nobody has asked for yet
_KEPT: Final = 8  # listings
_LONGEST_SEARCH: Final = 3.0  # seconds
_LONGEST_FOLDING: Final = 0.3  # seconds, in which many commits may become few rows
_DIGITS: Final = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")


class Gone(NotFound):
    """The listing, or a commit in it, is gone: ask for it anew."""


@dataclass(frozen=True)
class Query:
    """The commits of a listing: up to `rev`, or of all refs, that meet the conditions of `vstate log`."""

    rev: str = ""
    all: bool = False
    key: str = ""
    grep: str = ""
    since: str = ""
    until: str = ""
    info: str = ""
    author: str = ""

    def select(self, repo: Repository) -> Selection:
        """The selection, from the refs as they are now. NotFound and InvalidInput for a malformed query."""
        # The text as it is: an expression of a stranger may search for hours.
        patterns = [re.compile(re.escape(self.grep), re.IGNORECASE)] if self.grep else []
        return select(
            repo,
            [self.rev] if self.rev else [],
            all_refs=self.all,
            since=self.since or None,
            until=self.until or None,
            info=[self.info] if self.info else [],
            keys=[self.key] if self.key else [],
            patterns=patterns,
            author=self.author,
        )


class _Row(NamedTuple):
    commit: ObjectId
    placed: Placed
    time: float
    order: int
    is_linear: bool
    """Whether its one parent is all that the row leads to, in its own lane."""
    alike: str
    """Rows with the same text here, one after the other, may be folded."""


@dataclass
class _Listing:
    """The rows of one selection, as far as they are made. One thread at a time makes rows."""

    rows: list[_Row]
    walk: Iterator[_Row | None]
    """None for a commit that does not meet the conditions."""
    named: frozenset[ObjectId]
    """The commits with a ref: they are not folded."""
    complete: bool = False
    lock: RLock = field(default_factory=new_lock)
    foldings: OrderedDict[frozenset[str], _Folding] = field(default_factory=OrderedDict)

    def extend(self, wanted: int, seconds: float = 0.0) -> None:
        """Make the rows up to `wanted`, as far as some seconds suffice, and then more for so many seconds."""
        begun = monotonic()
        while not self.complete and (seconds or len(self.rows) < wanted):
            self._step()
            limit = _LONGEST_SEARCH if len(self.rows) < wanted else seconds
            if monotonic() - begun > limit:
                return

    def _step(self) -> None:
        """Look at the next commit, which may have no row."""
        try:
            row = next(self.walk)
        except StopIteration:
            self.complete = True
            return
        if row is not None:
            self.rows.append(row)

    def folded(self, opened: frozenset[str], wanted: int) -> _Folding:
        """The rows with runs of alike ones folded, `wanted` of them if some tenths of a second suffice."""
        folding = self.foldings.setdefault(opened, _Folding())
        self.foldings.move_to_end(opened)
        while len(self.foldings) > _KEPT:
            self.foldings.popitem(last=False)
        folding.extend(self, opened)
        end = monotonic() + _LONGEST_FOLDING
        while not self.complete and len(folding.shown) < wanted and monotonic() < end:
            self.extend(len(self.rows) + wanted)
            folding.extend(self, opened)
        return folding

    def find(self, commit: Commit) -> int | None:
        """The number of the commit's row; None if it has none, or none so far after some seconds."""
        end = monotonic() + _LONGEST_SEARCH
        seen = 0
        while True:
            for number in range(seen, len(self.rows)):
                if self.rows[number].commit == commit.oid:
                    return number
            # A commit's order is above that of its parents, so it has no row below an older one.
            older = bool(self.rows) and self.rows[-1].order < commit.order
            if self.complete or older or monotonic() > end:
                return None
            seen = len(self.rows)
            self.extend(seen + 1)


@dataclass
class _Folding:
    """The rows that are shown, as the first one and the number of rows for each; made as far as is known."""

    shown: list[tuple[int, int]] = field(default_factory=list)
    next: int = 0

    def extend(self, listing: _Listing, opened: frozenset[str]) -> None:
        rows = listing.rows
        while self.next < len(rows):
            stop = self._end(rows, listing.named)
            if stop == len(rows) and not listing.complete and stop - self.next < _FOLDED:
                return  # the run may go on
            if stop - self.next < _FEWEST_FOLDED or str(rows[self.next].commit) in opened:
                self.shown += [(at, 1) for at in range(self.next, stop)]
            else:
                self.shown.append((self.next, stop - self.next))
            self.next = stop

    def find(self, row: int) -> int | None:
        """The number of the shown row that stands for this row of the listing."""
        at = bisect_right(self.shown, (row, _FOLDED)) - 1
        return at if at >= 0 and row < sum(self.shown[at]) else None

    def _end(self, rows: Sequence[_Row], named: frozenset[ObjectId]) -> int:
        """The end of the run of alike rows that begins at `next`."""
        first = rows[self.next]
        stop = self.next + 1
        while (
            stop < len(rows)
            and stop - self.next < _FOLDED
            and rows[stop - 1].is_linear
            and rows[stop].is_linear
            and rows[stop].alike == first.alike
            and rows[stop].placed == first.placed
            and rows[stop].commit not in named
        ):
            stop += 1
        return stop


class Listings:
    """The listings of one repository. Threads may share it."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._lock = new_lock()
        self._kept: OrderedDict[str, _Listing] = OrderedDict()

    def page(
        self,
        query: Query,
        *,
        view: str = "",
        fold: bool = False,
        opened: Sequence[str] = (),
        find: Commit | None = None,
        count: bool = False,
        first: int,
        limit: int,
    ) -> dict[str, Any]:
        """The rows [first, first + limit), as `GET /commits` gives them.

        `view` names a listing that an earlier page came from. Raises Gone if it is kept no longer. With
        `find`, `found` is the number of the row of this commit, None if the commit is not among the rows
        that can be made in some seconds.
        """
        if len(opened) > _MOST_OPEN:
            raise InvalidInput(f"open has {len(opened)} ids; at most {_MOST_OPEN} are possible")
        make = partial(self._page, query, view, fold, frozenset(opened), find, count, first, limit)
        if not view:
            return retry_after_sweep(self._repo, make)
        try:
            return make()
        except CorruptObject as error:
            raise Gone(f"a commit of this list is gone: {error}") from error

    def _page(
        self,
        query: Query,
        view: str,
        fold: bool,
        opened: frozenset[str],
        find: Commit | None,
        count: bool,
        first: int,
        limit: int,
    ) -> dict[str, Any]:
        view, listing = self._find(query, view)
        try:
            with listing.lock:
                listing.extend(first + limit, _FURTHER if count else 0.0)
                at = None if find is None else listing.find(find)
                if fold:
                    shown = listing.folded(opened, first + limit)
                    at = None if at is None else self._shown_at(listing, shown, opened, at)
                    known, page = len(shown.shown), shown.shown[first : first + limit]
                else:
                    known = len(listing.rows)
                    page = [(number, 1) for number in range(first, min(first + limit, known))]
                rows, complete = listing.rows, listing.complete
                places = [
                    (rows[at], rows[at + count - 1], rows[at + count : at + count + 1], count)
                    for at, count in page
                ]
            documents = self._documents(places)
        except Exception:
            # A walk that raised has ended: the list would look complete.
            with self._lock:
                self._kept.pop(view, None)
            raise
        answer = {
            "view": view,
            "rows": documents,
            "first": first,
            "known": known,
            "commits": len(rows),
            "complete": complete,
        }
        return answer if find is None else answer | {"sought": find.id, "found": at}

    def _shown_at(self, listing: _Listing, shown: _Folding, opened: frozenset[str], row: int) -> int | None:
        """The number of the shown row for this one, once its run has ended, if some seconds suffice."""
        end = monotonic() + _LONGEST_SEARCH
        while shown.find(row) is None and not listing.complete and monotonic() < end:
            listing.extend(len(listing.rows) + _FOLDED)
            shown.extend(listing, opened)
        return shown.find(row)

    def _find(self, query: Query, view: str) -> tuple[str, _Listing]:
        if view:
            with self._lock:
                found = self._kept.get(view)
                if found is None:
                    raise Gone("this list of commits is kept no longer: ask for it anew")
                self._kept.move_to_end(view)
            return view, found
        try:
            selection = query.select(self._repo)
        except NotFound:
            if query.rev or self._repo.refs.all():
                raise
            selection = Selection(self._repo, ())  # a store without commits
        named = frozenset(self._repo.refs.all().values())
        what = (query, selection.since, selection.until, selection.starts, sorted(named))
        view = hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()
        listing = _Listing([], self._rows(selection), named)
        with self._lock:
            found = self._kept.setdefault(view, listing)
            self._kept.move_to_end(view)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return view, found

    def _rows(self, selection: Selection) -> Iterator[_Row | None]:
        lanes, history = Lanes(), self._repo.history
        for commit, is_shown in selection.walk():
            if not is_shown:
                yield None
                continue
            parents = history.parents(commit)
            if selection.is_partial:
                placed = Placed(0, ())  # its parents may be left out
            else:
                placed = lanes.add(commit.oid, parents)
            is_linear = len(parents) == 1 and all(low == high for low, high, _ in placed.edges)
            alike = _DIGITS.sub("#", commit.subject)
            yield _Row(commit.oid, placed, commit.time.timestamp(), commit.order, is_linear, alike)

    def _documents(self, places: Sequence[tuple[_Row, _Row, Sequence[_Row], int]]) -> list[dict[str, Any]]:
        refs, head = refs_by_commit(self._repo), self._repo.refs.head()
        documents = []
        for row, last, below, count in places:
            commit = self._repo.history.commits([row.commit])[0]
            document = row_document(self._repo, commit, ref_documents(refs.get(commit.oid, ()), head))
            lanes = 1 + max([row.placed.lane, *(max(edge[:2]) for edge in row.placed.edges)])
            documents.append(
                document
                | {
                    "lane": min(row.placed.lane, MOST_LANES),
                    "edges": last.placed.edges,
                    "lanes": min(lanes, MOST_LANES),
                    "folded": count if count > 1 else 0,
                    "span": max(round(row.time - last.time), 0),
                    "idle": max(round(last.time - below[0].time), 0) if below else 0,
                }
            )
        return documents


def refs_by_commit(repo: Repository) -> dict[ObjectId, list[str]]:
    """The full names of the refs on each commit."""
    found: dict[ObjectId, list[str]] = {}
    for name, oid in repo.refs.all().items():
        found.setdefault(oid, []).append(name)
    return found


_KINDS: Final = {HEADS: "branch", TAGS: "tag", REMOTES: "remote"}


def ref_documents(names: Sequence[str], head: Head) -> list[dict[str, Any]]:
    """Refs by their full names as `{name, kind, current}`, HEAD's branch first."""
    found = []
    for name in names:
        prefix = next((prefix for prefix in _KINDS if name.startswith(prefix)), "")
        is_current = prefix == HEADS and name == f"{HEADS}{head.branch}"
        found.append(
            {
                "name": name.removeprefix(prefix),
                "kind": _KINDS.get(prefix, "HEAD"),
                "current": is_current or not prefix,
            }
        )
    return sorted(found, key=lambda ref: (not ref["current"], ref["kind"], ref["name"]))


def row_document(repo: Repository, commit: Commit, refs: list[dict[str, Any]]) -> dict[str, Any]:
    """A commit in one row: its first line, its refs and the keys that it changed."""
    damage = ""
    try:
        diff = repo.changes(commit)
    except CorruptObject as error:
        diff, damage = repo.make_diff(()), str(error)
    signs = {"added": "+", "modified": "~", "removed": "-"}
    names = [
        [signs[diff[key].kind], key[:_LONGEST_NAME]] for key, _ in zip(diff, range(_MOST_NAMES), strict=False)
    ]
    signer = commit.signature.signer if commit.signature is not None else None
    return {
        "id": commit.id,
        "short": commit.short,
        "parents": [*commit.parents],
        "time": commit.time.isoformat(),
        "message": commit.subject,
        "info": {
            name[:_LONGEST_NAME]: _brief(value) for name, value in list(commit.info.items())[:_MOST_INFO]
        },
        "refs": refs,
        "author": PublicKey(signer).short if signer is not None and len(signer) == 32 else None,
        "events": len(commit.events),
        "changes": {
            "added": len(diff.added),
            "modified": len(diff.modified),
            "removed": len(diff.removed),
            "names": names,
        },
        "cut": repo.history.is_shallow(commit),
        "damage": damage,
    }


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else preview(value, width=None, max_depth=2, max_items=5)
    return text[:_LONGEST_NAME]
