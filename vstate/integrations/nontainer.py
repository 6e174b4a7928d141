"""VstateProvider: the workspaces of nontainer, each session a branch of the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any, Final

from vstate.arguments import check_several
from vstate.errors import AlreadyExists, InvalidInput, MergeConflict, NotFound, RefMoved
from vstate.integrations import framework_of
from vstate.integrations.opening import KeepLike, Opening, StoreLike, summary
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import Head, quote_ref, unquote_ref
from vstate.repo.repository import Repository
from vstate.repo.writing import BranchChanges
from vstate.state.base import handle_of
from vstate.state.snapshot import Snapshot
from vstate.state.versioned import Versioned

with framework_of("nontainer"):
    import kvgit
    from monkeyfs import VirtualFS
    from nontainer import validate_session_id
    from nontainer.agentgit import BLOB_KEY
    from nontainer.providers.kvgit import KvgitProvider
    from nontainer.views import VIEW_KEY

_INFO: Final = "nontainer"
"""The name in a commit's info of what nontainer says of the commit."""
_PREFIX: Final = "nontainer/"
_TAGS: Final = "nontainer.tags"
"""The branch with what nontainer says of tags."""
_OURS: Final = (VirtualFS.CWD_KEY, VirtualFS.META_PREFIX, BLOB_KEY, VIEW_KEY)
"""The keys that each program sets beside its work: a commit that lost a race keeps its own."""


class VstateProvider(KvgitProvider):
    """nontainer's own provider on a store of vstate: `VstateProvider.open("./agents", session="ann")`.

    - A session is the branch `nontainer/SESSION`, with its files, cache and conversation. Each commit of the
      workspace is one of the branch, and its tag is the tag `nontainer/SESSION/NAME`.
    - A value of a class that `allow` does not name is stored, and reading it raises CannotLoad.
    - If two programs commit to one session, both changes stay. WorkspaceError for a key that both changed,
      and for a session that was deleted; nothing is committed then.
    """

    @classmethod
    def open(cls, path: StoreLike = None, *, session: str, **options: Any) -> VstateProvider:
        """Open a session, and begin it if it is new. `close` closes a store that was opened here.

        The options are `allow` and `keep`, as all adapters have them.
        """
        validate_session_id(session)
        repo = VstateRepo(path, **options)
        return cls(repo, repo.worktree(session, create=True), session=session)

    @classmethod
    def delete(cls, path: StoreLike, sessions: Iterable[str], *, min_age: float = 0) -> None:
        """Delete sessions with their tags, histories and bytes; for 30 days, not the commits of their tags.

        `min_age` is kvgit's, and does nothing.
        """
        with closing(VstateRepo(path)) as repo:
            cls.delete_in(repo, check_several(sessions, "delete", "ids"))


class VstateRepo:
    """A store of vstate in the shape of a `kvgit.Repo`, on which nontainer's provider stands."""

    def __init__(self, store: StoreLike = None, *, allow: Iterable[str] = (), keep: KeepLike = None) -> None:
        self.opening = Opening(store, "nontainer", allow=allow, keep=keep, prefix=("nontainer",))
        self.repo = self.opening.repo
        self.branches = _Branches(self.opening)
        self.close = self.opening.close

    @property
    def tags(self) -> _Tags:
        return _Tags(self.repo)

    def worktree(self, name: str, *, create: bool = False) -> _Worktree:
        if create and name not in self.branches:
            with suppress(kvgit.BranchExistsError):  # another program began it
                self.branches.create(name)
        return _Worktree(self, name)

    def snapshot(self, *, commit: str = "", branch: str = "", tag: str = "") -> _Snapshot:
        id = commit or (self.branches[branch] if branch else self.tags[tag])
        return _Snapshot(self.repo, _commit_of(self.repo, id))

    def get_commit(self, commit: str) -> Any:
        return _told(_commit_of(self.repo, commit))

    def log(self, *, commit: str = "", branch: str = "", first_parent: bool = False) -> Iterator[Any]:
        start = _commit_of(self.repo, commit or self.branches[branch])
        return map(_told, self.repo.log(start, first_parent=first_parent))

    def diff(self, a: str, b: str) -> Any:
        return self.repo.diff(_commit_of(self.repo, a).root, _commit_of(self.repo, b).root)

    def merge_base(self, a: str, b: str) -> str | None:
        found = self.repo.merge_base(_commit_of(self.repo, a), _commit_of(self.repo, b))
        return None if found is None else found.id

    def gc(self, **options: Any) -> None:
        """Nothing: a deleted session leaves nothing, and `vstate gc` is for the rest."""


