"""Changes from the page: each is shown on trial first, and made only then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from viewers import Serve, Viewer

from vstate import Disk, Memory, Versioned
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo import Repository
from vstate.viewer.changing import Body, Changing

pytestmark = pytest.mark.slow


def heads(viewer: Viewer) -> dict[str, str]:
    refs = viewer.get("/refs")
    return {ref["name"]: ref["commit"] for ref in refs["branches"] + refs["tags"]}


def both(viewer: Viewer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of a change, after a trial that has changed nothing and said the same."""
    before = heads(viewer)
    status, trial = viewer.ask(path, body | {"preview": True})
    assert status == 200, trial
    assert heads(viewer) == before
    status, answer = viewer.ask(path, body)
    assert status == 200, answer
    if trial["changes"]:
        made = viewer.get(f"/diff?old={answer['from']}&new={answer['to']}")["changes"]
        assert [change | {"inside": None} for change in trial["changes"]["changes"]] == [
            change | {"inside": None} for change in made
        ]
    return dict(answer) | {"changes": trial["changes"]}


def test_moves(writer: Viewer, state: Versioned) -> None:
    """Fork, tag, rollback, undo and revert do as the commands of these names."""
    seen = heads(writer)["main"]
    both(writer, "/branches", {"name": "fork", "at": "v1"})
    both(writer, "/tags", {"name": "here", "at": "main"})
    assert heads(writer)["fork"] == heads(writer)["v1"]
    back = both(writer, "/rollback", {"branch": "main", "rev": "v1", "seen": seen})
    assert [change["key"] for change in back["changes"]["changes"]] == ["plan", "score/a", "score/b"]
    undone = both(writer, "/undo", {"branch": "main", "seen": back["to"]})
    assert undone["to"] == seen
    assert undone["from_message"].startswith("Rollback to")
    status, answer = writer.ask("/undo", {"branch": "main", "seen": back["to"]})
    assert (status, "main has moved since the page showed it" in answer["error"]) == (409, True)
    here = {"branch": "main", "rev": "main", "seen": seen}
    assert both(writer, "/rollback", here)["to"] is None
    reverted = both(writer, "/revert", {"branch": "main", "rev": "main", "seen": seen})
    assert [change["key"] for change in reverted["changes"]["changes"]] == ["plan"]
    state.refresh()
    assert state["plan"]["steps"] == ["read", "think"]


def test_merge(writer: Viewer, state: Versioned) -> None:
    """A merge on trial shows base, ours and theirs of a conflict, and the result of a choice."""
    trial = writer.get("/merge?ours=main&theirs=other")
    (conflict,) = trial["conflicts"]
    assert trial["strategy"] == "conflict"
    sides = [conflict[side]["text"] for side in ("base", "ours", "theirs")]
    assert (conflict["key"], sides, conflict["result"]) == ("score/b", ["2.5", "9.5", "7.5"], None)
    assert (
        writer.get("/merge?ours=main&theirs=other&policy=theirs")["conflicts"][0]["result"]["text"] == "7.5"
    )
    taken = writer.get("/merge?ours=main&theirs=other&take_ours=score/b")
    assert taken["strategy"] == "merge"
    assert [change["key"] for change in taken["changes"]["changes"]] == ["bytes", "notes"]
    body = {"branch": "main", "rev": "other", "seen": trial["ours"]}
    assert writer.ask("/merge", body | {"choices": {"score/b": []}})[0] == 400
    assert writer.ask("/merge", body)[0] == 409
    both(writer, "/merge", body | {"choices": {"score/b": "theirs"}})
    state.refresh()
    assert (state["score/b"], "bytes" in state) == (7.5, False)


def test_a_policy_that_resolves_some(state: Versioned, serve: Serve) -> None:
    """A policy that resolves one conflict and not another: both are listed, with what became of each."""
    state["count"], state["name"] = 1, "a"
    state.commit()
    with state.fork("other") as other:
        other["count"], other["name"] = 2, "b"
        other.commit()
    state["count"], state["name"] = 4, "c"
    state.commit()
    viewer = serve()
    trial = viewer.get("/merge?ours=main&theirs=other&policy=counter")
    count, name = trial["conflicts"]
    assert (count["key"], count["policy"], count["result"]["text"]) == ("count", "counter", "5")
    assert (name["key"], name["policy"], name["result"]) == ("name", None, None)
    assert (trial["strategy"], trial["changes"]) == ("conflict", None)
    trial = viewer.get("/merge?ours=main&theirs=other&policy=counter&take_theirs=name")
    assert (trial["strategy"], trial["conflicts"][1]["result"]["text"]) == ("merge", "b")


def test_a_damaged_value_does_not_stop_a_move(writer: Viewer, state: Versioned) -> None:
    """One can go back from a commit whose value is damaged: its key says so, and the move is made."""
    state["table"] = ["x" * 5000] * 3
    head = state.commit("damaged later")
    assert head is not None
    entry = state.repo.entry(head.root, "table")
    assert entry is not None
    state.store.delete(OBJECT_PREFIX + next(entry.links).id.hex())
    body = {"branch": "main", "rev": "v1", "seen": head.id}
    trial = writer.ask("/rollback", body | {"preview": True})[1]
    (table,) = (change for change in trial["changes"]["changes"] if change["key"] == "table")
    assert "error" in table["inside"]
    assert writer.ask("/rollback", body)[0] == 200


