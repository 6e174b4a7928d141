"""VersionedSession: each save is a commit, and each session rolls back alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop

from vstate import Disk, KVStore, Memory, NotFound, Versioned
from vstate.errors import InvalidInput, InvalidRecord, StoreUnavailable
from vstate.sessions import StateModule, VersionedSession
from vstate.testing import Faulty


class Box(StateModule):
    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value
        self.register_state("value")


async def value(session: VersionedSession, *ids: str, **options: Any) -> Any:
    box = Box("as it was")
    await session.load_session_state(*ids, box=box, **options)
    return box.value


@in_a_loop
async def test_a_life(local_store: Callable[[], KVStore]) -> None:
    """Save, load, history, load at a revision, rollback, list, delete, on every store, across processes."""
    session = VersionedSession(local_store())
    for n in range(3):
        await session.save_session_state("s", "bob", box=Box([n]), other=Box("kept"))
    await session.save_session_state("s", "ann", box=Box("ann's"))
    again = VersionedSession(local_store())
    assert await value(again, "s", "bob") == [2]
    commits = await again.history("s", "bob")
    assert [commit.info["user_id"] for commit in commits] == ["bob"] * 3
    assert await value(again, "s", "bob", rev=commits[2]) == [0]
    commit = await again.rollback("s", 2, "bob")
    assert commit == (await session.history("s", "bob"))[0]
    assert await value(session, "s", "bob") == [0]
    assert await value(session, "s", "ann") == "ann's"
    found = await session.list_sessions()
    assert [(one.user_id, one.session_id, one.saves) for one in found] == [("ann", "s", 1), ("bob", "s", 4)]
    assert found[1].modules == ("box", "other")
    assert [one.user_id for one in await session.list_sessions("bob")] == ["bob"]
    assert await session.delete_session("s", "bob")
    assert not await session.delete_session("s", "bob")
    assert await value(again, "s", "bob") == "as it was"
    with pytest.raises(ValueError, match="list_sessions"):
        await value(again, "s", "bob", allow_not_exist=False)
    await again.rollback("s", 1, "bob")  # the deletion is a commit like the others
    assert await value(session, "s", "bob") == [0]
    with pytest.raises(NotFound, match="0 earlier commits"):  # it is at its first save again
        await again.rollback("s", 1, "bob")
    assert [one.user_id for one in await session.list_sessions()] == ["ann", "bob"]
    await session.close()
    await again.close()


@in_a_loop
async def test_some_modules(tmp_path: Path) -> None:
    """Modules that are not saved stay; a rollback removes later ones; ids never mix."""
    async with VersionedSession(tmp_path) as session:
        await session.save_session_state("s", box=Box(1))
        await session.save_session_state("s", more=Box(2))
        assert await value(session, "s") == 1
        await session.rollback("s")
        assert (await session.list_sessions())[0].modules == ("box",)
        pairs = [("a", "b_c"), ("a_b", "c"), ("", "a/b"), ("a", "b"), ("a/b", "c"), ("a", "b/c")]
        for user, name in pairs:
            await session.save_session_state(name, user, box=Box([user, name]))
        for user, name in pairs:
            assert await value(session, name, user) == [user, name]
        with pytest.raises(NotFound):
            await session.rollback("s", 3)
        for wrong in (session.rollback("s", 0), session.save_session_state("", box=Box())):
            with pytest.raises(InvalidInput):
                await wrong


@in_a_loop
async def test_wrong_ids_and_numbers_raise() -> None:
    """The error names it."""
    session = VersionedSession()
    await session.save_session_state("s", box=Box(1))
    for wrong in (None, 5, b"s", ("a", "b")):
        with pytest.raises(TypeError, match="session_id is a str, not"):
            await session.save_session_state(wrong, box=Box(1))  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(TypeError, match="user_id is a str, not"):
            await session.history("s", wrong)  # type: ignore[arg-type]  # wrong on purpose
    for steps in (1.5, "1", None):
        with pytest.raises(InvalidInput, match="steps is a whole number from 1 on"):
            await session.rollback("s", steps)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidInput, match="limit is a whole number from 0 on"):
        await session.history("s", limit=-1)
    assert len(await session.history("s")) == 1


@in_a_loop
async def test_nothing_is_half_saved() -> None:
    """A failed save, and a store that is down, leave the session as it was; no error reads as None."""
    store = Faulty(Memory())
    session = VersionedSession(store)
    await session.save_session_state("s", box=Box(1))
    with pytest.raises(TypeError, match=r"more\.value"):
        bad = Box()
        bad.value = object()
        await session.save_session_state("s", box=Box(2), more=bad)
    assert await value(session, "s") == 1
    for call in (
        lambda: value(session, "s"),
        lambda: session.save_session_state("s", box=Box(2)),
        session.list_sessions,
    ):
        store.fail_at = len(store.calls) + 1
        with pytest.raises(StoreUnavailable):
            await call()
    store.fail_at = None
    assert await value(session, "s") == 1


@in_a_loop
async def test_each_rollback_goes_further_back() -> None:
    """A rollback goes back a step at a time, also after other sessions saved. A new save is one more step."""
    async with VersionedSession(Memory()) as session:
        for n in range(5):
            await session.save_session_state("s", box=Box(n))
            await session.save_session_state("other", box=Box(n))
        found = []
        for _ in range(3):
            await session.rollback("s")
            await session.rollback("other")
            found.append(await value(session, "s"))
        await session.save_session_state("s", box=Box(9))
        await session.rollback("s", 2)
        assert [*found, await value(session, "s")] == [3, 2, 1, 0]
        assert len(await session.history("s")) == 10


@in_a_loop
async def test_a_long_conversation_is_stored_once(tmp_path: Path) -> None:
    """A hundred saves of a growing conversation take little more than the last one."""
    message = {"role": "user", "content": "".join(chr(97 + n * n % 26) for n in range(500))}

    async with VersionedSession(Disk(tmp_path, durability="process")) as session:
        box = Box([])
        for n in range(100):
            box.value.append({**message, "n": n, "salt": f"{n:x}" * 50})
            await session.save_session_state("s", box=box)
    with Disk(tmp_path) as store:
        stored = sum(len(data) for _, data in store.items())
        last = len(str(Versioned(store)["modules/%/s/box"]))
    assert stored < 20 * last  # 50 times without sharing


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sessions/x", 1),
        ("sessions/bob/x", 1),
        ("sessions/bob/s", {"saves": "many"}),
        ("modules/bob/s/box", [1]),
        ("modules/bob/s/box", "value"),
    ],
)
@in_a_loop
async def test_a_foreign_value_among_the_sessions_is_named_by_its_key(key: str, value: Any) -> None:
    """Not by a Python error about its contents; and no save overwrites it unseen."""
    store = Memory()
    session, box = VersionedSession(store), Box(0)
    await session.save_session_state("s", "bob", box=Box(1))
    state = Versioned(store)
    state[key] = value
    state.commit("by hand")
    with pytest.raises(InvalidRecord, match=f"the record '{key}' is not valid: "):
        if key.startswith("sessions"):
            await session.list_sessions()
        else:
            await session.load_session_state("s", "bob", box=box)
    assert box.value == 0
    if key == "sessions/bob/s":
        with pytest.raises(InvalidRecord, match=key):
            await session.save_session_state("s", "bob", box=Box(2))


@in_a_loop
async def test_absent_names_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A session or a module that is not there is a warning."""
    async with VersionedSession() as session:
        again = Box()
        await session.save_session_state("s", agent=Box(5), box=Box(1))
        await session.load_session_state("s", agent=again)
        assert (again.value, caplog.messages) == (5, [])
        await session.load_session_state("s", agnt=again)
        await session.load_session_state("nope", "bob", agent=again)
        await session.load_session_state("nope", agent=again)
        with pytest.raises(NotFound, match="the session 's' has 0 earlier commits, so it cannot go back"):
            await session.rollback("s")
    assert caplog.messages == [
        "the session 's' has no module 'agnt', which stays as it is; its modules are: agent, box",
        "there is no session 'nope' of user 'bob'; list_sessions() lists all; the modules stay as they are",
        "there is no session 'nope'; list_sessions() lists all; the modules stay as they are",
    ]
