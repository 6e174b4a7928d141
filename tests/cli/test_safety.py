"""Hostile and broken data in a store: the command shows it, and runs nothing."""

import json
import os
import pickle

import pytest
from stores import commit

from vstate import Disk, Versioned
from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.objects.ids import ID_BYTES
from vstate.repo.repository import Repository
from vstate.values.entry import BYTES, PICKLE

LISTED = (
    "log, log --graph --oneline, log --key evil, log --json, show, show --json, show HEAD evil, "
    "show HEAD evil --json, diff, diff --json, diff HEAD~1 HEAD --stat, ls, ls -l, ls --json, branch, tag, "
    "status, reflog, blame evil, blame evil --json"
)
COMMANDS = [command.split() for command in LISTED.split(", ")]


def plant(store, key: str, entry: bytes) -> None:
    """Commit an entry that no program would write."""
    with Disk(store) as disk:
        repo = Repository(disk)
        head = repo.branch("main")
        root, objects, nodes = tree.update(repo.objects.node, head.root, {key: entry})
        commit = repo.build_commit(root, (head,), message="planted")
        assert repo.publish("main", [commit], objects, nodes, expected=head.oid, action="plant")


def plant_pickle(store, key: str, data: bytes) -> None:
    plant(store, key, encode([PICKLE, [data], len(data), "app.Thing"]))


class Evil:
    """Loading it makes a directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.slow
def test_no_command_unpickles(store, run_without_unpickling):
    """All commands work in a process in which any unpickling ends the process."""
    for number in range(3):
        plant_pickle(store, "evil", pickle.dumps([Evil("x"), number]))
    more = (
        "show HEAD plan, diff v1, blame evil [1], bisect evil missing||value[1]<`1` --good v1, "
        "bisect evil missing||value[0]!=value[0] --good v1, undo, undo --redo, checkout v1, checkout main, "
        "rollback v1, branch b, tag t"
    )
    run_without_unpickling([*COMMANDS, *(command.split() for command in more.split(", "))])


@pytest.mark.parametrize("data", [b"garbage", b"", b"\x80\x05]", b"(" * 1000 + b"."])
def test_a_pickle_that_makes_no_sense(vstate, store, data):
    """A malformed pickle is marked in place, and all other values are shown."""
    plant_pickle(store, "broken", data)
    plant_pickle(store, "good", pickle.dumps([1]))
    text = vstate("diff", "HEAD~2")
    assert "+ broken  app.Thing, " in text
    assert "    (cannot read this pickle: " in text
    assert "+ good  app.Thing, " in text
    assert "    [1]\n" in text
    assert "(cannot read this pickle: " in vstate("show", "broken")
    document = vstate.json("show", "broken")
    assert document["value"] is None
    assert document["error"].startswith("cannot read this pickle: ")
    changes = vstate.json("diff", "HEAD~2")["changes"]
    assert changes[0]["error"].startswith("cannot read this pickle: ")
    plant_pickle(store, "good/bad", data)
    (below,) = vstate.json("show", "good/")["keys"]
    assert below["error"].startswith("cannot read this pickle: ")
    assert "details" in changes[1]


@pytest.mark.slow
def test_blame_of_many_parts_that_are_one_long_text_is_bounded(vstate, store):
    """The values of all parts share one limit, as lines and as JSON. Before, they took 100 MB."""
    text = b"\x8d" + (10_000).to_bytes(8, "little") + b"\1" * 10_000
    plant_pickle(store, "laugh", b"\x80\x05" + text + b"\x940](" + b"h\0" * 2_500 + b"e.")
    assert 100 < len(vstate("blame", "laugh")) < 2_000
    assert 1_000_000 < len(vstate("blame", "laugh", "--json")) < 25_000_000
    plant_pickle(store, "itself", b"\x80\x05]\x94(" + (b"](" + b"h\0" * 20 + b"e") * 2_000 + b"e.")
    assert 100 < len(vstate("blame", "itself")) < 2_000


SESSIONS = {
    "a hostile pickle is shown as the call that it is": """
        >>> plant_pickle(store, "evil", pickle.dumps(Evil("x")))
        show evil -> <MKDIR('x')>
        show evil ? value -> {"$type": "MKDIR", "$called": true, "$args": ["x"]}
        diff -> + evil app.Thing, <size> / <MKDIR('x')>
    """,
    "a huge value is described, not read": """
        >>> plant(store, "big", encode([BYTES, [bytes(ID_BYTES), 10**9], 10**9, "bytes"]))
        show big -> big bytes, <size>, at <id> / (...too long to show...)
        diff -> + big bytes, <size> / (...too long to show...)
        ls -l -> <size> bytes big / ...
    """,
    "a malformed entry does not affect the other keys": """
        >>> plant(store, "bad", b"\\x93\\x01\\x02\\x03")
        ls -> bad / messages / ...
        ls ? [0] -> {"key": "bad", "type": null, "size": null}
        diff -> [1] + bad an unreadable entry / ...
        diff --stat ? changes[0].[key, length(error) > `9`] -> ["bad", true]
        show bad -> [1] vstate: ...is corrupt: the entry of 'bad'...
    """,
    "a missing object fails the command after all the rest": """
        >>> commit(store, a=b"a" * 1000, b="whole", **{"part/a": b"a" * 1000, "part/b": "whole"})
        >>> lose(store, "a")
        show part -> [1] part/a bytes, <size> / part/b 'whole' / vstate: object ...
        show part ? keys[*].[value, type(error)] -> [1] [[null, "string"], ["whole", "null"]] / vstate: ...
        diff -> [1] + a bytes, <size> / (...is corrupt: it is missing...) / + b str, <size> / 'whole' / ...
            ... vstate: object ...
        show -> [1] commit <ID>...is corrupt: it is missing...'whole'... / vstate: object ...
        diff ? length(changes) -> [1] 4 / vstate: ...
        show a -> [1] ...is corrupt: it is missing... / vstate: ...
        show a ? value -> [1] null / vstate: ...
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, session):
    """Each session has the output that is written here."""
    formats = {"encode": encode, "BYTES": BYTES, "ID_BYTES": ID_BYTES, "pickle": pickle}
    rows(
        SESSIONS[session],
        plant=plant,
        plant_pickle=plant_pickle,
        Evil=Evil,
        lose=lose,
        MKDIR=f"{os.mkdir.__module__}.{os.mkdir.__qualname__}",
        **formats,
    )


