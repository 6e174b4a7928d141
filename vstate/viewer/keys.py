"""Keys: the keys of a commit as a tree, split at "/", with the changed ones marked."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any, Final

from vstate.display.documents import entry_document
from vstate.errors import CorruptObject
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Diff, counts_by_kind
from vstate.repo.repository import Repository

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
    diff, note = _changes(repo, commit, before)
    names = [key for key in diff if key.startswith(prefix)]
    gone = [key for key in names if diff[key].kind == "removed"]

    def following(at: str) -> str | None:
        """The first key from `at` on, of the commit or removed from it."""
        if changed:
            return _from(names, max(at, prefix))
        stored = next(tree.scan(repo.objects.nodes, commit.root, prefix, start=at), None)
        found = (stored and stored[0], _from(gone, max(at, prefix)))
        return min((key for key in found if key is not None), default=None)

    items: list[dict[str, Any]] = []
    at = after
    while len(items) < limit and (name := following(at)) is not None:
        rest = name[len(prefix) :]
        folder, slash, _ = rest.partition(_SEPARATOR)
        if slash:
            items.append(_folder(repo, commit, names, prefix + folder + _SEPARATOR, folder))
            at = prefix + folder + _BEHIND
        else:
            items.append(_key(repo, commit, diff, name, rest))
            at = name + "\0"
    return {
        "rev": commit.id,
        "prefix": prefix,
        "items": items,
        "next": at if len(items) >= limit and following(at) is not None else None,
        "changed": counts_by_kind(diff),
        "keys": tree.count(repo.objects.node, commit.root),
        "note": note,
    }


def _changes(repo: Repository, commit: Commit, before: Commit | None) -> tuple[Diff, str]:
    """The changed keys to mark, and a note if some are not among them."""
    old = None if before is None else before.root
    try:
        found = [*islice(tree.diff(repo.objects.nodes_once, old, commit.root), _MOST_CHANGES)]
    except CorruptObject as error:
        return repo.make_diff(()), f"Changes are not marked: {error}"
    is_cut = len(found) == _MOST_CHANGES
    note = f"Of all changes, the first {_MOST_CHANGES:,} are marked." if is_cut else ""
    return repo.make_diff(found), note


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
    # A key is of the commit, or a removed one.
    entry = repo.parse_entry(key, data) if data is not None else change.old_entry if change else None
    assert entry is not None
    return {
        "name": label,
        "key": key,
        "folder": None,
        **entry_document(entry),
        "change": None if change is None else change.kind,
    }
