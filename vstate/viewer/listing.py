"""Listing: the commits of a history as rows, made as far as somebody has looked."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any, Final, NamedTuple

from vstate.display.documents import brief_document
from vstate.display.lanes import MOST_LANES, Lanes, Placed
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.forks import new_lock
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.recent import Recent
from vstate.repo.compare.diff import SIGNS, Diff, counts_by_kind
from vstate.repo.names.refs import HEADS, REMOTES, TAGS
from vstate.repo.repository import Repository
from vstate.repo.rules.signing import PublicKey
from vstate.repo.search.selection import Selection, select
from vstate.repo.sweeps import retry_after_sweep
from vstate.values.preview import preview

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


class _Folding:
    """The rows with runs of alike ones folded, each as the first row and the number of rows of its run.

    A run is there once the row behind it is known. The runs whose first commit is in `opened` stay unfolded.
    """

    def __init__(self, listing: _Listing, opened: frozenset[str]) -> None:
        self._listing = listing
        self._opened = opened
        self._begin = self._at = 0
        """The first row of the run that goes on, and the row to look at next."""
        self.shown: list[tuple[int, int]] = []

    def extend(self) -> None:
        """Fold the rows that were made since."""
        while self._at < len(self._listing.rows):
            if self._at > self._begin and not self._goes_on():
                self._close()
            self._at += 1
        if self._listing.complete:
            self._close()

    def _goes_on(self) -> bool:
        rows, at = self._listing.rows, self._at
        first = rows[self._begin]
        return (
            at - self._begin < _FOLDED
            and rows[at - 1].is_linear
            and rows[at].is_linear
            and rows[at].alike == first.alike
            and rows[at].placed == first.placed
            and rows[at].commit not in self._listing.named
        )

    def _close(self) -> None:
        begin, end = self._begin, self._at
        if end - begin < _FEWEST_FOLDED or str(self._listing.rows[begin].commit) in self._opened:
            self.shown += [(at, 1) for at in range(begin, end)]
        else:
            self.shown.append((begin, end - begin))
        self._begin = end

    def find(self, row: int) -> int | None:
        """The number of the shown row that stands for this row of the listing."""
        at = bisect_right(self.shown, (row, _FOLDED)) - 1
        return at if at >= 0 and row < sum(self.shown[at]) else None


class _Listing:
    """The rows of one selection, as far as they are made. Whoever makes or reads rows holds the lock."""

    def __init__(self, walk: Iterator[_Row | None], named: frozenset[ObjectId]) -> None:
        """`walk` has None for a commit that does not meet the conditions. `named` commits are not folded."""
        self.rows: list[_Row] = []
        self.numbers: dict[ObjectId, int] = {}
        self.named = named
        self.complete = False
        self.lock = new_lock()
        self._walk = walk
        self._foldings = Recent[frozenset[str], _Folding](_KEPT)

    def make(self, is_enough: Callable[[], bool], seconds: float) -> None:
        """Make rows until there are enough, there are no more, or the time is over."""
        end = monotonic() + seconds
        while not (self.complete or is_enough()):
            try:
                row = next(self._walk)
            except StopIteration:
                self.complete = True
                return
            if row is not None:
                self.numbers[row.commit] = len(self.rows)
                self.rows.append(row)
            if monotonic() > end:
                return

    def folding(self, opened: frozenset[str], wanted: int) -> _Folding:
        """The folded rows, `wanted` of them if some tenths of a second suffice."""
        found = self._foldings.setdefault(opened, _Folding(self, opened))

        def is_enough() -> bool:
            found.extend()
            return len(found.shown) >= wanted

        self.make(is_enough, _LONGEST_FOLDING)
        found.extend()
        return found

    def find(self, commit: Commit, folding: _Folding | None) -> int | None:
        """The number of the commit's row, or of its folded row; None if some seconds do not suffice."""

        def is_row() -> bool:
            # A commit's order is above that of its parents, so it has no row below an older one.
            return commit.oid in self.numbers or bool(self.rows and self.rows[-1].order < commit.order)

        def is_folded() -> bool:
            assert folding is not None
            folding.extend()
            return folding.find(self.numbers[commit.oid]) is not None

        self.make(is_row, _LONGEST_SEARCH)
        row = self.numbers.get(commit.oid)
        if row is None or folding is None:
            return row
        self.make(is_folded, _LONGEST_SEARCH)  # until its run has ended
        folding.extend()
        return folding.find(row)


