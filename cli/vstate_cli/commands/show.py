"""`vstate show`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import click

from vstate.display import documents
from vstate.display.chats import chat_view, in_brief
from vstate.errors import InvalidInput, KeyNotFound, NotFound, StorageError
from vstate.objects.commit import Commit
from vstate.plural import counted
from vstate.repo.compare.diff import Diff
from vstate.repo.compare.paths import part_at
from vstate.values.entry import FILE, PICKLE, Entry
from vstate.values.file import File
from vstate.values.inspection import describe
from vstate.values.plain import plain
from vstate_cli import changes, commits, values
from vstate_cli.output import Document, Line, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import PLACE, Count

_MOST_KEYS = 50
_MOST_BELOW = 1000
_MOST_DETAILS = 10
_LONGEST_READ = 4_000_000  # bytes of a value that is shown beside its key
_MOST_EVENTS = 50
_MOST_ITEMS = 2_000_000  # numbers and texts in the lists and arrays of a value in the JSON


@command(
    "show",
    dated=True,
    paged=True,
    reads=True,
    examples=[
        "vstate show",
        "vstate show v1 plan",
        "vstate show messages '[3].content'",
        "vstate show plan --json",
        "vstate show HEAD~1 files/logo.png -o logo.png",
    ],
    json="for a commit, {id, parents, tree, time, message, info, refs, events: [{kind, time, namespace, "
    "data}], changes: [{key, kind, old, new}]}; old and new are {type, size} with the size in bytes, or "
    "null. Of a commit that a reader shows, state is a list of {key, type, size}. For a value, {commit, "
    "key, type, size, value}, with path if one is given; type and size are those of the whole value. Data "
    "that JSON cannot hold is an object with a key that starts with $, as $type for the class of an object. "
    "If the value cannot be read, value is null and error says why. For the keys below KEY, {commit, keys: "
    "[{key, type, size, value}]}, each with error in the same way.",
)
@click.argument("words", nargs=-1, metavar="[REV] [KEY] [PATH]", type=PLACE)
@click.option(
    "--limit",
    type=Count(min=1),
    help="With --json, write at most N parts of the value. Default: 100,000, and 2,000,000 numbers and texts "
    'in lists and arrays. {"$more": n}, or omitted for an array, counts the parts left out.',
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the bytes of a File, a str or bytes to FILE; - is standard output.",
)
def show(session: Session, words: tuple[str, ...], limit: int | None, output: str | None) -> None:
    """Show a commit, or the value of a key.

    Show the commit REV (default: HEAD) with its events and changes, and with its state on the branch of an
    adapter. With KEY, show the value of KEY at REV. A single argument that is no revision is a key of HEAD.
    REV:KEY means the same as REV KEY. PATH names a part of the value, in the form that `vstate diff` prints.

    A KEY that has keys below it, such as the name of a Conversation, shows these keys.

    A frame of pandas or pyarrow is a table, an array has its dtype, shape and range, and a list of messages
    is a conversation. Their parts have paths, such as price[3] for a cell. A File is shown as its text or
    bytes; a terminal also shows the kind of the File, and the target of a link.
    """
    commit, key, path = session.place(words)
    if key is not None:
        _show_value(session, commit, key, path, limit, output)
    elif output is not None:
        raise click.UsageError("-o writes the bytes of a value: name its KEY.")
    else:
        _show_commit(session, commit)


def _show_commit(session: Session, commit: Commit) -> None:
    repo, diff = session.repo, session.repo.changes(commit)
    names = session.refs().get(commit.id, [])
    document: Document = {}
    if session.json:
        document = documents.commit_document(commit, names, shallow=repo.history.is_shallow(commit))
        if session.is_read(commit):
            entries = repo.entries(commit.root)
            document["state"] = [{"key": key} | documents.entry_document(entry) for key, entry in entries]
        document["events"] = documents.event_documents(commit)
        document["changes"] = [documents.change_document(change) for change in diff.values()]
    session.answer(document, chain(_head_lines(session, commit, names), _change_lines(session, commit, diff)))


def _head_lines(session: Session, commit: Commit, names: list[str]) -> Iterator[Line]:
    out, repo = session.out, session.repo
    yield [(f"commit {commit.id}", "yellow"), *commits.decoration(names, commit.id, repo.refs.head())]
    if len(commit.parent_ids) > 1:
        yield [("merge:  ", "dim"), " ".join(parent.short for parent in commit.parent_ids)]
    elif commit.parent_ids:
        yield [("parent: ", "dim"), commit.parent_ids[0].short]
    if repo.history.is_shallow(commit):
        yield ["        ", (commits.CUT_OFF, "yellow")]
    yield [("time:   ", "dim"), out.moment(commit.time)]
    for number, item in enumerate(commits.info_lines(commit.info)):
        yield ["        " if number else ("info:   ", "dim"), *item]
    if commit.message.strip():
        yield []
        for text in commit.message.strip().split("\n"):
            yield ["    ", safe(text)]
    if commit.events:
        yield []
        for event in islice(commit.events, _MOST_EVENTS):
            yield ["  ", *commits.event_line(event, out)]
    if len(commit.events) > _MOST_EVENTS:
        more = counted(len(commit.events) - _MOST_EVENTS, "more event")
        yield [(f"  … {more} (--json has them all)", "dim")]


def _change_lines(session: Session, commit: Commit, diff: Diff) -> Iterator[Line]:
    """The state of a commit that a reader shows, and the changed keys."""
    if session.is_read(commit):
        yield []
        entries = [*islice(session.repo.entries(commit.root), _MOST_KEYS + 1)]
        yield from (["  ", *line] for line in _key_lines(session, entries[:_MOST_KEYS]))
        if len(entries) > _MOST_KEYS:
            yield [(f"  … more (vstate ls {commit.short} has them all)", "dim")]
    if not diff:
        return
    yield []
    keys = [*islice(diff, _MOST_KEYS)]
    width = changes.name_width(keys)
    lines = changes.diff_lines(diff, session.out, keys, limit=_MOST_DETAILS, used=2, width=width)
    yield from (["  ", *line] for line in lines)
    if len(diff) > _MOST_KEYS:
        parent = f"{commit.short}^" if session.repo.history.parents(commit) else ""
        more = f"vstate diff {parent} {commit.short}" if parent else f"vstate ls {commit.short}"
        yield [(f"  … {counted(len(diff) - _MOST_KEYS, 'more key')} ({more} has them all)", "dim")]


def _show_folder(session: Session, commit: Commit, below: list[tuple[str, Entry]], limit: int | None) -> None:
    """Show the keys below a name: as a conversation, if each is a message, or each in words."""
    out = session.out
    if session.json:
        nodes = limit or _MOST_ITEMS // len(below)
        shown = []
        for key, entry in below:
            found = _value_document(_read(session, key, entry), nodes)
            shown.append({"key": key} | documents.entry_document(entry) | found)
        out.json({"commit": commit.id, "keys": shown})
        return
    size = sum(entry.size for _, entry in below)
    read = [_read(session, key, entry) for key, entry in below] if size <= _LONGEST_READ else []
    view = None if any(reason for _, reason in read) else chat_view([value for value, _ in read])
    if view is None:
        out.lines(_key_lines(session, below))
    else:
        out.lines(values.chat_lines(view, out.width or values.NARROW))
    if len(below) == _MOST_BELOW:
        out.note(f"these are the first {_MOST_BELOW:,} keys; vstate ls has them all")


def _key_lines(session: Session, shown: list[tuple[str, Entry]]) -> Iterator[Line]:
    width = changes.name_width(key for key, _ in shown)
    for key, entry in shown:
        value, reason = _read(session, key, entry) if entry.size <= _LONGEST_READ else (None, "long")
        text = describe(entry) if reason is not None else in_brief(value)
        yield [padded(safe(key), width), "  ", session.out.fit(safe(text), width + 4)]


def _read(session: Session, key: str, entry: Entry) -> tuple[object, str | None]:
    """The value, and why it cannot be read. Damage fails the command once the others are shown."""
    try:
        return session.repo.inspect(key, entry.raw), None
    except values.UNREADABLE as error:
        return None, str(error)
    except StorageError as error:
        session.out.damage = session.out.damage or error
        return None, str(error)


def _value_document(read: tuple[object, str | None], nodes: int | None) -> Document:
    """A value of at most so many parts; of None, those in lists and arrays count for less."""
    value, reason = read
    shown = plain(value, max_items=_MOST_ITEMS) if nodes is None else plain(value, max_nodes=nodes)
    return {"value": shown, **({} if reason is None else {"error": reason})}


def _show_value(
    session: Session, commit: Commit, key: str, path: str | None, limit: int | None, output: str | None
) -> None:
    out, repo = session.out, session.repo
    entry = repo.entry(commit.root, key)
    below = session.keys_below(commit, key, _MOST_BELOW) if entry is None and path is None else []
    if below:
        _show_folder(session, commit, below, limit)
        return
    if entry is None:
        similar = session.similar_keys(commit, key)
        raise NotFound(f"{KeyNotFound(key)} at {commit.short}", name=key, candidates=similar)
    if output is not None:
        if path is not None:
            raise click.UsageError("-o writes a whole value: leave PATH out.")
        _write(session, key, entry, output)
        return
    value, reason = _read(session, key, entry)
    if path is not None and reason is None:
        value = part_at(value, path)
    if session.json:
        where = {"commit": commit.id, "key": key, **({} if path is None else {"path": path})}
        out.json(where | documents.entry_document(entry) | _value_document((value, reason), limit))
        return
    if out.is_terminal or reason is not None:
        place = "" if path is None else f" {safe(path)}"
        out.line((f"{safe(key)}{place}", "bold"), (f"  {safe(describe(entry))}, at {commit.short}", "dim"))
    if reason is not None:
        out.line((f"({safe(reason)})", "yellow"))
        return
    if entry.codec == FILE and isinstance(value, str):
        out.text(value)
    else:
        values.write_value(value, out)


def _write(session: Session, key: str, entry: Entry, output: str) -> None:
    """Write the bytes of a File, a text or bytes to a file, or to standard output."""
    value = None if entry.codec == PICKLE else session.repo.load(key, entry.raw).value
    data = value.data if isinstance(value, File) else value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        raise InvalidInput(f"{key!r} is a {entry.type}, which has no bytes to write; --json shows its data")
    if output != "-":
        Path(output).write_bytes(data)
    elif session.out.is_terminal:
        raise click.UsageError("A terminal cannot show bytes: name a FILE, or redirect the output.")
    else:
        sys.stdout.buffer.write(data)
