"""`vstate show`."""

from __future__ import annotations

import re
from itertools import islice

import click

from vstate.errors import InvalidInput, KeyNotFound, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.values.inert import plain
from vstate.values.inspection import describe
from vstate_cli import documents, render
from vstate_cli.output import safe
from vstate_cli.session import Session, command, complete_key, complete_revision_or_key

_JOINED = re.compile(r"((?:@\{[^}]*\}|[^:@]|@(?!\{))*):(.*)", re.DOTALL)  # a time in braces may have colons
_MOST_KEYS = 50
_MOST_DETAILS = 10
_MOST_EVENTS = 50


@command(
    "show",
    examples=["vstate show", "vstate show HEAD~2", "vstate show v1 plan", "vstate show plan --json"],
    json="for a commit {id, parents, tree, time, message, info, refs, events: [{kind, time, namespace, data}], "
    "changes: [{key, kind, old, new}]} where old and new are {type, size in bytes} or null; for a value "
    '{commit, key, type, size, value}, what JSON cannot hold as an object with a key that starts with "$", '
    "such as $type for an object's class; value is null, and error says why, where it cannot be read.",
)
@click.argument("rev", required=False, shell_complete=complete_revision_or_key)
@click.argument("key", required=False, shell_complete=complete_key)
def show(session: Session, rev: str | None, key: str | None) -> None:
    """Show a commit, or the value of a key.

    A commit with its events and changes, HEAD without arguments; or the value of KEY at REV. A single argument that is no revision is a key of HEAD; REV:KEY
    means the same as REV KEY.
    """
    commit, key = _wanted(session, "HEAD" if rev is None else rev, key)
    if key is None:
        _show_commit(session, commit)
    else:
        _show_value(session, commit, key)


def _wanted(session: Session, rev: str, key: str | None) -> tuple[Commit, str | None]:
    """The commit and perhaps the key that the arguments mean."""
    if key is not None:
        return session.repo.resolve(rev), key
    found = session.try_resolve(rev)
    if isinstance(found, Commit):
        return found, None
    head = session.try_resolve("HEAD")
    if not isinstance(head, Commit):
        raise found
    if session.repo.entry(head.tree, rev) is not None:
        return head, rev
    if (match := _JOINED.fullmatch(rev)) is not None:
        return session.repo.resolve(match[1] or "HEAD"), match[2]
    # With candidates it is a name that nothing has; without, one that leads nowhere, and it says why.
    if isinstance(found, InvalidInput) or not (isinstance(found, NotFound) and found.candidates):
        raise found
    similar = [f"{name} (key)" for name in session.similar_keys(head, rev)]
    refs = [f"{name} (revision)" for name in found.candidates]
    raise NotFound(f"{rev!r} is neither a revision nor a key of HEAD", name=rev, candidates=[*similar, *refs])


def _show_commit(session: Session, commit: Commit) -> None:
    out, repo = session.out, session.repo
    changes = repo.changes(commit)
    names = session.refs().get(commit.id, [])
    if session.json:
        listed = [documents.change(change) for change in changes.values()]
        document = documents.commit(commit, names, shallow=repo.history.is_shallow(commit))
        documents.write(out, document | {"events": documents.events(commit), "changes": listed})
        return
    out.line((f"commit {commit.id}", "yellow"), *render.decoration(names, commit.id, repo.refs.head()))
    if len(commit.parents) > 1:
        out.line(("merge:  ", "dim"), " ".join(parent.short for parent in commit.parents))
    elif commit.parents:
        out.line(("parent: ", "dim"), commit.parents[0].short)
    if repo.history.is_shallow(commit):
        out.line("        ", ("the history behind it was cut off", "yellow"))
    out.line(("time:   ", "dim"), render.moment(commit.time))
    for number, item in enumerate(render.info_lines(commit.info)):
        out.line("        " if number else ("info:   ", "dim"), *item)
    if commit.message.strip():
        out.line()
        for text in commit.message.strip().split("\n"):
            out.line("    ", safe(text))
    if commit.events:
        out.line()
        for event in islice(commit.events, _MOST_EVENTS):
            out.line("  ", *render.event_line(event, out))
        if len(commit.events) > _MOST_EVENTS:
            out.line((f"  … {len(commit.events) - _MOST_EVENTS} more events (--json has them all)", "dim"))
    if not changes:
        return
    out.line()
    shown = [*islice(changes.values(), _MOST_KEYS)]
    width = render.name_width(change.key for change in shown)
    for change in shown:
        out.line("  ", *render.change_line(change, width))
        out.lines(render.change_details(changes, change, out, _MOST_DETAILS), indent="      ")
    if len(changes) > _MOST_KEYS:
        parent = f"{commit.short}^" if repo.history.parents(commit) else ""
        more = f"vstate diff {parent} {commit.short}" if parent else f"vstate ls {commit.short}"
        out.line((f"  … {len(changes) - _MOST_KEYS} more keys ({more} has them all)", "dim"))


def _show_value(session: Session, commit: Commit, key: str) -> None:
    out, repo = session.out, session.repo
    data = tree.lookup(repo.objects.node, commit.tree, key)
    if data is None:
        similar = session.similar_keys(commit, key)
        error = KeyNotFound(key)
        raise NotFound(f"{error} at {commit.short}", name=key, candidates=similar)
    entry = repo.parse_entry(key, data)
    reason, value = None, None
    try:
        value = repo.inspect(key, data)
    except documents.UNREADABLE as problem:
        reason = str(problem)
    if session.json:
        document = {"commit": commit.id, **documents.entry(key, entry), "value": plain(value)}
        documents.write(out, document | ({} if reason is None else {"error": reason}))
        return
    if out.is_terminal or reason is not None:
        what = f"{describe(entry)}, at {commit.short}"
        out.line((safe(key), "bold"), (f"  {safe(what)}", "dim"))
    if reason is not None:
        out.line((f"({safe(reason)})", "yellow"))
        return
    render.write_value(value, out)
