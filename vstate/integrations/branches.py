"""Branches: the name of a branch, made of the ids of a framework, and its deletion."""

from __future__ import annotations

from vstate.arguments import check_text
from vstate.errors import NotFound, RefMoved
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path, split_path
from vstate.repo.names.refs import check_ref_name, quote_ref, unquote_ref
from vstate.repo.repository import Repository


def branch_of(*parts: str) -> str:
    """The branch of these texts, with "/" between them. No two tuples of parts share a branch.

    The name is that of `join_path`, quoted as a ref: a "/" in a part becomes "%252f". Stores hold such names,
    so they stay. Raises TypeError for a part that is no str, and InvalidInput if the name has more than 200
    characters.
    """
    return check_ref_name(quote_ref(join_path(*(check_text("an id", part) for part in parts))))


def parts_of(branch: str) -> tuple[str, ...]:
    """The texts that `branch_of` made this branch of; InvalidInput for any other branch."""
    return split_path(unquote_ref(branch))


def delete_branch(repo: Repository, branch: str, *, forget: bool = False) -> Commit | None:
    """Delete a branch, with the commits that arrive meanwhile; its newest commit, None if there is none.

    The reflog keeps it for 30 days. With `forget`, it is removed at once.
    """
    while True:
        try:
            return repo.delete_branch(branch, forget=forget)
        except NotFound:
            return None
        except RefMoved:
            continue
