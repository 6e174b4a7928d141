"""Changing: what a page may change in a store, on trial first, and only on what the page has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from vstate.arguments import storable
from vstate.errors import AlreadyExists, CorruptObject, InvalidInput, MergeConflict, NotFound, RefMoved
from vstate.kv.base import KVStore, TransactionalStore, check_key, check_value
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.expiry import now, split_expiry
from vstate.readers.shown import Shown
from vstate.readers.stored import READER
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.inert import InertRepository
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.rules.policies import NAMES, OURS, THEIRS
from vstate.repo.writing import BranchChanges
from vstate.values.budget import InertError
from vstate.values.entry import FILE
from vstate.values.file import File
from vstate.values.inspection import shown_value
from vstate.viewer.comparing import change_page, key_changes
from vstate.viewer.editing import edited
from vstate.viewer.parts import part_document, texts_apart
from vstate.viewer.values import Values

_SHOWN: Final = 50  # changed keys of a preview
_OPENED: Final = 8  # of these, with the changes inside
_DETAILS: Final = 50  # of each
_LONGEST: Final = 10_000  # characters of a name or a message
_MOST_CONFLICTS: Final = 200

Answer = dict[str, Any]
_Move = Callable[[Repository, "Body", str, Commit], Commit | None]
"""Moves a branch from a commit to another one, or to none if nothing changes."""


class Body:
    """The members of a JSON object that a request sent. Each method raises InvalidInput for a wrong one."""

    def __init__(self, members: object) -> None:
        if not isinstance(members, dict):
            raise InvalidInput("the body of the request is a JSON object")
        self._members: dict[str, Any] = members

    def text(self, name: str, otherwise: str | None = None) -> str:
        """A text; it must be given unless there is another."""
        found = self._members.get(name, otherwise)
        if not isinstance(found, str) or len(found) > _LONGEST:
            raise InvalidInput(f"{name} is a text of at most {_LONGEST:,} characters")
        return found

    def flag(self, name: str) -> bool:
        """True or false; false if it is not given."""
        found = self._members.get(name, False)
        if not isinstance(found, bool):
            raise InvalidInput(f"{name} is true or false")
        return found

    def value(self, name: str) -> object:
        """Any JSON value, which must be given."""
        if name not in self._members:
            raise InvalidInput(f"the member {name} is missing")
        return self._members[name]

    def choices(self, name: str) -> dict[str, str]:
        """Sides by key: "ours" or "theirs"."""
        found = self._members.get(name, {})
        if not isinstance(found, dict) or not all(side in (OURS, THEIRS) for side in found.values()):
            raise InvalidInput(f"{name} has a side for each key: {OURS} or {THEIRS}")
        return found


class Trial(TransactionalStore):
    """The contents of `store`, and on top of them the writes that were made here. `store` never changes."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._written: dict[str, bytes | None] = {}

    @property
    def location(self) -> str:
        """Where the store behind is."""
        return self._store.location

    def get(self, key: str) -> bytes | None:
        check_key(key)
        return self._written[key] if key in self._written else self._store.get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        names = [*keys]
        here = {key: self._written[key] for key in names if key in self._written}
        found = self._store.get_many([key for key in names if key not in here])
        return found | {key: value for key, value in here.items() if value is not None}

    def keys(self, prefix: str = "") -> Iterator[str]:
        written = dict(self._written)
        yield from (key for key in self._store.keys(prefix) if key not in written)
        yield from (key for key, value in written.items() if value is not None and key.startswith(prefix))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        new = {check_key(key): None if value is None else check_value(value) for key, value in writes.items()}
        if any(self.get(key) != value for key, value in expected.items()):
            return False
        self._written.update(new)
        return True

    def close(self) -> None:
        """The store behind stays open."""


