"""`vstate ls` and `vstate status`."""

import re

import pytest
from vstate_cli.commands import status


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("ls", "messages notes/a notes/b plan text"),
        ("ls notes/", "notes/a notes/b"),
        ("ls v1", "messages old plan text"),
        ("ls HEAD~1 notes/", "notes/a"),
        ("ls HEAD nothing", ""),
    ],
)
def test_ls(vstate, command, keys):
    """The keys are sorted, one a line. A single argument that is no revision is a prefix."""
    assert vstate(*command.split()) == "".join(f"{key}\n" for key in keys.split())
    listed = vstate.json(*command.split())
    assert [entry["key"] for entry in listed] == keys.split()
    assert all(isinstance(entry["type"], str) and isinstance(entry["size"], int) for entry in listed)


def test_ls_long(vstate):
    """-l adds size and type in aligned columns, and -a the expired keys, of which there is none here."""
    lines = vstate("ls", "-l").splitlines()
    assert re.fullmatch(r" +\d+ B  list +messages", lines[0])
    assert re.fullmatch(r" +[\d.]+ k?B  \S*Plan +plan", lines[3])
    assert len({line.index("notes/") for line in lines if "notes/" in line}) == 1
    assert vstate("ls", "-la").splitlines() == lines


def test_status(vstate, store):
    """status shows the position of HEAD, the counts and the size. JSON marks no count as a lower bound."""
    lines = dict(re.match(r"(\w*) +(.*)", line).groups() for line in vstate("status").splitlines())
    assert lines["store"].startswith(str(store))
    assert re.search(r"  [\d.]+ kB$", lines["store"])
    assert lines["branch"] == "main"
    assert re.fullmatch(r"[0-9a-f]{10} more", lines["head"])
    assert [lines[name] for name in ("commits", "branches", "tags", "keys")] == ["5", "2", "1", "5"]
    document = vstate.json("status")
    assert document["store"] == str(store)
    assert document["bytes"] >= (store / "vstate.db").stat().st_size
    assert document["head"]["message"] == "more"
    assert document["objects"] > 10
    assert (document["commits"], document["at_least"]) == (5, [])


def test_status_stops_counting(vstate, monkeypatch):
    """After the timeout, the counts are lower bounds and are marked."""
    monkeypatch.setattr(status, "_CLOCK_READ_EVERY", 1)
    assert vstate.json("status", "--timeout", "0.0000001")["at_least"] == ["commits", "objects"]
    assert "commits   1 or more (--timeout 0 counts them all)" in vstate("status", "--timeout", "0.0000001")
    assert vstate.json("status", "--timeout", "0")["at_least"] == []
