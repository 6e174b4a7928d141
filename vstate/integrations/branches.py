"""Branches: the name of a branch, made of the ids of a framework, and its deletion."""

from __future__ import annotations

from urllib.parse import unquote

from vstate.arguments import check_text
from vstate.errors import InvalidInput, NotFound, RefMoved
from vstate.objects.commit import Commit
from vstate.repo.names.refs import check_ref_name, quote_ref
from vstate.repo.repository import Repository


def branch_of(*parts: str) -> str:
    """The branch of these texts, with "/" between them. No two tuples of parts share a branch.

    Each part is quoted as by `quote_ref`, and a "/" in it becomes "%2F". Raises TypeError for a part that is
    no str, and InvalidInput if the name has more than 200 characters.
    """
    return check_ref_name(
        "/".join(quote_ref(check_text("an id", part)).replace("/", "%2F") for part in parts)
    )


def parts_of(branch: str) -> tuple[str, ...]:
    """The texts that `branch_of` made this branch of; InvalidInput for any other branch."""
    parts = tuple("" if part == "%" else unquote(part, errors="replace") for part in branch.split("/"))
    if branch_of(*parts) != branch:
        raise InvalidInput(f"branch_of makes no branch like {branch!r}")
    return parts


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
