"""Overview: the branches of a store in which HEAD's branch has no commit, as in that of an adapter."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.cells import cell_len

from vstate.display import branches
from vstate.plural import counted
from vstate.repo.repository import Repository
from vstate_cli.output import Line, Output, columns, padded, safe

_SHOWN = 8
_WIDEST_NAME = 60


def lines(repo: Repository, out: Output, command: str) -> Iterator[Line]:
    """The newest branches, one a line, and how `command` looks at one of them; nothing for an empty store."""
    found, every = branches.newest(repo, _SHOWN)
    if not found:
        return
    head = repo.refs.head()
    if head.commit is None:
        yield [f"{safe(head.branch or '')} has no commit. The store has ", (branches.summary(every), "bold")]
    width = min(max(cell_len(safe(branch.title)) for branch in found), _WIDEST_NAME)
    for branch in found:
        count = branch.count(repo)
        number = f"{count}+ commits" if count == branches.MOST_COUNTED else counted(count, "commit")
        line: Line = [
            ("  ", ""), (padded(safe(branch.title), width), "bold green"), f"  {number:>12}  ",
            (out.moment(branch.commit.time), "dim"), "  ",
        ]  # fmt: skip
        yield [*line, out.fit(safe(branch.commit.subject), columns(line))]
    if len(every) > len(found):
        yield [(f"  … {len(every) - len(found):,} more: vstate branch -v", "dim")]
    command = "log -p" if command == "diff" else command  # `diff BRANCH` would compare it with HEAD
    yield [("Look at one: ", "dim"), f"vstate {command} {shlex.quote(safe(found[0].title))}"]
