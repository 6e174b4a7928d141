"""`vstate ls` and `vstate status`."""

import re

from vstate_cli.commands import status


def test_ls(vstate):
    """The keys are sorted, one a line."""
    assert vstate("ls").split() == ["messages", "notes/a", "notes/b", "plan", "text"]


def test_ls_of_a_prefix_or_a_revision_or_both(vstate):
    """A single argument that is no revision is a prefix."""
    assert vstate("ls", "notes/").split() == ["notes/a", "notes/b"]
    assert vstate("ls", "v1").split() == ["messages", "old", "plan", "text"]
    assert vstate("ls", "HEAD~1", "notes/").split() == ["notes/a"]
    assert vstate("ls", "HEAD", "nothing") == ""
    message = vstate.fails("ls", "nothing")
    assert message.startswith("no revision 'nothing'")
    assert vstate.fails("ls", "notes/*").endswith("begins with it: PREFIX has no wildcards")
    assert message.endswith("no key of HEAD begins with it")


def test_ls_long(vstate):
    """-l adds size and type in aligned columns."""
    lines = vstate("ls", "-l").splitlines()
    assert re.fullmatch(r" +\d+ B  list +messages", lines[0])
    assert re.fullmatch(r" +[\d.]+ k?B  \S*Plan +plan", lines[3])
    assert len({line.index("notes/") for line in lines if "notes/" in line}) == 1


def test_ls_json(vstate):
    """The document is a list of keys with type and size in bytes."""
    listed = vstate.json("ls", "notes/")
    assert [entry["key"] for entry in listed] == ["notes/a", "notes/b"]
    assert listed[0]["type"] == "dict"
    assert isinstance(listed[0]["size"], int)
    assert vstate.json("ls", "HEAD", "nothing") == []


def test_status(vstate, store):
    """status shows the position of HEAD, the counts and the size."""
    lines = dict(re.match(r"(\w*) +(.*)", line).groups() for line in vstate("status").splitlines())
    assert lines["store"].startswith(str(store))
    assert re.search(r"  [\d.]+ kB$", lines["store"])
    assert lines["branch"] == "main"
    assert re.fullmatch(r"[0-9a-f]{10} more", lines["head"])
    assert [lines[name] for name in ("commits", "branches", "tags", "keys")] == ["5", "2", "1", "5"]


def test_status_json(vstate, store):
    """The document has the counts, and marks none as a lower bound."""
    document = vstate.json("status")
    assert document["store"] == str(store)
    assert document["bytes"] >= (store / "vstate.db").stat().st_size
    assert document["head"]["message"] == "more"
    assert document["commits"] == 5
    assert document["objects"] > 10
    assert document["at_least"] == []


def test_status_stops_counting(vstate, monkeypatch):
    """After the timeout, the counts are lower bounds and are marked."""
    monkeypatch.setattr(status, "_CLOCK_READ_EVERY", 1)
    assert vstate.json("status", "--timeout", "0.0000001")["at_least"] == ["commits", "objects"]
    assert "commits   1 or more (--timeout 0 counts them all)" in vstate("status", "--timeout", "0.0000001")
    assert vstate.json("status", "--timeout", "0")["at_least"] == []


def test_all_of_it_in_long(vstate):
    """-a lists expired keys too; here there is none."""
    assert vstate("ls", "-la") == vstate("ls", "-l")
