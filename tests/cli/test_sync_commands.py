"""`vstate clone`, `push`, `pull`, `fetch` and `remote`."""

import os
import re

import pytest
from stores import commit, refs
from vstate_cli import output

from vstate import Disk, Versioned


@pytest.fixture
def copy(vstate, tmp_path):
    """The command, on a clone of the store."""
    vstate("clone", str(vstate.store), str(tmp_path / "copy"))
    return type(vstate)(tmp_path / "copy")


# clone


def test_clone(vstate, store, tmp_path):
    """A clone has the branches and tags, and a remote. JSON lists every ref."""
    text = vstate("clone", str(store), str(tmp_path / "copy")).splitlines()
    assert text[0] == f"Cloned into {tmp_path / 'copy'}."
    assert text[1].startswith("wrote ")
    assert any(line.startswith("  created   tags/v1  ") for line in text)
    copied = refs(tmp_path / "copy")
    copy = type(vstate)(tmp_path / "copy")
    listed = [branch["name"] for branch in copy.json("branch", "--all")]
    assert listed == ["main", "what-if", "remotes/origin/main", "remotes/origin/what-if"]
    assert {name: copied[name] for name in refs(store)} == refs(store)
    assert copied["remotes/origin/what-if"] == copied["heads/what-if"]
    assert copy("remote") == f"origin  {store}\n"
    assert "(HEAD -> main, origin/main)" in copy("log", "-n", "1", "--oneline")
    assert copy("show", "HEAD", "plan") == vstate("show", "HEAD", "plan")
    assert "in use" in vstate.fails("clone", str(store), str(tmp_path / "copy"))
    document = vstate.json("clone", str(store), str(tmp_path / "other"))
    assert set(document) == {"refs", "objects", "bytes", "seconds"}
    assert {ref["name"]: ref["status"] for ref in document["refs"]} == dict.fromkeys(copied, "created")
    assert sum(ref["objects"] for ref in document["refs"]) == document["objects"] > 10
    vstate.fails("clone", str(tmp_path / "nowhere"), str(tmp_path / "none"))
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "none").exists()


def test_a_branch_here_of_the_name_of_one_there(copy, store):
    """The log distinguishes the two; an ambiguous name is refused, and a push sends the local branch."""
    copy("branch", "origin/main")
    decorated = copy("log", "-n", "1", "--oneline")
    assert "(HEAD -> main, heads/origin/main, remotes/origin/main)" in decorated
    commit(copy.store, branch="origin/main", n=1)
    assert copy.fails("log", "origin/main") == (
        "'origin/main' is both a branch and a branch of a remote; did you mean: heads/origin/main, "
        "remotes/origin/main?"
    )
    copy("push", "origin", "origin/main")
    assert refs(store)["heads/origin/main"] == refs(copy.store)["heads/origin/main"]


def test_a_push_out_of_a_store_opened_to_be_read(vstate, store, copy):
    """The push succeeds, and says that the new position of the remote branch is not noted here."""
    reading = type(vstate)(f"readonly:{copy.store}")
    commit(copy.store, n=1)
    result = reading.run("push")
    assert result.exit_code == 0
    assert "moved     heads/main" in result.stdout
    assert "could not note here which commits the branches there are at: the store at" in result.stderr
    commit(copy.store, n=2)
    assert "read only" in reading.json("push")["not_noted"]
    assert "not_noted" not in copy.json("push")


def test_clone_without_a_directory_takes_the_name_of_the_original(vstate, store, tmp_path, monkeypatch):
    """A clone of agent/.vstate goes to agent, and one of a URL needs a name."""
    original, here = tmp_path / "agent" / ".vstate", tmp_path / "here"
    here.mkdir()
    vstate("clone", str(store), str(original))
    monkeypatch.chdir(here)
    assert vstate("clone", str(original)).startswith("Cloned into agent.\n")
    assert dict(Versioned(here / "agent")) == dict(Versioned(store))
    assert "Missing argument 'DIR'" in vstate.run("clone", "redis://localhost/0").stderr


def test_clone_to_a_place_of_the_environment(vstate, store, tmp_path, monkeypatch):
    """The target of a clone can be a URL with a variable."""
    message = vstate.fails("clone", str(store), "disk:${NO_SUCH_VARIABLE}/copy")
    assert "NO_SUCH_VARIABLE, which is not set" in message
    monkeypatch.setenv("WHERE", str(tmp_path))
    assert vstate("clone", str(store), "disk:${WHERE}/copy").startswith("Cloned into disk:${WHERE}/copy.\n")
    assert refs(tmp_path / "copy")["heads/main"] == refs(store)["heads/main"]