def test_what_was_seen_is_merged(writer: Viewer, tmp_path: Path) -> None:
    """The commit that was shown is merged, though its branch has moved since."""
    trial = writer.get("/merge?ours=main&theirs=other&policy=theirs")
    with Versioned(Disk(tmp_path / "store"), branch="other") as state:
        state["unseen"] = 1
        state.commit("unseen")
    body = {"branch": "main", "rev": trial["theirs"], "name": "other", "seen": trial["ours"]}
    made = both(writer, "/merge", body | {"policy": "theirs"})
    assert made["changes"] == trial["changes"]
    assert made["message"] == "Merge other into main"


def test_an_edit_keeps_the_expiry(state: Versioned, serve: Serve) -> None:
    """The key of the new value expires when the old one would have."""
    state["k"] = 1
    state.expire("k", 3600)
    commit = state.commit()
    assert commit is not None
    writer = serve(write=True)
    edit = {"rev": "main", "key": "k", "path": "", "type": "int", "value": 5, "branch": "edit"}
    assert writer.ask("/edit", edit)[0] == 200
    before, after = (writer.get(f"/value?key=k&rev={rev}")["expires"][:16] for rev in ("main", "edit"))
    assert before == after


def test_edit(writer: Viewer, tmp_path: Path) -> None:
    """An edit of plain data makes a new branch, and every part keeps its type."""
    edit = {"rev": "main", "key": "plan", "path": "pair[0]", "type": "int", "value": 5, "branch": "edit"}
    answer = both(writer, "/edit", edit)
    (change,) = answer["changes"]["changes"]
    (inside,) = change["inside"]["details"]
    assert (change["key"], inside["path"], inside["new"]["text"]) == ("plan", "pair[0]", "5")
    with Versioned(Disk(tmp_path / "store"), branch="edit") as state:
        assert state["plan"] == {"goal": "learn", "steps": ["read", "think", "act"], "pair": (5, 2.5)}
    assert writer.ask("/edit", edit)[0] == 409  # the branch exists
    assert writer.ask("/edit", edit | {"branch": "two", "value": "five"})[0] == 400
    big = 2**70
    assert writer.ask("/edit", edit | {"branch": "two", "value": str(big)})[0] == 200
    with Versioned(Disk(tmp_path / "store"), branch="two") as state:
        assert state["plan"]["pair"] == (big, 2.5)
    assert both(writer, "/edit", edit | {"branch": "same", "value": 1})["to"] is None
    assert "same" not in heads(writer)
    assert writer.ask("/edit", edit | {"branch": "three", "path": "pair[9]"})[0] == 404


class Secret:
    """An object, which the viewer never loads."""

    def __init__(self) -> None:
        self.name = "x"


def test_objects_are_not_edited(state: Versioned, serve: Serve) -> None:
    """A value that holds an object is refused: only its pickle is known."""
    state["secret"] = {"inside": Secret(), "count": 1}
    state.commit()
    edit = {"rev": "HEAD", "key": "secret", "path": "count", "type": "int", "value": 2, "branch": "edit"}
    status, answer = serve(write=True).ask("/edit", edit)
    assert status == 400
    assert "object" in answer["error"]


class Moves(Memory):
    """Counts the transactions that move a branch or a tag."""

    moves = 0

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.moves += any(key.startswith(("r/heads/", "r/tags/")) for key in writes)
        return super().transact(writes, expected)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/branches", {"name": "new", "at": "main"}),
        ("/tags", {"name": "v2", "at": "main"}),
        ("/rollback", {"branch": "main", "rev": "main~1"}),
        ("/undo", {"branch": "main"}),
        ("/redo", {"branch": "undone"}),
        ("/revert", {"branch": "main", "rev": "main"}),
        ("/merge", {"branch": "main", "rev": "side"}),
        ("/edit", {"branch": "e", "key": "k", "rev": "main", "type": "int", "value": 9}),
    ],
)
def test_each_change_is_one_step(path: str, body: dict[str, Any]) -> None:
    """A crash leaves no half of a change behind, such as a new branch without its edit."""
    store = Moves()
    state = Versioned(store)
    for n in range(3):
        state["k"] = n
        state.commit(str(n))
    side = state.fork("side")
    side["other"] = 1
    side.commit("side")
    with state.fork("undone") as undone:
        undone["k"] = 7
        undone.commit("to be undone")
        undone.undo()
    store.moves = 0
    changing = Changing(Repository(store))
    if "branch" in body and path != "/edit":
        body = body | {"seen": state.repo.branch(body["branch"]).id}
    assert changing.carry_out(path, Body(body))["preview"] is False
    assert store.moves == 1
