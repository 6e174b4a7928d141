"""The branches of adapters: their names and their deletion."""

from __future__ import annotations

from itertools import product

import pytest

from vstate.errors import InvalidInput
from vstate.integrations.branches import branch_of, parts_of
from vstate.integrations.opening import Opening
from vstate.kv import Memory
from vstate.repo.names.refs import check_ref_name
from vstate.repo.repository import Repository
from vstate.repo.writing import BranchChanges


def test_branches_of_ids_are_names_from_which_the_ids_come_back() -> None:
    """Whatever the ids, `branch_of` makes a name of a branch, and no two tuples of ids share one."""
    texts = [*map("".join, product("a/%.@", repeat=2))]
    texts += ["", "/", "%", ".", "-", "@", "HEAD", "@{", "a b", "é\n"]
    ids = [(text,) for text in texts] + list(product(texts, repeat=2))
    names = [check_ref_name(branch_of(*each)) for each in ids]
    assert len(set(names)) == len(ids)
    assert list(map(parts_of, names)) == ids


def test_the_names_stay_as_they_are_stored() -> None:
    """Stores have these names: a change of them would hide what an earlier program saved."""
    assert branch_of("chats", "a/b", "50%", "é x", "") == "chats/a%252fb/50%2525/é%20x/%25"
    assert branch_of("chats", ".x", "y.lock") == "chats/%2Ex/y%2Elock"
    assert branch_of("x" * 140, "y" * 59) == f"{'x' * 140}/{'y' * 59}"
    with pytest.raises(TypeError, match="an id is a str, not int"):
        branch_of("chats", 7)  # type: ignore[arg-type]  # refused


def test_long_ids_without_room_in_a_name_are_refused() -> None:
    """The error speaks of the ids, which the program knows, and not of a branch."""
    assert len(branch_of("chats", *["x" * 250] * 2)) <= 200
    for ids in (["x" * 250] * 4, ["é" * 120] * 4, ["chats", *["/" * 60] * 4]):
        with pytest.raises(InvalidInput, match=r"the ids .* are too long together"):
            branch_of("chats", *ids)


@pytest.mark.parametrize("in_room", [False, True], ids=["in room 0", "in a room"])
@pytest.mark.parametrize("keep_history", [False, True], ids=["forgotten", "kept"])
def test_a_branch_that_moves_while_it_is_deleted_goes_too(
    in_room: bool, keep_history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that lands between the read of the branch and its deletion goes with it."""
    store = Memory()
    opening, other = Opening(store), Repository(store)
    repo = opening.repo
    repo.commit_many([BranchChanges("chats/a", set={"n": 0}, message="first", room=in_room)])
    of, name = (repo.refs, "publish_all") if keep_history else (store, "exclusively")
    delete = getattr(of, name)
    late = iter(["late"])

    def slow(*args: object, **options: object) -> bool:
        for message in late:
            other.commit("chats/a", set={"n": 1}, message=message)
        done: bool = delete(*args, **options)
        return done

    monkeypatch.setattr(of, name, slow)
    last = opening.delete("chats/a", keep_history=keep_history)
    assert last is not None
    assert last.message == "late"
    assert opening.delete("chats/a") is None