def test_no_password_of_another_url_is_shown(vstate, store, tmp_path, monkeypatch):
    """The target of a clone and the source of a pull can have a password, and no output shows it."""
    places = {"other://:hunter2@host/0": tmp_path / "copy", "other://:hunter2@host/1": store}

    def open_store(place, *, create=True):
        return Disk(places.get(str(place), place), create=create, durability="process")

    monkeypatch.setattr("vstate.repo.clone.open_store", open_store)
    text = vstate("clone", str(store), "other://:hunter2@host/0")
    assert text.startswith("Cloned into other://….\n")
    assert "hunter2" not in text
    commit(store, plan="theirs")
    commit(tmp_path / "copy", plan="ours")
    monkeypatch.setattr("vstate.repo.exchange.sync.open_store", open_store)
    message = type(vstate)(tmp_path / "copy").fails("pull", "other://:hunter2@host/1")
    assert "vstate merge " in message
    assert "hunter2" not in message


# push


def test_push_without_arguments_goes_to_origin(copy, store):
    """push sends HEAD's branch to origin; a second push sends nothing."""
    head = commit(copy.store, extra=1)
    text = copy("push").splitlines()
    assert text[0].startswith("sent ")
    assert text[1].startswith(f"  moved     heads/main  {head.short} from ")
    assert refs(store)["heads/main"] == refs(copy.store)["remotes/origin/main"] == head.id
    assert copy("push").splitlines()[1].startswith("  unchanged heads/main")
    assert copy.json("push")["objects"] == 0


def test_push_is_refused_where_commits_would_be_lost(copy, store, vstate):
    """The error names pull and --force, and --force moves the branch."""
    theirs = commit(store, theirs=1)
    commit(copy.store, ours=1)
    message = copy.fails("push")
    assert "pull first, or push with --force:" in message
    assert refs(store)["heads/main"] == theirs.id
    assert "forced    heads/main" in copy("push", "--force")
    assert refs(store)["heads/main"] == refs(copy.store)["heads/main"]
    assert vstate("log", "main@{1}", "-n", "1", "--oneline").startswith(theirs.short)


def test_push_tags_branches_and_deletions(copy, store):
    """One push sends and deletes several branches and tags."""
    copy("tag", "v2", "HEAD~1")
    copy("branch", "more")
    names = {
        ref["name"]: ref["status"] for ref in copy.json("push", "origin", "more", "main", "--tags")["refs"]
    }
    assert names == {
        "heads/more": "created",
        "heads/main": "unchanged",
        "tags/v1": "unchanged",
        "tags/v2": "created",
    }
    assert "deleted   heads/more" in copy("push", "origin", "--delete", "more")
    assert set(refs(store)) == {"heads/main", "heads/what-if", "tags/v1", "tags/v2"}
    assert "remotes/origin/more" not in refs(copy.store)
    assert f"HEAD of {store} is on branch 'main'" in copy.fails("push", "-d", "main")


def test_push_to_a_path(vstate, store, tmp_path):
    """Only --create makes a missing store."""
    place = tmp_path / "backup"
    message = vstate.fails("push", str(place))
    assert "did you mean" not in message
    assert f"no store at {place}; push with --create to make it" in message
    assert "--create" not in vstate.fails("fetch", str(place))
    assert not place.exists()
    assert "created   heads/main" in vstate("push", str(place), "--create")
    assert refs(place) == {"heads/main": refs(store)["heads/main"]}


# pull


def test_pull_goes_ahead_or_merges_by_key(copy, store):
    """pull fast-forwards a branch without commits of its own, and merges one that has some."""
    theirs = commit(store, theirs=1)
    text = copy("pull").splitlines()
    assert "  moved     remotes/origin/main" in text[1]
    assert text[2] == f"main: fast-forward at {theirs.short}: 1 key"
    assert copy("pull").splitlines()[2] == f"main: up-to-date at {theirs.short}"
    assert refs(copy.store)["heads/main"] == theirs.id
    commit(store, others=1)
    commit(copy.store, ours=1)
    document = copy.json("pull")
    (branch,) = document["branches"]
    assert branch.pop("commit") == refs(copy.store)["heads/main"]
    assert branch == {"name": "main", "strategy": "merge", "merged_keys": ["others"]}
    assert document["fetched"][0]["refs"][0]["name"] == "remotes/origin/main"
    assert copy("log", "-n", "1", "--oneline").rstrip().endswith("Merge origin/main into main  +1")


def test_pull_makes_a_branch(copy, store):
    """pull creates a missing branch, and HEAD does not move. With a detached HEAD, one names the branches."""
    commit(store, branch="new", a=1)
    copy("pull", "origin", "new")
    assert refs(copy.store)["heads/new"] == refs(store)["heads/new"]
    assert copy.json("status")["branch"] == "main"
    assert "has no branch 'newer'" in copy.fails("pull", "origin", "newer")
    copy("checkout", "HEAD~1")
    assert "as in `vstate pull origin main`" in copy.fails("pull")
    assert "as in `vstate push origin main`" in copy.fails("push")
    assert "main: up-to-date" in copy("pull", "origin", "main")


