"""Labels: plain data about a branch, by which listings find it.

They lie in one row beside the ref. A commit writes them in its own transaction, so no branch waits for
another one. With the branch they are copied, renamed and deleted. `BranchIndex` reads and finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from vstate.errors import InvalidInput
from vstate.objects.canonical import decode_checked, encode, encode_checked, plain
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.names.refs import HEADS, LABELS

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
