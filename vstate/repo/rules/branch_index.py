"""The index of the branches: rows by which a list finds the newest ones, or those with a label, and no other.

In a store with transactions each move of a branch changes the branch's rows in its own transaction:

- `r/newest/<time>/<branch>`, by the time of the newest commit. The times in keys count backwards, in
  steps of some seconds; the value is the exact one. So commits in quick succession change only the value;
- `r/with/<hash>/<branch>` for each label, by the hash of its name and value;
- one more of these, the row of `ANY`, if the newest commit set no labels: the branch may have any.

All of them follow from the head and from the row of the labels. A store without transactions could not keep
them right. There each list makes them anew, out of all branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final

from blake3 import blake3

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import KVStore
from vstate.objects.canonical import encode
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS, LABELS, NEWEST, WITH, Refs, Rows
from vstate.repo.objects import Objects
from vstate.repo.rules.labels import LABELS_AT, SET_BY, Atom, LabelRow, check_labels, has_label, parse_labels

ANY: Final[tuple[str, Atom]] = "", True
"""The label of a branch that may have any label."""

_STEP: Final = 22  # bits of a time in microseconds that are not in the key
_LAST_STEP: Final = 2**40 - 1
_key_at: Final = (NEWEST + "{:010x}/{}").format
_STEP_OF: Final = slice(len(NEWEST), len(NEWEST) + 10)
_DIGITS: Final = 8  # of the hash of a label; a list reads the labels of what it finds
_MOST_KNOWN: Final = 1024


class BranchIndex:
    """The labels of the branches of one store, and the index of its branches. Threads may share it."""

    def __init__(self, store: KVStore, objects: Objects, refs: Refs) -> None:
        self._store = store
        self._objects = objects
        self._refs = refs
        self.kept = store.transactional
        """Whether the store has the rows."""
        self._last: dict[str, tuple[ObjectId | None, bytes | None]] = {}
        """By branch, a commit that it was at, and the row of the labels if this commit set them."""

    # Labels

    def read(self, branches: Iterable[str]) -> dict[str, LabelRow]:
        """The labels of those of the branches that have some."""
        rows = self._store.get_many([LABELS + HEADS + branch for branch in branches])
        found = {key.removeprefix(LABELS): self._parsed(key, row) for key, row in rows.items()}
        for ref, labels in found.items():
            self._note(ref, labels.at, rows[LABELS + ref])
        return {ref.removeprefix(HEADS): labels for ref, labels in found.items()}

    def rows_for(self, new: str, like: str) -> dict[str, bytes | None]:
        """The rows that give the branch `new` the labels of the branch `like`, in place of its own."""
        return {LABELS + HEADS + new: self._store.get(LABELS + HEADS + like)}

    def _note(self, ref: str, head: ObjectId | None, row: bytes | None) -> None:
        if len(self._last) >= _MOST_KNOWN:
            self._last = {}
        self._last[ref] = head, row

    def _parsed(self, key: str, row: bytes) -> LabelRow:
        try:
            return parse_labels(row)
        except ValueError as error:
            reason = f"the labels of branch {key.removeprefix(LABELS + HEADS)!r}: {error}"
            raise CorruptStore(self._store.location, reason, repairable=True) from error

    # Lists

    def find(self, wanted: Mapping[str, Atom], prefix: str) -> list[str]:
        """The branches that begin with `prefix` and have all these labels, sorted."""
        check_labels(wanted)
        found = self._having([[label] for label in wanted.items()], prefix)
        rows = self.read(sorted(found))
        return [
            name
            for name in sorted(rows)
            if all(has_label(rows[name].labels, *label) for label in wanted.items())
        ]

    def possible(self, wanted: Mapping[str, str], prefix: str) -> list[str]:
        """As `Core.possible_branches`, for some labels."""
        return sorted(self._having([[label, (label[0], True), ANY] for label in wanted.items()], prefix))

    def newest(self, prefix: str = "") -> Iterator[tuple[int, str]]:
        """The branches that begin with `prefix`, newest first, each with the order of its newest commit.

        Only where the rows are kept. By now a branch may be elsewhere, or gone.
        """
        rows: Iterable[tuple[str, bytes]] = self._store.items(NEWEST)
        for _, step in groupby(rows if self._store.ordered else sorted(rows), lambda row: row[0][_STEP_OF]):
            names = [(int.from_bytes(value), key[_STEP_OF.stop + 1 :]) for key, value in step]
            yield from (each for each in sorted(names, reverse=True) if each[1].startswith(prefix))

    def _having(self, choices: Iterable[Sequence[tuple[str, Atom]]], prefix: str) -> set[str]:
        """The branches that have a label of each choice, by the hashes."""
        made = None if self.kept else [*self._made()]
        found: set[str] | None = None
        for labels in choices:
            some: set[str] = set()
            for label in labels:
                begin = _label_key(label, "")
                keys = self._store.keys(begin + prefix) if made is None else made
                some.update(key[len(begin) :] for key in keys if key.startswith(begin + prefix))
            found = some if found is None else found & some
        return found or set()

    def _made(self) -> Iterator[str]:
        """The keys for the labels of all branches, as a store with transactions has them."""
        rows = dict(self._store.items(LABELS + HEADS))
        for name, head in self._refs.list(HEADS).items():
            row = rows.get(key := LABELS + HEADS + name)
            yield from _label_keys(name, head, None if row is None else self._parsed(key, row))

    # Rows

    def rows_of(self, branch: str, head: ObjectId) -> dict[str, bytes]:
        """The rows of a branch at this commit; CorruptStore or CorruptObject if they cannot be told."""
        labels, order = self.read([branch]).get(branch), self._objects.commit(head).order
        found = dict.fromkeys(_label_keys(branch, head, labels), b"")
        found[_key_at(_LAST_STEP - (order >> _STEP), branch)] = order.to_bytes(8)
        return found

    def moved(
        self, ref: str, old: ObjectId | None, new: ObjectId | None, order: int | None, rows: Rows
    ) -> tuple[Rows, Rows]:
        """What changes in the index with the move of a branch that writes these rows, and what it expects.

        A new commit has this `order`; without one the branch goes to a commit that was there before.
        """
        branch, changes = ref.removeprefix(HEADS), dict[str, bytes | None]()
        if old is not None and (before := self._order_of(old)) is not None:
            changes[_key_at(_LAST_STEP - (before >> _STEP), branch)] = None
        if new is not None and (after := order or self._order_of(new)) is not None:
            changes[_key_at(_LAST_STEP - (after >> _STEP), branch)] = after.to_bytes(8)
        key, last = LABELS + ref, self._last.get(ref)
        if new is not None and order is not None and key not in rows:
            if old is None or last != (old, None):
                changes[_ANY_KEY + branch] = b""
            self._note(ref, new, None)
            return changes, {}
        had = last[1] if last is not None and last[0] == old else None
        if had is None and old is not None:
            had = self._store.get(key)
        has = None if new is None else rows.get(key, had)
        fresh = new is not None and has is not None and has[SET_BY] == new
        self._note(ref, new, has if fresh else None)
        if not (fresh and has and had and had[SET_BY] == old and had[LABELS_AT] == has[LABELS_AT]):
            gone = set() if old is None else _label_keys(branch, old, _whole(had))
            made = set() if new is None else _label_keys(branch, new, _whole(has))
            changes |= dict.fromkeys(gone - made)
            changes |= dict.fromkeys(made - gone, b"")
        # If a branch came back to a commit, it may have other labels there than are known: the move fails.
        return changes, {} if old is None else {key: had}

    def _order_of(self, oid: ObjectId) -> int | None:
        with suppress(CorruptObject):
            commit = self._objects.find_commit(oid)
            return None if commit is None else commit.order
        return None


def _label_key(label: tuple[str, Atom], branch: str) -> str:
    return f"{WITH}{blake3(encode(list(label))).hexdigest()[:_DIGITS]}/{branch}"


_ANY_KEY: Final = _label_key(ANY, "")


def _label_keys(branch: str, head: ObjectId, row: LabelRow | None) -> set[str]:
    """The keys for the labels of a branch at this commit."""
    found = set() if row and row.at == head else {_label_key(ANY, branch)}
    for name, label in row.labels.items() if row else ():
        found.update(
            _label_key((name, atom), branch) for atom in (label if isinstance(label, list) else [label])
        )
    return found


def _whole(row: bytes | None) -> LabelRow | None:
    """The labels in a row; None if it is damaged."""
    try:
        return None if row is None else parse_labels(row)
    except ValueError:
        return None
