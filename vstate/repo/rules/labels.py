"""Labels: plain data about a branch; and the index by which lists find branches by labels or by time.

The labels of a branch lie in one row beside its ref. A commit writes them in its own transaction, so no
branch waits for another one. With the branch they are copied, renamed and deleted.

In a store with transactions each move of a branch also changes the index in its own transaction:

- `r/newest/<time>/<branch>`, by the time of the newest commit. The times count backwards, in steps of a
  second: of several commits in one second, only the first writes the row;
- `r/with/<hash>/<branch>` for each label, by the hash of its name and value;
- one more of these, the row of `ANY`, if the newest commit set no labels: the branch may have any.

All of them follow from the head and from the row of the labels. A store without transactions could not keep
them right. There each list makes them anew, out of all branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby, repeat
from typing import Final, NamedTuple

from blake3 import blake3

from vstate.errors import CorruptObject, CorruptStore, InvalidInput
from vstate.kv.base import KVStore
from vstate.objects.canonical import decode_checked, encode, encode_checked, plain
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.names.refs import HEADS, LABELS, NEWEST, WITH, Refs, Rows
from vstate.repo.objects import Objects

Atom = str | int | float | bool | None
Label = Atom | list[Atom]
"""A list has several labels of one name: a listing finds the branch by each of them."""

MOST_BYTES: Final = 4096
_ATOMS: Final = (str, int, float, bool, type(None))
SET_BY: Final = slice(3, 3 + ID_BYTES)
"""Where a row has the id of the commit that set the labels."""
LABELS_AT: Final = slice(SET_BY.stop, -4)
"""Where it has the labels, before its checksum."""


class LabelRow(NamedTuple):
    """The labels of a branch, and the commit that set them: a branch elsewhere has moved since."""

    at: ObjectId
    labels: dict[str, Label]


class Labels(dict[str, Label]):
    """Labels that were checked. Nobody changes them."""


def check_labels(labels: Mapping[str, Label]) -> Labels:
    """The labels, with sorted names; the same object again if they were checked.

    Raises InvalidInput for values other than atoms and lists of atoms, and for more than 4,096 bytes.
    """
    if type(labels) is Labels:
        return labels
    found = Labels(plain(dict(labels), "labels"))
    for name, label in found.items():
        for atom in label if isinstance(label, list) else [label]:
            if not isinstance(atom, _ATOMS):
                raise InvalidInput(
                    f"labels[{name!r}] is {type(atom).__name__}: a label is text, a number, True, False or "
                    "None, or a list of these"
                )
    size = len(encode(found))
    if size > MOST_BYTES:
        raise InvalidInput(
            f"labels take {size:,} bytes, and {MOST_BYTES:,} are the most: keep the data in the branch, "
            "and only a few words to find it by here"
        )
    return found


def parse_labels(row: bytes) -> LabelRow:
    """The labels in a row; ValueError if the row is damaged."""
    fields = decode_checked(row)
    if not isinstance(fields, list) or [type(field) for field in fields] != [bytes, dict]:
        raise ValueError("it holds no labels")
    at, labels = fields
    if len(at) != ID_BYTES:
        raise ValueError("it names no commit")
    return LabelRow(ObjectId(at), labels)


def label_rows(branch: str, at: ObjectId, labels: dict[str, Label]) -> dict[str, bytes | None]:
    """The row that gives a branch these labels, and no others, set by that commit."""
    return {LABELS + HEADS + branch: encode_checked([at, labels]) if labels else None}


def has_label(labels: Mapping[str, Label], name: str, atom: Atom) -> bool:
    """Whether a label has this value, or is a list with it; 1, 1.0 and True are three values."""
    label, wanted = labels.get(name), encode(atom)
    options = label if isinstance(label, list) else [label]
    return name in labels and any(encode(option) == wanted for option in options)


# The index

ANY: Final[tuple[str, Atom]] = "", True
"""The label of a branch that may have any label."""

_STEP: Final = 20  # bits of a time in microseconds that are not in the key
_LAST_STEP: Final = 2**40 - 1
_key_at: Final = (NEWEST + "{:010x}/{}").format
_STEP_OF: Final = slice(len(NEWEST), len(NEWEST) + 10)
_DIGITS: Final = 8  # of the hash of a label; a list reads the labels of what it finds
_MOST_KNOWN: Final = 1024
_UNKNOWN: Final = None, None, None


class BranchIndex:
    """The labels of the branches of one store, and the index of its branches. Threads may share it."""

    def __init__(self, store: KVStore, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self.kept = store.transactional
        """Whether the store has the rows."""
        self._last: dict[str, tuple[ObjectId | None, bytes | None, int | None]] = {}
        """By branch, a commit that it was at, the row of the labels if this commit set them, and the step of
        its time, if that is known.
        """

    # Labels

    def read(self, branches: Iterable[str]) -> dict[str, LabelRow]:
        """The labels of those of the branches that have some."""
        rows = self._store.get_many([LABELS + HEADS + branch for branch in branches])
        found = {key.removeprefix(LABELS): self._parsed(key, row) for key, row in rows.items()}
        for ref, labels in found.items():
            self._note(ref, labels.at, rows[LABELS + ref], None)
        return {ref.removeprefix(HEADS): labels for ref, labels in found.items()}

    def rows_for(self, new: str, like: str) -> dict[str, bytes | None]:
        """The rows that give the branch `new` the labels of the branch `like`, in place of its own."""
        return {LABELS + HEADS + new: self._store.get(LABELS + HEADS + like)}

    def _note(self, ref: str, head: ObjectId | None, row: bytes | None, step: int | None) -> None:
        if len(self._last) >= _MOST_KNOWN:
            self._last = {}
        self._last[ref] = head, row, step

    def forget(self, ref: str) -> None:
        """Drop what is known of the branch: a move has failed, or may have."""
        self._last.pop(ref, None)

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

    def newest(self, prefix: str = "") -> Iterator[dict[str, int]]:
        """The branches that begin with `prefix`, each with the least order that its newest commit may have.

        Several at a time, at first some, then more. Those of each time are newer than those of the next one.
        Only where the rows are kept. By now a branch may be elsewhere, or gone.
        """
        keys = self._store.keys(NEWEST)
        found: dict[str, int] = {}
        sizes = chain((16, 64), repeat(256))
        most = next(sizes)
        for step, some in groupby(keys if self._store.ordered else sorted(keys), lambda key: key[_STEP_OF]):
            try:
                least = (_LAST_STEP - int(step, 16)) << _STEP
            except ValueError:  # another program made the row
                continue
            names = (key[_STEP_OF.stop + 1 :] for key in some)
            found |= {name: least for name in names if name not in found and name.startswith(prefix)}
            if len(found) >= most:
                yield found
                found, most = {}, next(sizes)
        yield found

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
        for name, head in Refs(self._objects.store).list(HEADS).items():
            row = rows.get(key := LABELS + HEADS + name)
            yield from _label_keys(name, head, None if row is None else self._parsed(key, row))

    # Rows

    def rows_of(self, branch: str, head: ObjectId) -> dict[str, bytes]:
        """The rows of a branch at this commit; CorruptStore or CorruptObject if they cannot be told."""
        labels, order = self.read([branch]).get(branch), self._objects.commit(head).order
        found = dict.fromkeys(_label_keys(branch, head, labels), b"")
        found[_key_at(_LAST_STEP - (order >> _STEP), branch)] = b""
        return found

    def moved(
        self, ref: str, old: ObjectId | None, new: ObjectId | None, order: int | None, rows: Rows
    ) -> tuple[Rows, Rows]:
        """What changes in the index with the move of a branch that writes these rows, and what it expects.

        A new commit has this `order`; without one the branch goes to a commit that was there before.
        """
        branch, changes = ref.removeprefix(HEADS), dict[str, bytes | None]()
        at, row, before = self._last.get(ref, _UNKNOWN)
        if at != old:
            row = before = None
        if before is None and old is not None:
            before = self._step_of(old)
        after = order >> _STEP if order else None if new is None else self._step_of(new)
        if before != after:
            if before is not None:
                changes[_key_at(_LAST_STEP - before, branch)] = None
            if after is not None:
                changes[_key_at(_LAST_STEP - after, branch)] = b""
        key = LABELS + ref
        if new is not None and order is not None and key not in rows:
            if old is None or at != old or row is not None:
                changes[_ANY_KEY + branch] = b""
            self._note(ref, new, None, after)
            return changes, {}
        had = self._store.get(key) if row is None and old is not None else row
        has = None if new is None else rows.get(key, had)
        fresh = new is not None and has is not None and has[SET_BY] == new
        if order is None:
            self.forget(ref)  # of a commit that was there before, another program may know other labels
        else:
            self._note(ref, new, has if fresh else None, after)
        if not (fresh and has and had and had[SET_BY] == old and had[LABELS_AT] == has[LABELS_AT]):
            gone = set() if old is None else _label_keys(branch, old, _whole(had))
            made = set() if new is None else _label_keys(branch, new, _whole(has))
            changes |= dict.fromkeys(gone - made)
            changes |= dict.fromkeys(made - gone, b"")
        # If a branch came back to a commit, it may have other labels there than are known: the move fails.
        return changes, {} if old is None else {key: had}

    def _step_of(self, oid: ObjectId) -> int | None:
        with suppress(CorruptObject):
            commit = self._objects.find_commit(oid)
            return None if commit is None else commit.order >> _STEP
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
