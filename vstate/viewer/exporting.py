"""Exporting: a part of a history as one page of HTML, for a file or for the output of a notebook."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from html import escape
from itertools import islice, pairwise
from typing import Any, Final

from vstate.display.documents import change_document
from vstate.display.lanes import Lanes
from vstate.errors import InvalidInput, NotFound, VStateError
from vstate.forks import cached_property
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.plural import counted
from vstate.repo.names.refs import shown_ref
from vstate.repo.repository import Repository
from vstate.repo.search.selection import select
from vstate.viewer.comparing import key_changes
from vstate.viewer.listing import refs_by_commit, row_document
from vstate.viewer.page import joined_script, read_static
from vstate.viewer.reading import Reading
from vstate.viewer.values import Values

_MOST_COMMITS: Final = 2000
_MOST_IN_NOTEBOOK: Final = 200
_MOST_CHARACTERS: Final = 40_000_000  # of JSON
_MOST_KEYS: Final = 5000  # of a state
_PARTS: Final = 100  # of a page
_PAGES: Final = 40  # of one value
_PAGES_OF_LIST: Final = 10
_MOST_PICTURE: Final = 1_000_000  # bytes


def export_html(
    repo: Repository,
    rev: str = "HEAD",
    *,
    limit: int = _MOST_COMMITS,
    progress: Callable[[int], None] | None = None,
) -> str:
    """The commits up to `rev`, or those of a range such as main..other, as a page of HTML.

    It holds at most `limit` commits with the changes that they made, and the values that they changed. Long
    values have their first pages. The page runs no script but its own, and loads nothing. InvalidInput if no
    commit is in the range.
    """
    data = _Data(repo, rev, limit, progress).document()
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    style = read_static("style.css")
    scripts = [read_static("vendor/htm-preact.umd.js"), joined_script("file", "main")]
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {' '.join(map(_hash, scripts))}; base-uri 'none'; form-action 'none'"
    )
    first, second = (f"<script>{script}</script>" for script in scripts)
    # No text in the data can end its element, nor begin a comment.
    inside = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    inside = inside.encode("utf-8", "replace").decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>vstate {escape(rev)}</title><style>{style}</style></head><body>"
        '<div id="app"><p class="starting">vstate</p></div>'
        f'<script type="application/json" id="vstate-data">{inside}</script>'
        f"{first}{second}</body></html>\n"
    )


class Window:
    """A part of a history, which a notebook shows as a page in a frame.

    The frame is sandboxed: the page reaches neither the notebook nor the network. `html` is the page as text.
    """

    def __init__(self, repo: Repository, rev: str, *, height: int) -> None:
        self._repo = repo
        self._rev = rev
        self._height = height

    @cached_property
    def html(self) -> str:
        """The page, with the history as it was when this was read first."""
        return export_html(self._repo, self._rev, limit=_MOST_IN_NOTEBOOK)

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" title="vstate {escape(self._rev)}" width="100%" '
            f'height="{self._height}" style="border: 1px solid #8884" srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<the history up to {self._rev}: shown by a notebook; elsewhere, run vstate view>"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Data:
    """The data of a page that is opened from a file, as `static/file.js` reads it."""

    def __init__(
        self, repo: Repository, rev: str, limit: int, progress: Callable[[int], None] | None
    ) -> None:
        self._reading = Reading(repo)
        self._repo = repo = self._reading.shown
        self._values = Values(repo)
        self._progress = progress or (lambda _: None)
        self._left = _MOST_CHARACTERS
        self._numbers: dict[bytes, int] = {}
        self._found: list[dict[str, Any]] = []
        self._pictures: dict[str, dict[str, str]] = {}
        selection = select(repo, [rev])
        self._commits = [*islice((commit for commit, _ in selection.walk()), limit)]
        if not self._commits:
            raise InvalidInput(f"{rev} has no commits to export")

    def document(self) -> dict[str, Any]:
        names = refs_by_commit(self._repo)
        inside = {commit.oid for commit in self._commits}
        lanes = Lanes()
        rows: list[dict[str, Any]] = []
        commits: dict[str, Any] = {}
        for number, commit in enumerate(self._commits, 1):
            self._progress(number)
            parents = self._repo.history.parents(commit)
            placed = lanes.add(commit.oid, [parent for parent in parents if parent in inside])
            refs = names.get(commit.oid, [])
            row = row_document(self._repo, commit, refs, placed) | {"keys": self._changes(commit)}
            if not parents or parents[0] not in inside:
                row["state"] = dict(self._state(commit))
            rows.append(row)
            commits[commit.id] = document = self._reading.described(commit, refs)
            self._left -= len(json.dumps([row["info"], row["message"], document]))
            if self._left <= 0:
                break  # the file has no room for older commits
        for row in rows:
            row["parents"] = [parent for parent in row["parents"] if parent in commits]
        for row, (above, below) in zip(rows[:-1], pairwise(self._commits), strict=False):
            row["idle"] = max(round((above.time - below.time).total_seconds()), 0)
        listed = self._refs(commits)
        return {
            "store": {
                "name": self._repo.store.location.rsplit("/", 1)[-1],
                "write": False,
                "head": {"branch": self._repo.refs.head().branch, "commit": rows[0]["id"]},
                "branches": 0,
            },
            "refs": listed,
            "branches": self._branches(listed["branches"], commits),
            "rows": rows,
            "commits": commits,
            "values": self._found,
            "pictures": self._pictures,
        }

    def _refs(self, commits: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"state": "file", "branches": [], "tags": [], "remotes": []}
        kinds = {"branch": "branches", "tag": "tags", "remote": "remotes"}
        for id, document in commits.items():
            for ref in document["refs"]:
                if ref["kind"] in kinds:
                    found[kinds[ref["kind"]]].append({"name": ref["name"], "commit": id})
        return found

    def _branches(self, refs: list[dict[str, str]], commits: dict[str, Any]) -> dict[str, Any]:
        """The branches, newest first, as `GET /branches` lists them."""
        rows: list[dict[str, Any]] = []
        for ref in refs:
            document = commits[ref["commit"]]
            row = {"rev": ref["name"], "title": shown_ref(ref["name"]), "commits": 0, "all": False}
            rows.append(row | {"time": document["time"], "message": document["message"].partition("\n")[0]})
        return {"summary": counted(len(rows), "branch"), "rows": rows, "more": 0}

    def _changes(self, commit: Commit) -> dict[str, Any]:
        before = next(iter(self._repo.history.before(commit)), None)
        changes = {}
        for key, change in islice(self._repo.changes(commit).items(), _MOST_KEYS):
            document = change_document(change)
            del document["key"]
            data = tree.lookup(self._repo.objects.node, commit.root, key)
            document["value"] = None if data is None else self._number(commit, key, data, before)
            document["diff"] = self._paid(key_changes(self._repo, self._values, before, commit, key))
            changes[key] = document
        return changes

    def _state(self, commit: Commit) -> Iterator[tuple[str, int]]:
        for key, data in islice(tree.scan(self._repo.objects.nodes, commit.root), _MOST_KEYS):
            yield key, self._number(commit, key, data, commit)

    def _number(self, commit: Commit, key: str, data: bytes, before: Commit | None) -> int:
        """The number of the value of an entry; equal values are in the file once.

        The marks in it are those of `commit`, against the commit `before`.
        """
        number = self._numbers.get(data)
        if number is None:
            number = self._numbers[data] = len(self._found)
            entry = self._repo.parse_entry(key, data)
            found: dict[str, Any] = {"type": entry.type, "size": entry.size, "marks": commit.id, "parts": {}}
            self._found.append(found)
            found["parts"] = self._pages(commit, key, number, before)
        return number

    def _pages(self, commit: Commit, key: str, number: int, before: Commit | None) -> dict[str, Any]:
        """The value and the parts inside it, as `GET /value` gives them: some pages at most.

        A page has the name of its path; one that begins at a later item, its path, a newline, and the item.
        """
        pages: dict[str, Any] = {}
        waiting = [("", 0)]
        while waiting and len(pages) < _PAGES and self._left > 0:
            path, first = waiting.pop(0)
            try:
                page = self._values.page(commit, key, path, before=before, first=first, limit=_PARTS)
            except (NotFound, VStateError):
                continue
            for name in ("rev", "key"):
                del page[name]
            page = self._paid(page)
            if first and self._left <= 0:
                break  # the value ends with the page before
            pages[_page_name(path, first)] = page
            following = _following(page)
            if following is not None and sum(name.startswith(f"{path}\n") for name in pages) < _PAGES_OF_LIST:
                waiting.insert(0, (path, following))
            waiting += [(part["path"], 0) for part in page["parts"] if part["count"] and part["path"] != path]
            if (page["view"] or {}).get("picture"):
                self._add_picture(commit, key, path, number)
        for name, page in pages.items():
            following, path = _following(page), name.partition("\n")[0]
            if following is not None and _page_name(path, following) not in pages:
                _end(pages[path], page)
        return pages

    def _add_picture(self, commit: Commit, key: str, path: str, number: int) -> None:
        try:
            media, data = self._values.picture(commit, key, path)
        except VStateError:
            return
        if len(data) <= _MOST_PICTURE and len(data) < self._left:
            url = f"data:{media};base64,{base64.b64encode(data).decode()}"
            self._left -= len(url)
            self._pictures[f"{number} {path}"] = {"url": url}

    def _paid(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, as long as there is room in the file; without its parts after that."""
        self._left -= len(json.dumps(answer))
        if self._left > 0:
            return answer
        nothing: dict[str, Any] = {"details": [], "more": True, "parts": [], "view": None, "next": None}
        return answer | nothing | {"error": "the file had no more room for this part"}


def _page_name(path: str, first: int) -> str:
    return f"{path}\n{first}" if first else path


def _following(page: dict[str, Any]) -> int | None:
    """The item at which the next page begins; None behind the last page."""
    found: int | None = page["next"] if page["next"] is not None else (page["view"] or {}).get("next")
    return found


def _end(head: dict[str, Any], last: dict[str, Any]) -> None:
    """Let a value end with its last page in the file; `head` is its first page."""
    held = last["first"] + _PARTS
    for view in (head["view"], last["view"]):
        view["note"] = "This file holds the beginning of the value."
        for name in ("count", "rows"):
            if name in view and view["kind"] in ("chat", "table"):
                view[name] = held
    last["next"] = None
    if "next" in last["view"]:
        last["view"]["next"] = None
