"""Keys and branches that expire, in the output of the commands."""

import re
from collections.abc import Iterator

import pytest
from clock import Time, standing_still

from vstate import Disk, Versioned


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


@pytest.fixture
def command(empty, time: Time):
    """A store with a key that expires at 9:01, another at 10:00, and a key without expiry."""
    with Versioned(Disk(empty.store, durability="process")) as state:
        state["code"], state["session"], state["user"] = 1234, {"n": 1}, "ada"
        state.expire("code", 60)
        state.expire("session", 3600)
        state.commit("in")
    return empty


def test_ls_shows_when(command, time: Time) -> None:
    """-l and --json show when each key expires. An expired key is listed only if the revision is named."""
    code, session, user = command("ls", "-l").splitlines()
    assert code.endswith("code  expires 2026-11-21 09:01:00")
    assert session.endswith("session  expires 2026-11-21 10:00:00")
    assert user.endswith("user")
    listed = {document.pop("key"): document for document in command.json("ls")}
    assert listed["code"] == {"type": "int", "size": 5, "expires": "2026-11-21T09:01:00+00:00"}
    assert listed["user"].keys() == {"type", "size"}
    assert command.json("status")["keys"] == 3
    time.pass_(60)
    assert command("ls").split() == ["session", "user"]
    assert command("ls", "c").split() == []
    assert command("ls", "HEAD").split() == ["code", "session", "user"]
    assert "code  expired 2026-11-21 09:01:00" in command("ls", "-l", "HEAD")
    assert command.json("status")["keys"] == 2


def test_what_a_commit_did(command, time: Time) -> None:
    """A new expiry is a change of the key in show, diff and log."""
    with Versioned(Disk(command.store, durability="process")) as state:
        state.expire("user", 7200)
        state.commit("out")
    assert "user  str, 6 B, expires 2026-11-21 11:00:00" in command("show")
    assert (
        command.json("diff", "HEAD~1", "HEAD")["changes"][0]["new"]["expires"] == "2026-11-21T11:00:00+00:00"
    )
    assert command("show", "user").strip() == "'ada'"
    assert command.json("show", "user")["expires"] == "2026-11-21T11:00:00+00:00"
    assert "~user" in command("log", "-n", "1")
    assert "nothing is damaged" in command("fsck")


def test_a_branch_whose_time_is_over(command, time: Time) -> None:
    """gc reports its removal; before that, it is there."""
    command("keep", "guest", "--idle", "60s")
    with Versioned(Disk(command.store, durability="process"), branch="guest") as state:
        state["k"] = 1
        state.commit()
    time.pass_(60)
    assert re.search(r"^  guest .*  goes after 1m$", command("branch"), re.MULTILINE)
    for more in ([], ["-v"], ["-n", "5"]):
        found = {branch["name"]: branch["idle"] for branch in command.json("branch", *more)}
        assert found == {"guest": 60.0, "main": None}
    assert command.json("gc", "--dry-run")["expired"] == ["guest"]
    assert "removed the idle branch guest" in command("gc")
    assert "guest" not in command("branch")
    assert "nothing is damaged" in command("fsck")