class Loaded:
    """Prints if it is unpickled."""

    def __reduce__(self):
        return (print, ("UNPICKLED",))


@pytest.mark.parametrize("policy", [None, "union", os.path.join])
def test_pull_unpickles_nothing(copy, store, policy, capfd, monkeypatch):
    """A pull merges the parts of values without loading them, or refuses and names the command to go on."""
    for place, value in ((store, [Loaded(), 1]), (copy.store, [Loaded(), 2])):
        with Versioned(Disk(place, durability="process"), branch="main") as state:
            state["messages"] = value
            state.commit("change")
            if policy is not None:
                state.set_policy("", policy)
    before = refs(copy.store)["heads/main"]
    capfd.readouterr()  # a commit loads the first value of a class
    imported = []
    monkeypatch.setattr("importlib.import_module", lambda name: imported.append(name))
    if policy == "union":
        assert "resolved 'messages' by union" in copy("pull")
    else:
        message = copy.fails("pull")
        assert "'messages'" in message
        assert "run `vstate merge origin/main` with --ours KEY" in message
        assert refs(copy.store)["heads/main"] == before
    assert "UNPICKLED" not in capfd.readouterr().out
    assert imported == []
    assert refs(copy.store)["remotes/origin/main"] == refs(store)["heads/main"]


# fetch


def test_fetch_moves_no_branch(copy, store, vstate):
    """Fetched branches are available under the name of the remote; a fetch from a path creates no ref."""
    theirs = commit(store, theirs=1)
    before = refs(copy.store)
    text = copy("fetch").splitlines()
    assert text[0].startswith("received ")
    assert len(text) == 3
    after = refs(copy.store)
    assert after == before | {"remotes/origin/main": theirs.id}
    assert "theirs" in copy("diff", "main", "origin/main", "--stat")
    assert copy.json("fetch", "origin", "what-if")["refs"][0]["status"] == "unchanged"
    vstate("tag", "v9")
    assert "created   tags/v9" in copy("fetch", "--tags")
    commit(store, branch="new", a=1)
    assert "fetched   heads/new" in copy("fetch", str(store), "new")
    assert "heads/new" not in refs(copy.store)


# remote


def test_remote_adds_lists_and_removes(vstate, tmp_path, monkeypatch):
    """remote adds, lists and removes, and makes paths absolute."""
    assert vstate("remote") == ""
    monkeypatch.chdir(tmp_path)
    assert vstate("remote", "add", "backup", "there") == f"Added the remote backup, {tmp_path / 'there'}.\n"
    vstate("remote", "add", "origin", "redis://:${PASSWORD}@host/0")
    assert vstate("remote", "list").splitlines() == [
        f"backup  {tmp_path / 'there'}",
        "origin  redis://:${PASSWORD}@host/0",
    ]
    assert vstate.json("remote")[0] == {"name": "backup", "url": str(tmp_path / "there")}
    assert vstate.json("remote", "remove", "backup") == {"name": "backup", "url": str(tmp_path / "there")}
    assert "no remote 'backup'" in vstate.fails("remote", "remove", "backup")
    assert "already" in vstate.fails("remote", "add", "origin", "/x")


def test_all_of_them_have_a_bar(copy, store, tmp_path, monkeypatch):
    """All transfer commands report their steps to a progress bar."""
    steps = []
    monkeypatch.setattr(
        output.ProgressBar, "__call__", lambda bar, step, count, total=None: steps.append(step)
    )
    for number, arguments in enumerate(
        [["push"], ["fetch"], ["pull"], ["clone", str(store), str(tmp_path / "new")]]
    ):
        commit(copy.store if arguments[0] == "push" else store, extra=number)
        steps.clear()
        copy(*arguments)
        assert {"finding commits", "copying"} <= set(steps), arguments
        if arguments[0] == "fetch":
            copy("pull")


def test_status_compares_with_the_remote(copy, store, tmp_path):
    """`status` counts the commits that each side has alone, as of the last push, pull or fetch."""
    assert re.search(r"^upstream +origin/main  up to date$", copy("status"), re.MULTILINE)
    commit(store, theirs=1)
    commit(copy.store, ours=1)
    commit(copy.store, ours=2)
    assert "origin/main  2 commits ahead\n" in copy("status")
    copy("fetch")
    assert "origin/main  2 commits ahead, 1 commit behind\n" in copy("status")
    assert copy.json("status")["upstream"] == {"name": "origin/main", "ahead": 2, "behind": 1}
    copy("pull")
    copy("push")
    assert copy.json("status")["upstream"] == {"name": "origin/main", "ahead": 0, "behind": 0}
    copy("remote", "add", "another", str(tmp_path / "another"))
    copy("push", "another", "--create")
    assert copy.json("status")["upstream"]["name"] == "another/main"
    copy("checkout", "HEAD~1")
    assert copy.json("status")["upstream"] is None