def lose(store, key):
    """Delete the objects of the value."""
    with Disk(store) as disk:
        repo = Repository(disk)
        entry = repo.entry(repo.branch("main").root, key)
        assert entry is not None
        for link in entry.links:
            disk.delete(f"o/{link.id}")


NASTY = "\x1b]0;title\x07 \x1b[2J \x9b31m [bold red]x[/] :smile: \r\n‮ \u2028 \\ 'q' \"q\""


def test_control_characters_cannot_drive_the_terminal(vstate, store):
    """Keys, values, messages, info, events and class names are escaped, and rich's markup has no effect."""
    with Versioned(Disk(store)) as state:
        state[f"key {NASTY}"] = [NASTY, {NASTY: 1}]
        state["lines"] = f"first\n{NASTY}\nlast"
        state["sides"] = NASTY
        state.record(f"kind {NASTY}", **{NASTY: NASTY})
        state.commit(f"subject {NASTY}\nbody {NASTY}", **{NASTY: NASTY}, outcome=NASTY)
        state["sides"] = f"{NASTY}!"
        state["lines"] = f"first\n{NASTY}!\nlast"
        state.commit("again")
    plant(store, "evil", encode([PICKLE, [b"N."], 2, f"type {NASTY}"]))
    plain = "show HEAD~2, show HEAD~1, show lines, show sides, diff HEAD~3, rollback HEAD"
    nasty = [[command, f"no {NASTY}"] for command in ("show", "checkout")]
    nasty += [["show", f"key {NASTY}"], ["blame", f"key {NASTY}"], ["log", "--key", NASTY]]
    for arguments in [*COMMANDS, *nasty, *(command.split() for command in plain.split(", "))]:
        result = vstate.run(*arguments)
        for char in result.stdout + result.stderr:
            assert char.isprintable() or char == "\n", (arguments, char)
    assert "[bold red]x[/] :smile:" in vstate("ls")


def test_json_is_exact_and_ascii(vstate, store):
    """JSON keeps the exact text that the output for people escapes."""
    commit(store, NASTY, **{NASTY: [NASTY, "\ud800", float("nan"), b"\xff", {1: 2}]})
    text = vstate("ls", "--json")
    assert text.isascii()
    assert NASTY in [entry["key"] for entry in json.loads(text)]
    value = vstate.json("show", "HEAD", NASTY)["value"]
    assert value == [NASTY, "\ud800", {"$float": "nan"}, {"$bytes": "/w=="}, {"$dict": [[1, 2]]}]