class Changing:
    """The changes of one repository. No value is loaded: merges move the parts as they are stored."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo

    @property
    def changes(self) -> dict[str, Callable[[Repository, Body], Answer]]:
        """The method for each path below /api/v1."""
        return {
            "/branches": self._fork,
            "/tags": self._tag,
            "/rollback": partial(self._move, _rolled_back),
            "/undo": partial(self._move, lambda repo, _, branch, head: repo.undo(branch, seen=head)),
            "/redo": partial(self._move, lambda repo, _, branch, head: repo.redo(branch, seen=head)),
            "/revert": partial(self._move, _reverted),
            "/merge": self._merge,
            "/edit": self._edit,
        }

    def carry_out(self, path: str, body: Body) -> Answer:
        """Make the change, or with `preview` only show what it would change.

        Raises RefMoved if the branch is not at the commit `seen`.
        """
        is_trial = body.flag("preview")
        store = Trial(self._repo.store) if is_trial else self._repo.store
        repo = InertRepository(store, body.choices("choices"))
        try:
            return self.changes[path](repo, body) | {"preview": is_trial}
        except RefMoved as error:
            error.message = (
                f"{error.ref.removeprefix(HEADS)} has moved since the page showed it: nothing was changed. "
                "Close this, look at what is new, and begin again."
            )
            raise

    def try_merge(self, ours: str, theirs: str, policy: str, choices: Mapping[str, str]) -> Answer:
        """What a merge of `theirs` into the branch `ours` would do, as `GET /merge` gives it."""
        repo = InertRepository(Trial(self._repo.store), choices)
        chosen, head, other = _policy(policy), repo.branch(ours), repo.resolve(theirs)
        bases = repo.history.merge_bases(head.oid, other.oid)
        base = repo.objects.commit(bases[0]) if bases else None
        open_keys: dict[str, str] = {}
        try:
            result = repo.merge(ours, other, policy=chosen, name=theirs, seen=head)
        except MergeConflict as error:
            open_keys = {key: error.conflicts[key].reason for key in error.keys}
            # As if they were decided: what the policies make of the others.
            repo = InertRepository(Trial(self._repo.store), {**choices, **dict.fromkeys(open_keys, OURS)})
            result = repo.merge(ours, other, policy=chosen, name=theirs, seen=head)
        values = Values(repo)
        sides = {"base": base, "ours": head, "theirs": other, "result": result.commit}
        conflicts = []
        for key, name in islice(sorted(result.conflicts.items()), _MOST_CONFLICTS):
            is_open = key in open_keys
            values_of = self._sides(repo, values, sides, key)
            found = {"key": key, "reason": open_keys.get(key, ""), "policy": None if is_open else name}
            conflicts.append(found | values_of | ({"result": None} if is_open else {}))
        return {
            "ours": head.id,
            "theirs": other.id,
            "base": None if base is None else base.id,
            "policies": [*NAMES],
            "strategy": "conflict" if open_keys else result.strategy,
            "changes": self._changes(repo, head, result.commit) if result.commit and not open_keys else None,
            "conflicts": conflicts,
            "more": max(len(result.conflicts) - len(conflicts), 0),
        }

    @staticmethod
    def _sides(
        repo: Repository, values: Values, sides: Mapping[str, Commit | None], key: str
    ) -> dict[str, Answer | None]:
        """The value of a key on each side of a merge, from where they differ; None if it is not there."""
        read: dict[str, object] = {}
        found: dict[str, Answer | None] = dict.fromkeys(sides)
        for side, commit in sides.items():
            data = None if commit is None else tree.lookup(repo.objects.node, commit.root, key)
            if data is None:
                continue
            try:
                read[side] = values.read(key, data)
                found[side] = part_document(read[side], "", key)
            except (InertError, InvalidInput, CorruptObject) as error:
                found[side] = {"kind": "unreadable", "text": str(error), "type": "", "count": 0, "path": ""}
        for side, text in zip(read, texts_apart([*read.values()]), strict=True):
            found[side] = {**(found[side] or {}), "text": text}
        return found

    def _changes(self, repo: Repository, before: Commit, after: Commit) -> Answer:
        """The keys that a change would change, as they are shown; the first ones with the changes inside."""
        repo = Shown(repo)
        before, after = repo.resolve(before.oid), repo.resolve(after.oid)
        page = change_page(repo, before, after, "", first=0, limit=_SHOWN)
        values = Values(repo)
        for change in page["changes"][:_OPENED]:
            change["inside"] = key_changes(repo, values, before, after, change["key"], limit=_DETAILS)
        return page

    def _moved(
        self, repo: Repository, body: Body, branch: str, before: Commit, after: Commit | None
    ) -> Answer:
        """The answer for a branch that went from one commit to another; None if it stays.

        Only a trial tells the changes: once the branch has moved, nothing may fail.
        """
        return {
            "branch": branch,
            "from": before.id,
            "from_message": before.subject,
            "to": None if after is None else after.id,
            "message": "" if after is None else after.subject,
            "changes": self._changes(repo, before, after) if after and body.flag("preview") else None,
        }

    def _head(self, repo: Repository, body: Body) -> tuple[str, Commit]:
        """The branch, which must be at the commit that the page has seen."""
        branch, seen = body.text("branch"), body.text("seen")
        head = repo.branch(branch)
        if head.id != seen:
            raise RefMoved(HEADS + branch, expected=seen, actual=head.id)
        return branch, head

    def _fork(self, repo: Repository, body: Body) -> Answer:
        commit = repo.create_branch(name := body.text("name"), body.text("at"))
        return {"branch": name, "to": commit.id, "message": commit.subject, "changes": None}

    def _tag(self, repo: Repository, body: Body) -> Answer:
        commit = repo.create_tag(name := body.text("name"), body.text("at"))
        return {"tag": name, "to": commit.id, "message": commit.subject, "changes": None}

    def _move(self, move: _Move, repo: Repository, body: Body) -> Answer:
        branch, head = self._head(repo, body)
        return self._moved(repo, body, branch, head, move(repo, body, branch, head))

    def _merge(self, repo: Repository, body: Body) -> Answer:
        branch, head = self._head(repo, body)
        policy, rev = _policy(body.text("policy", "")), body.text("rev")
        name = body.text("name", rev)
        result = repo.merge(branch, repo.resolve(rev), policy=policy, name=name, seen=head)
        return self._moved(repo, body, branch, head, result.commit) | {"strategy": result.strategy}

    def _edit(self, repo: Repository, body: Body) -> Answer:
        """One part of a plain value, on a new branch that begins at the commit that the page shows."""
        branch, key, path = body.text("branch"), body.text("key"), body.text("path", "")
        base = repo.resolve(body.text("rev"))
        data = tree.lookup(repo.objects.node, base.root, key)
        if data is None:
            is_read = tree.lookup(repo.objects.node, base.root, READER) is not None
            why = "; a reader shows it, and only the program of the branch changes it" if is_read else ""
            raise NotFound(f"no key {key!r} at {base.short}{why}", name=key)
        if (due := split_expiry(data)[1]) is not None and due.is_over:
            raise NotFound(f"the key {key!r} has expired", name=key)
        taken = AlreadyExists(
            f"there is a branch {branch!r} already: an edit goes to a new branch", name=branch
        )
        if repo.refs.read(HEADS + branch) is not None:
            raise taken
        entry = repo.parse_entry(key, data)
        is_file = entry.codec == FILE
        value = shown_value(entry, repo.objects)
        new = edited(value, path, "str" if is_file else body.text("type"), body.value("value"))
        if Fingerprints().of(new) == Fingerprints().of(value):
            return self._moved(repo, body, branch, base, None)
        where = f"{key} {path}".strip()
        left = {} if due is None else {key: (due.at - now()) / 1_000_000}
        if is_file:
            new = File(str(new).encode(errors="replace"), entry.type)
        change = BranchChanges(
            branch, set={key: new}, expire=left, base=base, message=storable(f"Edit {where[:200]}")
        )
        try:
            (commit,) = repo.commit_many([change])
        except RefMoved:  # it was made meanwhile
            raise taken from None
        return self._moved(repo, body, branch, base, commit)


def _rolled_back(repo: Repository, body: Body, branch: str, head: Commit) -> Commit | None:
    rev, message = body.text("rev"), body.text("message", "")
    if repo.resolve(rev).root == head.root:
        return None
    return repo.rollback(branch, rev, message=message, seen=head)


def _reverted(repo: Repository, body: Body, branch: str, head: Commit) -> Commit | None:
    return repo.revert(branch, body.text("rev"), message=body.text("message", ""), seen=head)


def _policy(name: str) -> str | None:
    """The policy of this name, None for that of the branch."""
    if name and name not in NAMES:
        raise InvalidInput(f"no policy {name[:50]!r}; these are: {', '.join(NAMES)}")
    return name or None
