"""Keys: the keys of a commit as a tree, split at "/", with the changed ones marked."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any, Final

from vstate.display.documents import entry_document
from vstate.errors import CorruptObject
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Diff
from vstate.repo.repository import Repository

__all__ = ["key_page"]

_MOST_CHANGES: Final = 100_000  # keys that are marked
_SEPARATOR: Final = "/"
_BEHIND: Final = "0"  # the character behind the separator


def key_page(
    repo: Repository,
    commit: Commit,
    before: Commit | None,
    prefix: str,
    *,
    after: str,
    limit: int,
    changed: bool,
) -> dict[str, Any]:
    """The keys and folders directly below `prefix`, as `GET /keys` gives them, those behind `after`.

    Keys that differ from the commit `before` are marked, also removed ones. With `changed`, only these are
    listed.
    """
    old, note = None if before is None else before.root, ""
    try:
        some = [*islice(tree.diff(repo.objects.nodes_once, old, commit.root), _MOST_CHANGES)]
    except CorruptObject as error:
        some, note = [], f"Changes are not marked: {error}"
    if len(some) == _MOST_CHANGES:
        note = f"Of all changes, the first {_MOST_CHANGES:,} are marked."
    diff = repo.make_diff(some)
    names = [key for key in diff if key.startswith(prefix)]
    gone = [key for key in names if diff[key].kind == "removed"]
    items: list[dict[str, Any]] = []
    at = after
    while len(items) < limit:
        name = _next(repo, commit, names, gone, prefix, at, changed)
        if name is None:
            break
        rest = name[len(prefix) :]
        folder, slash, _ = rest.partition(_SEPARATOR)
        if slash:
            whole = prefix + folder + _SEPARATOR
            items.append(_folder(repo, commit, names, whole, folder))
            at = prefix + folder + _BEHIND
        else:
            items.append(_key(repo, commit, diff, name, rest))
            at = name + "\0"
    more = len(items) >= limit and _next(repo, commit, names, gone, prefix, at, changed) is not None
    return {
        "rev": commit.id,
        "prefix": prefix,
        "items": items,
        "next": at if more else None,
        "changed": {"added": len(diff.added), "modified": len(diff.modified), "removed": len(diff.removed)},
        "keys": tree.count(repo.objects.node, commit.root),
        "note": note,
    }


def _next(
    repo: Repository, commit: Commit, names: list[str], gone: list[str], prefix: str, at: str, changed: bool
) -> str | None:
    """The first key from `at` on, of the commit or removed from it."""
    if changed:
        return _from(names, max(at, prefix))
    stored = next(tree.scan(repo.objects.nodes, commit.root, prefix, start=at), None)
    found = [key for key in (stored and stored[0], _from(gone, max(at, prefix))) if key is not None]
    return min(found, default=None)


def _from(names: list[str], at: str) -> str | None:
    place = bisect_left(names, at)
    return names[place] if place < len(names) else None


def _folder(repo: Repository, commit: Commit, names: list[str], whole: str, label: str) -> dict[str, Any]:
    begin, end = bisect_left(names, whole), bisect_left(names, whole[:-1] + _BEHIND)
    return {
        "name": label,
        "key": None,
        "folder": whole,
        "keys": tree.count_prefix(repo.objects.node, commit.root, whole),
        "changed": end - begin,
        "change": "modified" if end > begin else None,
    }


def _key(repo: Repository, commit: Commit, diff: Diff, key: str, label: str) -> dict[str, Any]:
    change = diff.get(key)
    data = tree.lookup(repo.objects.node, commit.root, key)
    if data is not None:
        entry = repo.parse_entry(key, data)
    else:
        assert change is not None
        found = change.old_entry
        assert found is not None
        entry = found
    return {
        "name": label,
        "key": key,
        "folder": None,
        **entry_document(entry),
        "change": None if change is None else change.kind,
    }
