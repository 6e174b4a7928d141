"""Labels: plain data about a branch, by which listings find it.

They lie in one row beside the ref. A commit writes them in its own transaction, so no branch waits for
another one. With the branch they are copied, renamed and deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import KVStore
from vstate.objects.canonical import checked, decode_checked, encode, encode_checked, plain
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.names.refs import HEADS, LABELS, REF

Atom = str | int | float | bool | None
Label = Atom | list[Atom]
"""A list has several labels of one name: a listing finds the branch by each of them."""

MOST_BYTES: Final = 4096
_ATOMS: Final = (str, int, float, bool, type(None))
_AT: Final = slice(3, 3 + ID_BYTES)  # the commit's id in an encoded row
_TRUE: Final = encode(True)


class LabelRow(NamedTuple):
    """The labels of a branch, and the commit that set them: a branch elsewhere has moved since."""

    at: ObjectId
    labels: dict[str, Label]

    def encode(self) -> bytes:
        return encode_checked([self.at, self.labels])


def check_labels(labels: Mapping[str, Label]) -> dict[str, Label]:
    """The labels, with sorted names.

    Raises InvalidInput for values other than atoms and lists of atoms, and for more than 4,096 bytes.
    """
    found: dict[str, Label] = plain(dict(labels), "labels")
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


class Labels:
    """The labels of the branches of one store."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def read(self, branches: Iterable[str]) -> dict[str, LabelRow]:
        """The labels of those of the branches that have some."""
        rows = self._store.get_many([_key(branch) for branch in branches])
        return {key.removeprefix(_key("")): self._parsed(key, row) for key, row in rows.items()}

    def find(self, wanted: Mapping[str, Atom], prefix: str = "") -> set[str]:
        """The branches that begin with `prefix` and have all these labels.

        Perhaps also the names of branches that are gone.
        """
        check_labels(wanted)
        needed = [encode(part) for pair in wanted.items() for part in pair]
        found = set()
        for key, row, encoded in self._rows(prefix):
            # So most rows are not decoded.
            if all(part in encoded for part in needed):
                labels = self._parsed(key, row).labels
                if all(has_label(labels, name, atom) for name, atom in wanted.items()):
                    found.add(key.removeprefix(_key("")))
        return found

    def possible(self, wanted: Mapping[str, str], prefix: str) -> list[str]:
        """As `Core.possible_branches`."""
        values = [encode(value) for value in wanted.values()]
        ref, start = REF + HEADS, len(_key(""))
        heads = {key[len(ref) :]: value for key, value in self._store.items(ref + prefix)}
        for key, row, encoded in self._rows(prefix):
            branch = key[start:]
            if heads.get(branch) != encoded[_AT].hex().encode():
                continue
            about = encoded[_AT.stop :]
            for value in values:
                if value not in about and _TRUE not in about:
                    break  # so most rows are not decoded
            else:
                labels = self._parsed(key, row).labels
                if has_label(labels, "", True) or all(
                    has_label(labels, name, value) or has_label(labels, name, True)
                    for name, value in wanted.items()
                ):
                    continue
            del heads[branch]
        return sorted(heads)

    def rows_for(self, new: str, like: str) -> dict[str, bytes | None]:
        """The rows that give the branch `new` the labels of the branch `like`, in place of its own."""
        return {_key(new): self._store.get(_key(like))}

    def _rows(self, prefix: str) -> Iterator[tuple[str, bytes, bytes]]:
        """The keys and rows of labels, decoded. Damage could hide a label, so each row is checked."""
        for key, row in self._store.items(_key(prefix)):
            try:
                yield key, row, checked(row)
            except ValueError as error:
                raise self._damaged(key, error) from error

    def _parsed(self, key: str, row: bytes) -> LabelRow:
        try:
            return parse_labels(row)
        except ValueError as error:
            raise self._damaged(key, error) from error

    def _damaged(self, key: str, error: ValueError) -> CorruptStore:
        branch = key.removeprefix(_key(""))
        reason = f"the labels of branch {branch!r}: {error}"
        return CorruptStore(self._store.location, reason, repairable=True)


def label_rows(branch: str, at: ObjectId, labels: dict[str, Label]) -> dict[str, bytes | None]:
    """The row that gives a branch these labels, and no others, set by that commit."""
    return {_key(branch): LabelRow(at, labels).encode() if labels else None}


def has_label(labels: Mapping[str, Label], name: str, atom: Atom) -> bool:
    """Whether a label has this value, or is a list with it; 1, 1.0 and True are three values."""
    label, wanted = labels.get(name), encode(atom)
    options = label if isinstance(label, list) else [label]
    return name in labels and any(encode(option) == wanted for option in options)


def _key(branch: str) -> str:
    return LABELS + HEADS + branch
