"""Labels: plain data about a branch, by which listings find it.

They lie in one row beside the ref. A commit writes them in its own transaction, so no branch waits for
another one. With the branch they are copied, renamed and deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import KVStore
from vstate.objects.canonical import encode, plain
from vstate.repo.checked_row import checked, decode_checked, encode_checked
from vstate.repo.names.refs import HEADS, LABELS

Atom = str | int | float | bool | None
Label = Atom | list[Atom]
"""A list has several labels of one name: a listing finds the branch by each of them."""

_MOST_BYTES: Final = 4096
_ATOMS: Final = (str, int, float, bool, type(None))


def encode_labels(labels: Mapping[str, Label]) -> bytes | None:
    """The row of these labels; None, no row, if there are none.

    Raises InvalidInput for values other than atoms and lists of atoms, and for more than 4,096 bytes.
    """
    found = plain(dict(labels), "labels")
    for name, label in found.items():
        for atom in label if isinstance(label, list) else [label]:
            if not isinstance(atom, _ATOMS):
                raise InvalidInput(
                    f"labels[{name!r}] is {type(atom).__name__}: a label is text, a number, True, False or "
                    "None, or a list of these"
                )
    row = encode_checked(found)
    if len(row) > _MOST_BYTES:
        raise InvalidInput(
            f"labels take {len(row):,} bytes, and {_MOST_BYTES:,} are the most: keep the data in the branch, "
            "and only a few words to find it by here"
        )
    return row if found else None


def parse_labels(row: bytes) -> dict[str, Label]:
    """The labels in a row; ValueError if the row is damaged."""
    labels = decode_checked(row)
    if not isinstance(labels, dict):
        raise ValueError("it holds no labels")
    return labels


class Labels:
    """The labels of the branches of one store."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def read(self, branches: Iterable[str]) -> dict[str, dict[str, Label]]:
        """The labels of those of the branches that have some."""
        rows = self._store.get_many([_key(branch) for branch in branches])
        return {key.removeprefix(_key("")): self._parsed(key, row) or {} for key, row in rows.items()}

    def find(self, wanted: Mapping[str, Atom], prefix: str = "") -> set[str]:
        """The branches that begin with `prefix` and have all these labels.

        Perhaps also the names of branches that are gone.
        """
        encode_labels(wanted)
        needed = [encode(part) for pair in wanted.items() for part in pair]
        found = set()
        for key, row in self._store.items(_key(prefix)):
            labels = self._parsed(key, row, needed)
            if labels is not None and all(_has(labels, name, atom) for name, atom in wanted.items()):
                found.add(key.removeprefix(_key("")))
        return found

    def rows_for(self, new: str, like: str) -> dict[str, bytes | None]:
        """The rows that give the branch `new` the labels of the branch `like`, in place of its own."""
        return {_key(new): self._store.get(_key(like))}

    def _parsed(self, key: str, row: bytes, needed: Iterable[bytes] = ()) -> dict[str, Label] | None:
        """The labels in the row; None if it lacks bytes that are needed.

        So most rows of a listing are not decoded. Damage could hide the bytes, so each row is checked.
        """
        try:
            encoded = checked(row)
            for part in needed:
                if part not in encoded:
                    return None
            return parse_labels(row)
        except ValueError as error:
            branch = key.removeprefix(_key(""))
            reason = f"the labels of branch {branch!r}: {error}; `vstate fsck --repair` moves them aside"
            raise CorruptStore(self._store.location, reason) from error


def label_rows(branch: str, labels: Mapping[str, Label]) -> dict[str, bytes | None]:
    """The row that gives a branch these labels, and no others."""
    return {_key(branch): encode_labels(labels)}


def _has(labels: Mapping[str, Label], name: str, atom: Atom) -> bool:
    """Whether a label has this value, or is a list with it; 1, 1.0 and True are three values."""
    label, wanted = labels.get(name), encode(atom)
    options = label if isinstance(label, list) else [label]
    return name in labels and any(encode(option) == wanted for option in options)


def _key(branch: str) -> str:
    return LABELS + HEADS + branch
