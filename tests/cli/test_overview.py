"""The store of an adapter or a service: a branch a thread or a user, and none that HEAD is on."""

import re
import shlex
import shutil

import pytest

from vstate import Disk, quote_ref
from vstate.repo.repository import Repository


@pytest.fixture(scope="module")
def made_service(tmp_path_factory):
    place = tmp_path_factory.mktemp("made") / "service"
    with Disk(place, durability="process") as store:
        repo = Repository(store)
        for number in [*range(7), *range(8, 300), 7]:
            repo.commit(
                f"users/{quote_ref(f'user {number}')}", message="sign up", set={"name": f"user {number}"}
            )
        for name in ("jobs/a", "jobs/b"):
            repo.commit(name, message="begin", set={"n": 1})
        repo.commit("users/user%207", message="pay", set={"paid": True})
    return place


@pytest.fixture
def service(made_service, tmp_path, vstate):
    """Three hundred users, and two jobs; user 7 came last."""
    shutil.copytree(made_service, tmp_path / "service")
    return type(vstate)(tmp_path / "service")


@pytest.mark.parametrize("command", ["log", "ls", "show", "diff"])
def test_the_newest_branches_instead_of_an_error(service, command):
    """Each command names the newest branches first, as people read them, and a command that works."""
    told = service.run(command)
    assert told.exit_code == 0
    lines = told.stderr.splitlines()
    assert lines[0] == "main has no commit. The store has 302 branches: 300 in users/, 2 in jobs/"
    assert re.fullmatch(r"  users/user 7 +2 commits  \S+ \S+ \S+  pay", lines[1])
    assert [line.split()[0] for line in lines[2:4]] == ["jobs/b", "jobs/a"]
    assert "  … 294 more: vstate branch -v" in lines
    [hint] = [line for line in lines if line.startswith("Look at one: vstate ")]
    assert service(*shlex.split(hint)[4:])


def test_the_log_of_all_branches(service):
    """Without a revision, `log` shows the newest commits of all branches; with --json these alone."""
    shown = service.run("log", "--oneline", "-3").stdout.splitlines()
    assert shown[0].endswith("(users/user 7) pay  +paid") or "(users/user 7) pay" in shown[0]
    assert "(jobs/b) begin" in shown[1]
    assert len(service("log", "--json").splitlines()) == 303


def test_where_it_is_an_error(service):
    """A command that names something says that it is not there; JSON has no words in it."""
    told = service.fails("ls", "--json")
    assert told.startswith("no commit yet on branch 'main'; the store has 302 branches, such as ")
    assert "no revision 'plan'; no commit yet on branch 'main'" in service.fails("show", "plan")


def test_status_says_what_the_store_holds(service):
    """The position and the numbers come first, then the newest branches."""
    told = service("status")
    assert "head      no commit yet\n" in told
    assert "The store has 302 branches: 300 in users/, 2 in jobs/\n  users/user 7" in told


def test_branches_with_their_times(service):
    """`branch -v` lists the newest first, as many as -n says, and matches what is typed."""
    listed = service("branch", "-v", "-n", "2").splitlines()
    assert [line.split("  ")[1].strip() for line in listed] == ["users/user 7", "jobs/b"]
    [first] = service.json("branch", "-v", "-n", "1")
    assert (first["name"], first["message"], first["head"]) == ("users/user%207", "pay", False)
    assert first["time"].startswith("20")
    assert service.json("branch", "-v", "--prefix", "jobs/", "-n", "1")[0]["name"] == "jobs/b"
    assert service("branch", "-d", "users/user 8").startswith("Deleted branch users/user%208")


def test_times(vstate):
    """In full where a program reads, and short on a terminal or by --date=short."""
    assert re.search(r"\n    \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\n", vstate("log"))
    for command in ("log", "show", "reflog", "status", "branch -v"):
        short = vstate(*command.split(), "--date=short")
        assert re.search(r"(\d\d-\d\d|\d\d:\d\d):\d\d|\d\d-\d\d \d\d:\d\d", short)
        assert "+0000" not in short
