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


def test_the_branches_first(rows, service):
    """log shows all branches, status and branch -v the newest; where a word is missing, it is an error."""
    rows(
        """
        log --oneline -3 -> <id> (users/user 7) pay... / <id> (jobs/b) begin... / <id> (jobs/a) begin...
        log ? length(@) -> 303
        ls --json -> [1] vstate: no commit yet on branch 'main'; the store has 302 branches, such as ...
        show plan -> [1] vstate: ...no revision 'plan'; ...; no commit yet on branch 'main'...
        status -> ...head no commit yet / ...
            / main has no commit. The store has 302 branches: 300 in users/, 2 in jobs/ / users/user 7 ...
        branch -v -n 2 -> users/user 7 <time> <id> pay / jobs/b <time> <id> begin
        branch -v -n 1 ? [*].[name, message, head, time]
            -> [["users/user%207", "pay", false, "<TIME>"]]
        branch -v --prefix jobs/ -n 1 ? [*].name -> ["jobs/b"]
        branch -d 'users/user 8' -> Deleted branch users/user%208, which was at <id> sign up
        """,
        service,
    )


def test_times(vstate):
    """In full where a program reads, and short on a terminal or by --date=short."""
    assert re.search(r"\n    \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\n", vstate("log"))
    for command in ("log", "show", "reflog", "status", "branch -v"):
        short = vstate(*command.split(), "--date=short")
        assert re.search(r"(\d\d-\d\d|\d\d:\d\d):\d\d|\d\d-\d\d \d\d:\d\d", short)
        assert "+0000" not in short
