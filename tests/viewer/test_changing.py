"""Changes from the page: each is shown on trial first, and made only then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from viewers import Serve, Viewer

from vstate import Disk, Memory, Versioned
from vstate.errors import InvalidInput
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo import Repository
from vstate.viewer import editing
from vstate.viewer.changing import Body, Changing
from vstate.viewer.editing import edited

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
    main = {"branch": "main", "seen": seen}
    back = both(writer, "/rollback", main | {"rev": "v1"})
    assert [change["key"] for change in back["changes"]["changes"]] == ["plan", "score/a", "score/b"]
    undone = both(writer, "/undo", main | {"seen": back["to"]})
    assert (undone["to"], undone["from_message"][:11]) == (seen, "Rollback to")
    status, answer = writer.ask("/undo", main | {"seen": back["to"]})
    assert (status, "main has moved since the page showed it" in answer["error"]) == (409, True)
    assert both(writer, "/rollback", main | {"rev": "main"})["to"] is None
    reverted = both(writer, "/revert", main | {"rev": "main"})
    assert [change["key"] for change in reverted["changes"]["changes"]] == ["plan"]
    state.refresh()
    assert state["plan"]["steps"] == ["read", "think"]


def test_merge(writer: Viewer, state: Versioned, tmp_path: Path) -> None:
    """A merge on trial shows the sides of each conflict, and what a choice or a policy makes of it.

    The commit that was shown is merged, though its branch has moved since.
    """
    conflict = "conflicts[*].[key, policy, base.text, ours.text, theirs.text, result.text]"
    writer.rows(
        f"""
        /merge?ours=main&theirs=other ? strategy -> "conflict"
        /merge?ours=main&theirs=other ? {conflict} -> [["score/b", null, "2.5", "9.5", "7.5", null]]
        /merge?ours=main&theirs=other ? changes -> null
        /merge?ours=main&theirs=other&policy=theirs ? conflicts[0].result.text -> "7.5"
        /merge?ours=main&theirs=other&take_ours=score/b ? [strategy, changes.changes[*].key]
            -> ["merge", ["bytes", "notes"]]
        """
    )
    trial = writer.get("/merge?ours=main&theirs=other&policy=theirs")
    with Versioned(Disk(tmp_path / "store"), branch="other") as other:
        other["unseen"] = 1
        other.commit("unseen")
    body = {"branch": "main", "rev": trial["theirs"], "name": "other", "seen": trial["ours"]}
    assert writer.ask("/merge", body | {"choices": {"score/b": []}})[0] == 400
    assert writer.ask("/merge", body)[0] == 409
    made = both(writer, "/merge", body | {"choices": {"score/b": "theirs"}})
    assert (made["changes"], made["message"]) == (trial["changes"], "Merge other into main")
    state.refresh()
    assert (state["score/b"], "bytes" in state, "unseen" in state) == (7.5, False, False)


def test_a_policy_that_resolves_some(state: Versioned, serve: Serve) -> None:
    """A policy that resolves one conflict and not another: both are listed, with what became of each."""
    state["count"], state["name"] = 1, "a"
    state.commit()
    with state.fork("other") as other:
        other["count"], other["name"] = 2, "b"
        other.commit()
    state["count"], state["name"] = 4, "c"
    state.commit()
    serve().rows(
        """
        /merge?ours=main&theirs=other&policy=counter ? [strategy, changes] -> ["conflict", null]
        /merge?ours=main&theirs=other&policy=counter ? conflicts[*].[key, policy, result.text]
            -> [["count", "counter", "5"], ["name", null, null]]
        /merge?ours=main&theirs=other&policy=counter&take_theirs=name ? [strategy, conflicts[1].result.text]
            -> ["merge", "b"]
        """
    )


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


class Secret:
    """An object, which the viewer never loads."""

    def __init__(self) -> None:
        self.name = "x"


def test_edit(writer: Viewer, tmp_path: Path, state: Versioned) -> None:
    """An edit of plain data makes a new branch; every part keeps its type, and the key its expiry."""
    state["secret"], state["expiring"] = {"inside": Secret(), "count": 1}, 1
    state.expire("expiring", 3600)
    state.commit("more")
    edit = {"rev": "main", "key": "plan", "path": "pair[0]", "type": "int", "value": 5, "branch": "edit"}
    answer = both(writer, "/edit", edit)
    (change,) = answer["changes"]["changes"]
    (inside,) = change["inside"]["details"]
    assert (change["key"], inside["path"], inside["new"]["text"]) == ("plan", "pair[0]", "5")
    with Versioned(Disk(tmp_path / "store"), branch="edit") as edited:
        assert edited["plan"] == {"goal": "learn", "steps": ["read", "think", "act"], "pair": (5, 2.5)}
    assert both(writer, "/edit", edit | {"branch": "same", "value": 1})["to"] is None
    for status, given in (
        (409, {}),  # the branch exists
        (400, {"branch": "two", "value": "five"}),
        (404, {"branch": "two", "path": "pair[9]"}),
        (400, {"branch": "two", "key": "secret", "path": "count"}),  # only its pickle is known
        (200, {"branch": "two", "value": str(2**70)}),
        (200, {"branch": "three", "key": "expiring", "path": ""}),
    ):
        assert writer.ask("/edit", edit | given)[0] == status, given
    assert "same" not in heads(writer)
    with Versioned(Disk(tmp_path / "store"), branch="two") as edited:
        assert edited["plan"]["pair"] == (2**70, 2.5)
    times = {writer.get(f"/value?key=expiring&rev={rev}")["expires"][:16] for rev in ("main", "three")}
    assert len(times) == 1


def test_edit_of_a_member_and_of_a_large_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a set and a value under a number are edited; a value of many parts is not."""
    value = {"set": {1, 2}, 3: [4]}
    assert edited(value, "set{1}", "int", 5) == {"set": {2, 5}, 3: [4]}
    assert edited(value, "[3][0]", "int", 5) == {"set": {1, 2}, 3: [5]}
    monkeypatch.setattr(editing, "_MOST_PARTS", 6)
    with pytest.raises(InvalidInput, match="more than 6 parts"):
        edited(value, "set{1}", "int", 5)


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