class _Branches(Mapping[str, str]):
    """The ids of the newest commits of sessions, by name."""

    def __init__(self, opening: Opening) -> None:
        self._opening, self._repo = opening, opening.repo

    def __getitem__(self, name: str) -> str:
        head = self._repo.newest(self._opening.branch(name))
        if head is None:
            raise kvgit.UnknownBranchError(f"unknown branch {name!r}")
        return head.id

    def __iter__(self) -> Iterator[str]:
        return (ids[-1] for ids in self._opening.sessions())

    def __len__(self) -> int:
        return len(self._opening.sessions())

    def create(self, name: str, at: str | None = None) -> None:
        branch = self._opening.branch(name)
        labels, marks = self._opening.labels(branch, None), self._opening.marks
        for prefix in _OURS:
            self._repo.policies.set(branch, prefix, "ours")
        try:
            if at is not None:
                self._opening.copy(branch, branch, _commit_of(self._repo, at))
            else:
                self._repo.commit(branch, set=marks, expect=None, labels=labels, message="begin")
        except (AlreadyExists, RefMoved) as error:
            raise kvgit.BranchExistsError(f"there is a branch {name!r} already") from error

    def delete(self, name: str) -> None:
        self._opening.delete(self._opening.branch(name))


class _Tags(dict[str, str]):
    """The ids of the commits of tags, by name."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        found = {name: commit.id for name, commit in repo.tags().items() if name.startswith(_PREFIX)}
        super().__init__((unquote_ref(name[len(_PREFIX) :]), id) for name, id in found.items())

    def __missing__(self, name: str) -> str:
        raise kvgit.UnknownTagError(f"unknown tag {name!r}")

    def create(self, name: str, commit: str, *, info: Mapping[str, Any] | None = None) -> None:
        stored = _PREFIX + quote_ref(name)
        try:
            self._repo.create_tag(stored, _commit_of(self._repo, commit))
        except AlreadyExists as error:
            raise kvgit.TagExistsError(f"there is a tag {name!r} already") from error
        self._repo.commit(_TAGS, set={stored: [time.time(), info]}, message=f"tag {name}")

    def delete(self, name: str) -> None:
        stored = _PREFIX + quote_ref(name)
        if self[name]:
            self._repo.delete_tag(stored)
        self._repo.commit(_TAGS, delete=[stored], message=f"delete {name}")

    def info(self, name: str) -> Any:
        head = self._repo.newest(_TAGS)
        said: Mapping[str, Any] = {} if head is None else Snapshot(self._repo, head)
        made, info = said.get(_PREFIX + quote_ref(name)) or (None, None)
        return SimpleNamespace(commit=self[name], time=made, info=info, dangling=False)


class _Snapshot(Snapshot):
    """The state at a commit, with the id of the commit."""

    commit: Any = property(lambda self: self._commit.id)

    def get_many(self, *keys: Any) -> dict[str, Any]:
        return super().get_many(keys)


class _Worktree(Versioned):
    """A session, to write to."""

    head: Any = property(lambda self: self._handle.head.id)
    branch: Any = property(lambda self: self._name)

    def __init__(self, repo: VstateRepo, name: str) -> None:
        at = Head(repo.opening.branch(name), _commit_of(repo.repo, repo.branches[name]).oid)
        self._open(repo.repo, at, False, autocommit=False, in_memory=True)
        self._owned, self._name = False, name
        self._set: set[str] = set()
        """The keys that were set since the last commit. In kvgit, one that stays equal is a change too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._set.add(key)

    def get_many(self, *keys: Any) -> dict[str, Any]:
        return super().get_many(keys)

    def status(self) -> Any:
        found = super().status()
        removed = frozenset(found.removed)
        return kvgit.Status(frozenset([*found, *self._set]) - removed, removed)

    def set_merge_fn(self, key: str, rule: Any) -> None:
        """Nothing: the branch has its policies."""

    set_merge_prefix = set_merge_fn

    # The signatures of these two are kvgit's.
    def commit(self, *, info: Any = None, keys: Iterable[str] | None = None) -> Any:  # type: ignore[override]
        # The commit of certain keys is an agent's own. It is made also if the framework has committed them.
        event = None if keys is None else self.record("ws-git")
        try:
            super().commit(**_said(info), keys=None if keys is None else {*keys} & {*super().status()})
        except (MergeConflict, RefMoved) as error:
            if event is not None:
                handle_of(self).forget_event(event)
            files = map(VirtualFS._decode_path, filter(VirtualFS._is_vfs_key, getattr(error, "keys", ())))
            return SimpleNamespace(merged=False, files=[*files], error=error)
        self._set.difference_update([*self._set] if keys is None else keys)
        return SimpleNamespace(merged=True)

    def discard(self, *keys: str) -> None:
        super().discard(*keys)
        self._set.clear()

    def refresh(self) -> Any:
        self.discard()
        return super().refresh()

    def merge(  # type: ignore[override]
        self, *, commit: str, info: Any, merge_fns: Any, merge_prefixes: Any, **_: Any
    ) -> Any:
        """One commit with two parents. The rules are for keys that both sides changed, and OURS for all."""
        repo, theirs = self.repo, _commit_of(self.repo, commit)
        ours = _commit_of(repo, self.head)
        base = repo.merge_base(ours, theirs)
        if base == theirs:
            return SimpleNamespace(strategy="no_op")
        root = None if base is None else base.root
        old: Mapping[str, Any] = {} if base is None else Snapshot(repo, base)
        mine, new, changed = Snapshot(repo, ours), Snapshot(repo, theirs), {*repo.diff(root, ours.root)}
        merged, conflicts = dict[str, Any](), set[str]()
        for key in {*repo.diff(root, theirs.root)} & {*repo.diff(ours.root, theirs.root)}:
            prefixes = [rule for begin, rule in merge_prefixes.items() if key.startswith(begin)]
            rule: Any = merge_fns.get(key) or (prefixes or [None])[0]
            if rule is kvgit.MergeChoice.OURS:
                continue
            sides = old.get(key), mine.get(key), new.get(key)
            try:
                merged[key] = rule(*sides) if key in changed else sides[-1]
            except Exception:  # there is no rule, or it cannot decide
                conflicts.add(key)
        if conflicts:
            raise kvgit.MergeConflict(conflicts)
        kept = {key: value for key, value in merged.items() if value is not None or key in new}
        said = _said(info)
        changes = BranchChanges(
            self._handle.own_branch(),
            set=kept,
            delete=merged.keys() - kept,
            expect=ours,
            merges=[theirs],
            message=said.pop("message", ""),
            info=said,
        )
        repo.commit_many([changes])
        self.refresh()
        return SimpleNamespace(strategy="merge")


def _told(commit: Commit) -> Any:
    parents, info = tuple(map(str, commit.parent_ids)), dict(commit.info.get(_INFO, {}))
    return kvgit.Commit(commit.id, parents, microseconds(commit.time) / 1e6, info, str(commit.root))


def _said(info: Mapping[str, Any] | None) -> dict[str, Any]:
    """The message and the info of a commit of which nontainer says this."""
    words = [str(info[name]) for name in ("tool", "message") if info.get(name)] if info else []
    return {"message": summary(": ".join(words)), _INFO: info} if info else {}


def _commit_of(repo: Repository, id: str) -> Commit:
    """The commit with this id. A name is none: it could be one of any branch of the store."""
    try:
        return repo.resolve(ObjectId.parse(id))
    except (NotFound, InvalidInput) as error:
        raise kvgit.UnknownCommitError(f"unknown commit {id!r}") from error
