"""Reading: the answers about the refs, commits, keys, values and changes of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from vstate.display import branches
from vstate.display.documents import change_document, commit_document, event_documents
from vstate.errors import InvalidInput, VStateError
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.readers.shown import Shown
from vstate.repo.names.refs import HEADS, REMOTES, TAGS, typed_ref
from vstate.repo.repository import Repository
from vstate.repo.rules.policies import OURS, THEIRS
from vstate.repo.search.texts import find_text
from vstate.viewer.changing import Changing
from vstate.viewer.comparing import change_page, key_changes
from vstate.viewer.health import health, signature
from vstate.viewer.keys import key_page
from vstate.viewer.life import blame_document, versions
from vstate.viewer.listing import Listings, Query, readable_changes, refs_by_commit
from vstate.viewer.parameters import Parameters
from vstate.viewer.values import Values

Answer = dict[str, Any]

_MOST_CHANGES: Final = 1000  # of a commit
_MOST_BRANCHES: Final = 50
_MOST_REFS: Final = 5000  # of each kind
_MOST_PLACES: Final = 500
_MOST_INSIDE: Final = 20  # places in one value
_SEARCH_SECONDS: Final = 5.0


_ANSWERS: Final = (
    "store", "refs", "branches", "commits", "keys", "value", "diff", "history", "blame", "search", "health",
    "merge",
)  # fmt: skip
_CONDITIONS: Final = ("key", "grep", "since", "until", "info", "author")


class Reading:
    """The answers to GET. Each method takes the parameters of a request; threads may share it."""

    def __init__(self, repo: Repository, *, write: bool = False) -> None:
        self.shown = self._repo = Shown(repo)
        self._stored = repo
        self._write = write
        self._listings = Listings(self._repo)
        self.values = Values(self._repo)

    @property
    def answers(self) -> dict[str, Callable[[Parameters], Answer]]:
        """The method for each path below /api/v1."""
        return {f"/{name}": getattr(self, name) for name in _ANSWERS}

    def store(self, _: Parameters) -> Answer:
        """The store: its name, HEAD, and whether the viewer may change it."""
        return {
            "name": self._repo.store.location,
            "write": self._write,
            "head": self._head(),
            "branches": len(self._repo.refs.names(HEADS)),
        }

    def refs(self, _: Parameters) -> Answer:
        """All branches, tags and remote branches with their commits."""
        found: Answer = {"state": refs_state(self._repo), "head": self._head()}
        for name, prefix in (("branches", HEADS), ("tags", TAGS), ("remotes", REMOTES)):
            listed = islice(self._repo.refs.list(prefix).items(), _MOST_REFS)
            found[name] = [{"name": ref, "commit": str(oid)} for ref, oid in listed]
        return found

    def _head(self) -> Answer:
        head = self._repo.refs.head()
        return {"branch": head.branch, "commit": None if head.commit is None else str(head.commit)}

    def branches(self, given: Parameters) -> Answer:
        """The branches with the newest commits, of those with a text in their names."""
        repo = self._repo
        found, every = branches.newest(repo, _MOST_BRANCHES, containing=given.text("text"))
        shared = {*repo.refs.names(TAGS), *repo.refs.names(REMOTES)}
        rows = []
        for each in found:
            count = each.count(repo)
            rows.append(
                {
                    "rev": HEADS + each.name if each.name in shared else each.name,
                    "title": each.title,
                    "commits": count,
                    "all": count < branches.MOST_COUNTED,
                    "time": each.commit.time.isoformat(),
                    "message": each.commit.subject,
                }
            )
        return {"summary": branches.summary(every), "rows": rows, "more": len(every) - len(rows)}

    def commits(self, given: Parameters) -> Answer:
        """A page of the list of commits."""
        texts = {name: given.text(name) for name in _CONDITIONS}
        query = Query(rev=given.text("rev"), all=given.flag("all"), **texts)
        first, limit = given.page(200)
        opened = [each for each in given.text("open").split(",") if each]
        return self._listings.page(
            query,
            view=given.text("view"),
            fold=given.flag("fold"),
            opened=opened,
            find=given.known("find"),
            count=given.flag("count"),
            first=first,
            limit=limit,
        )

    def commit(self, rev: str) -> Answer:
        """One commit with its events, its signature and the keys that it changed."""
        commit = self._repo.resolve(rev)
        return self.described(commit, refs_by_commit(self._repo).get(commit.oid, []))

    def described(self, commit: Commit, refs: list[Answer]) -> Answer:
        """The answer about a commit with these refs."""
        repo = self._repo
        diff, damage = readable_changes(repo, commit)
        document = commit_document(commit, shallow=repo.history.is_shallow(commit))
        return document | {
            "parents": list(map(str, repo.history.parents(commit))),  # those that can be shown
            "short": commit.short,
            "refs": refs,
            "events": event_documents(commit),
            "signature": signature(commit),
            "changes": [change_document(change) for change in islice(diff.values(), _MOST_CHANGES)],
            "more": max(len(diff) - _MOST_CHANGES, 0),
            "damage": damage,
        }

    def keys(self, given: Parameters) -> Answer:
        """A page of the tree of keys."""
        commit = given.commit()
        return key_page(
            self._repo,
            commit,
            given.since(commit),
            given.text("prefix"),
            after=given.text("after"),
            limit=given.page(500)[1],
            changed=given.flag("changed"),
        )

    def value(self, given: Parameters) -> Answer:
        """A part of a value, with a page of what is inside."""
        commit, key, path = given.commit(), given.required("key"), given.text("path")
        first, limit = given.page()
        return self.values.page(commit, key, path, before=given.since(commit), first=first, limit=limit)

    def picture(self, given: Parameters) -> tuple[str, bytes]:
        """The media type and the bytes of a picture."""
        return self.values.picture(given.commit(), given.required("key"), given.text("path"))

    def diff(self, given: Parameters) -> Answer:
        """The changed keys between two commits; with `key`, the changes inside its value."""
        new, base = given.commit("new"), None
        old = given.known("old") or next(iter(self._repo.history.before(new)), None)
        if given.flag("base") and old is not None:
            old = base = self._repo.merge_base(old, new)
        found = {"old": old and old.id, "new": new.id, "base": base and base.id}
        if given.has("key"):
            return found | key_changes(self._repo, self.values, old, new, given.text("key"))
        first, limit = given.page(200)
        return found | change_page(self._repo, old, new, given.text("prefix"), first=first, limit=limit)

    def history(self, given: Parameters) -> Answer:
        """The commits that changed a key, or a part of its value."""
        start, key, path = given.commit(), given.required("key"), given.text("path")
        before, (_, limit) = given.known("before"), given.page(50)
        return versions(self._repo, self.values, start, key, path, before=before, limit=limit)

    def blame(self, given: Parameters) -> Answer:
        """The parts of a value, each with the commit that last changed it."""
        return blame_document(self._repo, given.commit(), given.required("key"), given.text("path"))

    def health(self, _: Parameters) -> Answer:
        """Where the bytes are, and who signed."""
        return health(self._stored)

    def merge(self, given: Parameters) -> Answer:
        """What a merge would do: nothing is changed."""
        choices = dict.fromkeys(given.texts("take_ours"), OURS)
        choices |= dict.fromkeys(given.texts("take_theirs"), THEIRS)
        ours, theirs = given.required("ours"), given.required("theirs")
        return Changing(self._stored).try_merge(ours, theirs, given.text("policy"), choices)

    def search(self, given: Parameters) -> Answer:
        """The places of a text in keys and values, and the commit that it names as a revision, if it does."""
        text = given.text("text")
        if not text:
            raise InvalidInput("the text to search for is empty")
        found = find_text(
            self._repo,
            given.commit(),
            text,
            given.text("prefix"),
            most=_MOST_PLACES,
            most_inside=_MOST_INSIDE,
            seconds=_SEARCH_SECONDS,
        )
        return {
            "commit": self._named(text),
            "branch": self._branch(text),
            "places": [asdict(each) for each in found.places],
            "keys": found.keys,
            "unread": found.unread,
            "complete": found.is_complete,
        }

    def _branch(self, name: str) -> str | None:
        """The branch of this name, as people type it."""
        found = typed_ref(name)
        return found if self._repo.refs.read(HEADS + found) is not None else None

    def _named(self, rev: str) -> Answer | None:
        try:
            commit = self._repo.resolve(rev)
        except VStateError:
            return None
        return {"id": commit.id, "short": commit.short, "message": commit.subject}


def refs_state(repo: Repository) -> str:
    """A text that changes when any ref or HEAD does."""
    state: list[tuple[str, ObjectId | str | None]] = sorted(repo.refs.all().items())
    head = repo.refs.head()
    return hashlib.blake2b(repr((state, head)).encode(), digest_size=12).hexdigest()