class Listings:
    """The listings of one repository. Threads may share it."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._kept = Recent[str, _Listing](_KEPT)

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

        def page() -> dict[str, Any]:
            name, listing = self._find(query, view)
            rows, stop = listing.rows, first + limit
            try:
                with listing.lock:
                    listing.make(lambda: len(rows) >= stop, _LONGEST_SEARCH)
                    if count:
                        listing.make(lambda: False, _FURTHER)
                    folding = listing.folding(frozenset(opened), stop) if fold else None
                    at = None if find is None else listing.find(find, folding)
                    known = len(rows if folding is None else folding.shown)
                    alone = [(number, 1) for number in range(first, min(stop, known))]
                    shown = alone if folding is None else folding.shown[first:stop]
                    places = [
                        (rows[row], rows[row + size - 1], rows[row + size : row + size + 1], size)
                        for row, size in shown
                    ]
                    answer = {"view": name, "first": first, "known": known, "commits": len(rows)}
                    answer |= {"complete": listing.complete}
                answer |= {"rows": self._documents(places)}
            except Exception:
                # A walk that raised has ended: the list would look complete.
                self._kept.discard(name)
                raise
            return answer if find is None else answer | {"sought": find.id, "found": at}

        if not view:
            return retry_after_sweep(self._repo, page)
        try:
            return page()
        except CorruptObject as error:
            raise Gone(f"a commit of this list is gone: {error}") from error

    def _find(self, query: Query, view: str) -> tuple[str, _Listing]:
        if view:
            found = self._kept.get(view)
            if found is None:
                raise Gone("this list of commits is kept no longer: ask for it anew")
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
        return view, self._kept.setdefault(view, _Listing(self._rows(selection), named))

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
        refs, documents = refs_by_commit(self._repo), []
        for row, last, below, count in places:
            commit = self._repo.history.commits([row.commit])[0]
            document = row_document(self._repo, commit, refs.get(commit.oid, []), row.placed)
            document |= {"edges": last.placed.edges, "span": max(round(row.time - last.time), 0)}
            if count > 1:
                document["folded"] = count
            if below:
                document["idle"] = max(round(last.time - below[0].time), 0)
            documents.append(document)
        return documents


_KINDS: Final = {HEADS: "branch", TAGS: "tag", REMOTES: "remote"}


def refs_by_commit(repo: Repository) -> dict[ObjectId, list[dict[str, Any]]]:
    """The refs on each commit as `{name, kind, current}`, HEAD's branch first."""
    found: dict[ObjectId, list[dict[str, Any]]] = {}
    current = f"{HEADS}{repo.refs.head().branch}"
    for name, oid in repo.refs.all().items():
        prefix = next((prefix for prefix in _KINDS if name.startswith(prefix)), "")
        document = {"name": name.removeprefix(prefix), "kind": _KINDS.get(prefix, "HEAD")}
        found.setdefault(oid, []).append(document | {"current": name == current or not prefix})
    for refs in found.values():
        refs.sort(key=lambda ref: (not ref["current"], ref["kind"], ref["name"]))
    return found


def readable_changes(repo: Repository, commit: Commit) -> tuple[Diff, str]:
    """The changes that a commit made, and the damage that prevents reading them, "" for none."""
    try:
        return repo.changes(commit), ""
    except CorruptObject as error:
        return repo.make_diff(()), str(error)


def row_document(
    repo: Repository, commit: Commit, refs: list[dict[str, Any]], placed: Placed
) -> dict[str, Any]:
    """A commit in a row of its own: its first line, its refs, the keys that it changed, and its lanes."""
    diff, damage = readable_changes(repo, commit)
    info = {name[:_LONGEST_NAME]: _brief(value) for name, value in islice(commit.info.items(), _MOST_INFO)}
    signer = commit.signature.signer if commit.signature is not None else None
    return {
        **brief_document(commit),
        "parents": [*commit.parents],
        "info": info,
        "refs": refs,
        "author": PublicKey(signer).short if signer is not None and len(signer) == 32 else None,
        "events": len(commit.events),
        "changes": {
            **counts_by_kind(diff),
            "names": [[SIGNS[diff[key].kind], key[:_LONGEST_NAME]] for key in islice(diff, _MOST_NAMES)],
        },
        "cut": repo.history.is_shallow(commit),
        "damage": damage,
        "lane": min(placed.lane, MOST_LANES),
        "lanes": min(1 + max([placed.lane, *(max(edge[:2]) for edge in placed.edges)]), MOST_LANES),
        "edges": placed.edges,
        "folded": 0,
        "span": 0,
        "idle": 0,
    }


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else preview(value, width=None, max_depth=2, max_items=5)
    return text[:_LONGEST_NAME]
