"""A story: a history in which the state after every commit follows from its number alone.

So a test knows the right values of any commit by its message, after any accident to the store.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from vstate import Commit, Versioned
from vstate.repo import Repository

RECENT = 20
PAGES = 4


def state_after(number: int) -> dict[str, Any]:
    """The values of the branch after the commit of this number."""
    found: dict[str, Any] = {}
    for last in (number, number - 1):
        if last > 0:
            side = f"{last % 2}/"
            found[side + "number"] = last
            found[side + "recent"] = [n for n in range(last % 2, last + 1, 2) if n > 0][-RECENT:]
            for told in range(last, max(0, last - 2 * PAGES), -2):
                found[f"{side}page/{told // 2 % PAGES}"] = _page(told)
    return found


def _page(number: int) -> dict[str, Any]:
    # From empty to more than a chunk, so entries, blobs and streams all occur.
    return {"number": number, "noise": random.Random(number).randbytes(number % 7 * 3000)}


def tell(state: Versioned, number: int) -> None:
    """Make the changes of this number. Odd and even numbers touch disjoint keys, so they merge."""
    side = f"{number % 2}/"
    state[side + "number"] = number
    recent = state.setdefault(side + "recent", [])
    recent.append(number)
    del recent[:-RECENT]
    state[f"{side}page/{number // 2 % PAGES}"] = _page(number)


def number_of(commit: Commit | None) -> int:
    """The number at the end of a commit's message; 0 for None."""
    return 0 if commit is None else int(commit.message.rsplit(maxsplit=1)[-1])


def chain(repo: Repository, branch: str = "main") -> Iterator[Commit]:
    """The commits of a branch from the newest back, along first parents."""
    head = repo.refs.read(f"heads/{branch}")
    return iter(()) if head is None else repo.history.first_parents(head)


def check_story(store_or_repo: Any, *, looked_at: int = 3, every: int = 0, begin: int | None = 1) -> int:
    """Check that main tells its story from commit `begin` on, and return the number of its newest commit.

    Every number is there once, in order. The check compares the values of the newest `looked_at` commits, and
    of every `every`-th commit before them.
    """
    repo = store_or_repo if isinstance(store_or_repo, Repository) else Repository(store_or_repo)
    state = Versioned(repo.store, branch="main")
    newest = number = number_of(state.head)
    for place, commit in enumerate(chain(repo)):
        assert number_of(commit) == number, f"commit {number} is missing: found {commit.message!r}"
        if place < looked_at or (every and place % every == 0):
            found = dict(state.checkout(commit))
            assert found == state_after(number), f"commit {number} holds other values"
        number -= 1
        if place >= looked_at and not every:
            return newest
    assert begin in (None, number + 1), f"the history begins at {number + 1}, not at {begin}"
    return newest
