"""Branches: the name of a branch, made of the ids of a framework, and the ids of a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from blake3 import blake3

from vstate.arguments import check_text
from vstate.errors import InvalidInput
from vstate.patterns.paths import join_path, split_path
from vstate.repo.names.refs import LONGEST_NAME, check_ref_name, percent_encoded, unquote_ref
from vstate.repo.repository import Repository
from vstate.repo.rules.labels import Atom, Label

IDS: Final = "vstate.ids"
"""The label with the ids of a branch whose name is shortened."""

_HASHED: Final = "%%"  # no name that is not shortened has it
_LONGEST_PART: Final = 60  # of a shortened name; three of these and a prefix are a name
_DIGITS: Final = 32
_MOST_BYTES: Final = 1024  # of the ids, so that a key and a label take them


class BranchName(str):
    """The name of a branch, with the labels that its first commit sets."""

    labels: Mapping[str, Label] | None = None


def branch_of(*parts: str) -> BranchName:
    """The branch of these texts, with "/" between them. No two tuples of parts share a branch.

    The name is that of `join_path`, quoted as a ref: a "/" in a part becomes "%252f". Stores hold such names,
    so they stay. If that has more than 200 characters, each long part ends with its hash instead, and a label
    has the parts. Raises TypeError for a part that is no str, and InvalidInput for more than 1,024 bytes.
    """
    name = percent_encoded(join_path(*_checked(parts)))
    if len(name) <= LONGEST_NAME:
        return BranchName(check_ref_name(name))
    return _shortened("/".join(map(_short, parts)), parts)


@lru_cache(1024)
def branch_below(prefix: str, text: str) -> BranchName:
    """The branch of a text below a prefix: quoted as `quote_ref` does, or shortened as in `branch_of`."""
    name = percent_encoded(*_checked([text]))
    if len(prefix) + len(name) <= LONGEST_NAME:
        return BranchName(check_ref_name(prefix + name))
    branch = _shortened(prefix + _hashed(name, text), [text])
    branch.labels = {IDS: [text], "": True}  # which rules no filter out, see `Repository.possible_branches`
    return branch


def parts_of(branch: str) -> tuple[str, ...]:
    """The texts that `branch_of` made this name of; InvalidInput for any other, and for a shortened one."""
    return split_path(unquote_ref(branch))


def beginnings(*parts: str) -> list[str]:
    """What the names of all branches begin with whose texts begin with these."""
    return sorted({f"{percent_encoded(join_path(*_checked(parts)))}/", f"{'/'.join(map(_short, parts))}/"})


def branches_below(
    repo: Repository, *parts: str, labels: Mapping[str, Atom] = MappingProxyType({})
) -> dict[str, tuple[str, ...]]:
    """The branches of all tuples of texts that begin with these, and the tuples; those with all labels."""
    names = [name for start in beginnings(*parts) for name in repo.branch_names(start, labels=labels)]
    found = {}
    for name, known in ids_of(repo, names).items():
        try:
            ids = known or parts_of(name)
            if branch_of(*ids) == name:
                found[name] = ids
        except InvalidInput:
            continue  # another program made the branch
    return found


def texts_below(repo: Repository, prefix: str, names: Iterable[str]) -> dict[str, str]:
    """The texts that `branch_below` made these names of. It leaves out a name that another program made."""
    found = {}
    for name, ids in ids_of(repo, names).items():
        try:
            text = ids[-1] if ids else unquote_ref(name.removeprefix(prefix))
            if branch_below(prefix, text) == name:
                found[name] = text
        except InvalidInput:
            continue
    return found


def ids_of(repo: Repository, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The ids of the branches with shortened names by their labels; none for the other names."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    short = [name for name in found if _HASHED in name]
    for name, labels in (repo.labels(short) if short else {}).items():
        ids = labels.get(IDS)
        if isinstance(ids, list):
            found[name] = tuple(map(str, ids))
    return found


def _checked(parts: Iterable[str]) -> list[str]:
    texts = [check_text("an id", part) for part in parts]
    if sum(map(len, texts)) > _MOST_BYTES // 4:
        size = len("".join(texts).encode(errors="replace"))
        if size > _MOST_BYTES:
            raise InvalidInput(
                f"the ids {', '.join(f'{text[:20]!r}…' for text in texts if len(text) > 20)} have {size:,} "
                f"bytes, and {_MOST_BYTES:,} are the most"
            )
    return texts


def _short(part: str) -> str:
    name = percent_encoded(join_path(part))
    return name if len(name) <= _LONGEST_PART else _hashed(name, part)


def _hashed(name: str, text: str) -> str:
    """The readable beginning of a name, and the hash of its text."""
    begin = name[: _LONGEST_PART - _DIGITS - len(_HASHED)].rstrip("./")
    return f"{begin}{_HASHED}{blake3(join_path(text).encode()).hexdigest(length=_DIGITS // 2)}"


def _shortened(name: str, parts: Iterable[str]) -> BranchName:
    if len(name) > LONGEST_NAME:
        raise InvalidInput(
            f"the ids {', '.join(f'{part[:20]!r}…' for part in parts if len(part) > 20)} are too long "
            f"together: their branch would have {len(name)} characters in its name, and {LONGEST_NAME} are "
            "the most"
        )
    branch = BranchName(check_ref_name(name))
    branch.labels = {IDS: list(parts)}
    return branch
