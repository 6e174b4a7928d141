"""`vstate diff`."""

from __future__ import annotations

from functools import partial

import click

from vstate.errors import InvalidInput
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.compare.diff import Diff
from vstate.repo.compare.paths import part_at
from vstate.repo.repository import Repository
from vstate.repo.search.selection import RANGE
from vstate.repo.sweeps import retry_after_sweep
from vstate_cli import changes
from vstate_cli.commits import id_of
from vstate_cli.session import Session, command
from vstate_cli.suggestions import KEY, REV_OR_KEY

_MOST_DETAILS = 200
_MOST_DETAILS_OF_ONE_KEY = 1000


@command(
    "diff",
    paged=True,
    reads=True,
    examples=[
        "vstate diff",
        "vstate diff HEAD~5 --stat",
        "vstate diff main what-if plan",
        "vstate diff v1 HEAD df price",
        "vstate diff v1 HEAD | git apply",
    ],
    json="{old, new, changes: [{key, kind, old, new, details: [{path, kind, old, new, note}]}]}. The "
    "outer old and new are ids of commits, old null before the first commit; those of a change are {type, "
    "size} with the size in bytes, or null. The change of a File also has lines, {added, removed}, and "
    "patch, a text. With --stat, details and patch are absent; if a value cannot be read, error stands in "
    "their place.",
)
@click.argument("args", nargs=-1, metavar="[A] [B] [KEY]... [PATH]", type=REV_OR_KEY)
@click.option(
    "--key",
    "named",
    multiple=True,
    type=KEY,
    help="Show only the change of this key. May be given several times.",
)
@click.option(
    "--stat",
    is_flag=True,
    help="Show only the keys with types and sizes, how many lines of Files changed, and the totals.",
)
def diff(session: Session, args: tuple[str, ...], named: tuple[str, ...], stat: bool) -> None:
    """Show the changes from revision A to revision B; with KEY, only those of these keys.

    Each key has a sign: + added, ~ modified, - removed. The changes inside its value follow, by path. B
    defaults to HEAD. Without arguments, show the changes of the last commit (HEAD~1 to HEAD); changes that
    a program has not yet committed exist only in that program. A..B means the same as A B; A...B are the
    changes of B since it parted from A. The first argument that is no revision is a key, and so are all
    behind it; a word behind one key that is no key is a PATH to the part that is compared.

    A text is compared by line and word, bytes by offset, an array by ranges of elements, and a frame of
    pandas or pyarrow by column and row: price[3] is the cell of the column price in the row labelled 3.

    The change of a File is a patch in the form of git. In a file or a pipe the patch is exact: `git apply`
    takes the patches of all Files, and ignores the changes of other keys. If a File is no UTF-8 text, its
    patch only says that the two versions differ.
    """
    revisions, wanted = _sort(session, args)
    wanted += named
    old, new, found = retry_after_sweep(session.repo, partial(_compare, session.repo, *revisions))
    path = ""
    if len(wanted) == 2 and not _has(session, wanted[1], old, new):
        path = wanted.pop()
    for key in wanted:
        if key not in found:
            _check_key(session, key, old, new, path)
    keys = [key for key in dict.fromkeys(wanted) if key in found] if wanted else [*found]
    out = session.out
    if session.json:
        before = {"old": id_of(old), "new": new.id}
        shown = changes.diff_documents(found, out, keys, is_inside=not stat, path=path)
        out.json_array(shown, before=before, name="changes")
        return
    limit = _MOST_DETAILS if len(wanted) != 1 else _MOST_DETAILS_OF_ONE_KEY
    limit, width = (0, changes.name_width(keys)) if stat else (limit, 0)
    out.lines(changes.diff_lines(found, out, keys, limit=limit, path=path, width=width, patches=not path))
    if stat and len(keys) == len(found):
        out.line((found.stat(), "dim"))


def _sort(session: Session, args: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The revisions among the arguments, at most two or one range, and the keys behind them."""
    revisions, words = list[str](), [*args]
    while words and len(revisions) < (1 if revisions and RANGE.fullmatch(revisions[0]) else 2):
        for side in [words[0]] if revisions else _sides(words[0]):
            commit, error = session.resolve_or_head(side)
            if error is not None:
                if not _is_key(session, words[0], [*revisions, commit.id]):
                    raise session.unknown(side, commit, error)
                return revisions, words
        revisions.append(words.pop(0))
    return revisions, words


def _sides(revision: str) -> list[str]:
    """The revisions in `A..B`, `A...B` or `A`; a side that is left out is HEAD."""
    match = RANGE.fullmatch(revision)
    return [revision] if match is None else [match["a"] or "HEAD", match["b"] or "HEAD"]


def _is_key(session: Session, name: str, revisions: list[str]) -> bool:
    """Whether one of these revisions, or the parent of the last, has the key."""
    repo = session.repo
    commits = [session.resolve_or_head(rev)[0] for each in revisions for rev in _sides(each)]
    commits += repo.history.before(commits[-1])
    return _has(session, name, *commits)


def _compare(
    repo: Repository, a: str | None = None, b: str | None = None
) -> tuple[Commit | None, Commit, Diff]:
    """The commits of both sides, and the changes between them."""
    match = None if a is None or b is not None else RANGE.fullmatch(a)
    if match is not None:
        a, b = _sides(match[0])
    if a is None:
        new = repo.resolve("HEAD")
        old = next(iter(repo.history.before(new)), None)
        return old, new, repo.changes(new)
    old, new = repo.resolve(a), repo.resolve("HEAD" if b is None else b)
    if match is not None and match["dots"] == "...":
        bases = repo.history.merge_bases(old.oid, new.oid)
        if not bases:
            raise InvalidInput(f"{a!r} and {b!r} have no commit in common; compare them by {a}..{b}")
        old = repo.objects.commit(bases[0])
    return old, new, repo.diff(old.root, new.root, [old, new])


def _has(session: Session, key: str, *commits: Commit | None) -> bool:
    """Whether one of the commits has the key."""
    return any(each is not None and session.repo.entry(each.root, key) is not None for each in commits)


def _check_key(session: Session, key: str, old: Commit | None, new: Commit, path: str) -> None:
    """Raise an error for a key or a part that neither side has: it is most likely misspelled."""
    data = tree.lookup(session.repo.objects.node, new.root, key)
    if data is None:
        where = f"{old.short} or {new.short}" if old is not None else new.short
        raise InvalidInput(f"no key {key!r} in {where}", candidates=session.similar_keys(new, key))
    if path:
        part_at(session.repo.inspect(key, data), path)
