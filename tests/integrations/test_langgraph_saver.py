"""VstateSaver: LangGraph's checkpoints. LangGraph's own tests of savers run in `make suites`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from counting import Counting
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import in_a_loop
from running import Fork

pytest.importorskip("langgraph.checkpoint.base", reason="langgraph-checkpoint is not installed")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from vstate import Disk, InvalidInput, LeaseLost, Memory, NotFound, Versioned
from vstate.integrations.langgraph import VstateSaver
from vstate.patterns.journal import SEGMENT_BYTES
from vstate.repo import Repository


def named(thread: str = "t", ns: str = "", id: str | None = None) -> Any:
    config = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": config if id is None else {**config, "checkpoint_id": id}}


def step(saver: VstateSaver, number: int, values: dict[str, Any], config: Any = None, **about: Any) -> Any:
    """Put the checkpoint with the id of this number, on top of the one that the config names."""
    channels = {**values, **about.get("counters_since_delta_snapshot", {})}
    versions: dict[str, Any] = dict.fromkeys(channels, number)
    checkpoint = {**empty_checkpoint(), "id": f"{number:08}"}
    checkpoint |= {"channel_values": values, "channel_versions": versions}
    metadata: Any = {"source": "loop", "step": number, **about}
    return saver.put(config or named(), checkpoint, metadata, versions)  # type: ignore[arg-type]


def ids(saver: VstateSaver, thread: str = "t") -> list[str]:
    return [found.checkpoint["id"] for found in saver.list({"configurable": {"thread_id": thread}})]


def read(saver: VstateSaver, config: Any) -> CheckpointTuple:
    """The checkpoint, which is there."""
    found = saver.get_tuple(config)
    assert found is not None
    return found


@pytest.fixture
def saver() -> Iterator[VstateSaver]:
    with VstateSaver(Memory()) as saver:
        yield saver


def test_forks_of_one_checkpoint_keep_their_own_values(saver: VstateSaver) -> None:
    """Two checkpoints with the same parent and equal versions have their own values."""
    first = step(saver, 1, {"a": ["x" * 50], "b": "same"})
    one = saver.put(first, _child("2", {"a": ["x" * 50, "one"], "b": "same"}), {}, {"a": 2})
    other = saver.put(first, _child("3", {"a": ["x" * 50, "other"], "b": "same"}), {}, {"a": 2})
    for config, last in ((one, "one"), (other, "other")):
        assert read(saver, config).checkpoint["channel_values"] == {"a": ["x" * 50, last], "b": "same"}


def _child(id: str, values: dict[str, Any]) -> Any:
    versions = {channel: 2 if channel == "a" else 1 for channel in values}
    return {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}


def test_the_newest_checkpoint_has_the_greatest_id(saver: VstateSaver) -> None:
    """A checkpoint that is put late does not become the newest one, nor does another namespace's."""
    for number in (5, 9, 2):
        step(saver, number, {"a": number})
    step(saver, 7, {"a": 7}, named(ns="sub"))
    newest, inner = read(saver, named()), read(saver, named(ns="sub"))
    assert (newest.checkpoint["id"], inner.checkpoint["id"]) == ("00000009", "00000007")
    assert ids(saver) == ["00000009", "00000007", "00000005", "00000002"]
    assert [
        found.checkpoint["id"] for found in saver.list(named(), before=named(id="00000009"), limit=1)
    ] == ["00000005"]


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "early", "writes", "sub", "cold", "prune"]),
            st.integers(0, 40),
            st.integers(0, 4000),
        ),
        min_size=10,
        max_size=40,
    )
)
def test_a_thread_that_is_opened_cold_is_the_thread(steps: list[tuple[str, int, int]]) -> None:
    """Each read of a saver that has just been opened gives what one gives that has read all."""
    store = Memory()
    saver = VstateSaver(store)
    texts: list[str] = []
    for order, (what, number, size) in enumerate(steps):
        ns = "sub" if what == "sub" else ""
        config, newest = named(ns=ns, id=f"{number:08}"), saver.get_tuple(named(ns=ns))
        if what == "cold":
            saver = VstateSaver(store)
        elif what == "prune":
            saver.prune(["t"])
        elif what in ("put", "sub"):
            texts = [*texts[number % 3 :], f"{order}" * size]
            before = newest.config if newest and number % 3 else named(ns=ns)
            step(saver, number, {"texts": texts, "first": texts[:1]}, before)
        elif what == "early" or saver.get_tuple(config) is not None:
            with suppress(NotFound):  # it was pruned
                saver.put_writes(config, [("texts", "w" * size), ("__error__", order)], f"task {order % 3}")
    whole = VstateSaver(store)
    every = list(whole.list({"configurable": {"thread_id": "t"}}))
    for config in (named(), named(ns="sub"), *(found.config for found in every)):
        assert repr(VstateSaver(store).get_tuple(config)) == repr(whole.get_tuple(config))
    assert all(repr(whole.get_tuple(found.config)) == repr(found) for found in every)


def test_a_thread_that_is_opened_cold_reads_its_newest_checkpoint_alone() -> None:
    """The first get reads little more than the value that it gives; a write to a cold thread reads less.

    Some writes of each checkpoint came before it.
    """
    store = Counting(Memory())
    chance, texts, config = random.Random(1), list[str](), named()
    with VstateSaver(store) as saver:
        for number in range(200):
            texts = [*texts, chance.randbytes(300).hex()]
            saver.put_writes(named(id=f"{number:08}"), [("texts", "early")], "first task")
            config = step(saver, number, {"texts": texts}, config)
            saver.put_writes(config, [("texts", chance.randbytes(300).hex())], "task")
    store.lengths.clear()
    with VstateSaver(store) as saver:
        saver.put_writes(config, [("texts", "more")], "other task")
        saver.put_writes(named(id="00000200"), [("texts", "before it")], "task")
        assert sum(store.lengths) < 40_000
        assert ("other task", "texts", "more") in (read(saver, named()).pending_writes or ())
        assert read(saver, named()).checkpoint["channel_values"] == {"texts": texts}
        assert sum(store.lengths) < 0.8 * sum(map(len, texts))  # half the room of digits
        assert len(ids(saver)) == 200
        assert sum(store.lengths) > 2 * sum(map(len, texts))


def test_writes_may_come_before_their_checkpoint(saver: VstateSaver) -> None:
    """Writes are there once their checkpoint is; a second one of a place stays out, but not an error."""
    config = named(id="00000001")
    saver.put_writes(config, [("a", 1), ("b", 2)], "task2", "~2")
    saver.put_writes(config, [("a", 3), ("__error__", "first")], "task1", "~1")
    assert saver.get_tuple(config) is None
    saver.put_writes(config, [("a", "late"), ("__error__", "second")], "task1", "~1")
    step(saver, 1, {})
    found = read(saver, config)
    assert found.pending_writes == [
        ("task1", "__error__", "second"),
        ("task1", "a", 3),
        ("task2", "a", 1),
        ("task2", "b", 2),
    ]
    commits = len(list(saver.repo.log("threads/t")))
    saver.put_writes(config, [("a", "later")], "task1", "~1")
    assert len(list(saver.repo.log("threads/t"))) == commits


@pytest.mark.parametrize(
    ("keep", "thread"),
    [
        (lambda saver: saver.prune(["t"]), "t"),
        (lambda saver: saver.delete_for_runs(["run"]), "t"),
        (lambda saver: saver.copy_thread("t", "u"), "u"),
    ],
)
@pytest.mark.parametrize("cold", [False, True])
def test_writes_before_their_checkpoint_outlive_a_rewrite(
    keep: Callable[[VstateSaver], None], thread: str, cold: bool
) -> None:
    """A prune, the deletion of a run and a copy onto a thread keep writes whose checkpoint comes later."""
    store = Memory()
    saver = VstateSaver(store)
    saver.put(named(), {**empty_checkpoint(), "id": "00000001"}, {"run_id": "run"}, {})
    step(saver, 2, {"a": 2}, named(id="00000001"))
    step(saver, 2, {"a": 2}, named("u"))

    def fill(name: str, *numbers: int) -> None:
        """Add steps, so long that a new saver reads these, and not the steps before them."""
        for number in range(*numbers):
            step(saver, number, {"a": random.Random(number).randbytes(SEGMENT_BYTES).hex()}, named(name))

    saver.put_writes(named("u", id="00000020"), [("a", "onto")], "another")
    fill("u", 3, 9)
    saver.put_writes(named(id="00000020"), [("a", "early")], "task")
    keep(saver)
    fill(thread, 9, 14)
    if cold:
        saver = VstateSaver(store)
    saver.put_writes(named(thread, id="00000020"), [("a", "again")], "task")
    fill(thread, 14, 19)
    config = step(saver, 20, {"a": 20}, named(thread))
    early = [("another", "a", "onto")] * (thread == "u") + [("task", "a", "early")]
    assert read(VstateSaver(store), config).pending_writes == early
    assert VstateSaver(store).get_tuple(config) == read(saver, config)


def test_a_thread_that_gave_its_memory_back_goes_on(saver: VstateSaver) -> None:
    """A run whose thread fell out of memory, because many others were used, writes on."""
    config = step(saver, 1, {"a": 1})
    saver._journals._most = 2
    for number in range(3):
        step(saver, 1, {"a": number}, named(f"other {number}"))
    saver.put_writes(config, [("a", 2)], "task")
    step(saver, 2, {"a": 2}, config)
    assert ids(saver) == ["00000002", "00000001"]


def test_what_was_removed_stays_removed_beside_a_stale_writer() -> None:
    """After a prune and a rollback by another saver, a stale one adds its step alone."""
    store = Memory()
    stale, other = VstateSaver(store), VstateSaver(store)
    for number in range(20):
        step(stale, number, {"messages": ["m" * 40] * number})
    other.prune(["t"])
    step(stale, 20, {"messages": ["m" * 40] * 20})
    assert ids(other) == ids(stale) == ["00000020", "00000019"]
    assert read(other, named(id="00000019")).checkpoint["channel_values"]["messages"] == ["m" * 40] * 19
    other.repo.rollback("threads/t", "threads/t~1")
    step(stale, 23, {"a": 3})
    assert ids(other) == ["00000023", "00000019"]


def test_with_a_lease_threads_are_copied_and_deleted_as_without() -> None:
    """Under a lease that is held, a copy has all checkpoints, and a deleted thread is gone."""
    store = Memory()
    with Versioned(store).lease("worker") as lease:
        saver = VstateSaver(store, lease=lease)
        for number in range(4):
            config = step(saver, number, {"messages": ["x" * 40] * number})
            saver.put_writes(config, [("a", number)], "task")
        for target in ("u", "t", "u"):
            saver.copy_thread("t", target)
        assert ids(saver, "u") == ids(saver) == ["00000003", "00000002", "00000001", "00000000"]
        found = read(saver, named("u"))
        assert found.checkpoint["channel_values"]["messages"] == ["x" * 40] * 3
        assert found.pending_writes == [("task", "a", 3)]
        saver.delete_thread("t")
        saver.delete_thread("never there")
        assert saver.repo.branch_names("threads/") == ["threads/u"]


class Refusing:
    """A guard that refuses everything."""

    along = ()

    def rows(self) -> Any:
        raise LeaseLost("lease", fence=1, reason="it is refused here")

    def check(self) -> None:
        self.rows()


def test_a_step_that_did_not_land_leaves_nothing_behind() -> None:
    """A step is refused, another saver puts one of equal length, and the next step has the right values."""
    store = Memory()
    saver, other = VstateSaver(store), VstateSaver(store)
    first = ["the first message " * 9]
    step(saver, 1, {"messages": first})
    saver._journal("t").guard = Refusing()
    with pytest.raises(LeaseLost):
        step(saver, 2, {"messages": [*first, "lost " * 9]}, named(id="00000001"))
    saver._journal("t").guard = None
    config = step(other, 3, {"messages": [*first, "kept " * 9]}, named(id="00000001"))
    saver.get_tuple(config)
    step(saver, 4, {"messages": [*first, "lost " * 9, "new " * 9]}, config)
    for reader in (saver, other):
        messages = read(reader, named()).checkpoint["channel_values"]["messages"]
        assert messages == [*first, "lost " * 9, "new " * 9]


def test_a_copy_of_a_thread_is_one_ref_and_grows_alone(saver: VstateSaver) -> None:
    """A copy has the same checkpoints without a new object; copied onto a thread, it adds to that."""
    config = named()
    for number in range(5):
        config = step(saver, number, {"messages": ["x" * 40] * number}, config)
        saver.put_writes(config, [("a", number)], "task")
    objects = len(list(saver.repo.store.keys("o/")))
    saver.copy_thread("t", "u")
    assert len(list(saver.repo.store.keys("o/"))) == objects
    step(saver, 9, {"messages": ["new"]}, named("u"))
    assert (ids(saver)[0], ids(saver, "u")[0]) == ("00000004", "00000009")
    step(saver, 8, {"messages": ["old" * 30]}, named("v"))
    saver.copy_thread("t", "v")
    assert ids(saver, "v") == ["00000008", *ids(saver)]
    for number in range(5):
        found = read(saver, named("v", id=f"{number:08}"))
        assert found.checkpoint["channel_values"]["messages"] == ["x" * 40] * number
        assert found.pending_writes == [("task", "a", number)]
    saver.copy_thread("none", "w")
    assert saver.repo.branch_names("threads/") == ["threads/t", "threads/u", "threads/v"]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("ours", "theirs", "steps"), [(10, 90, 9), (90, 10, 9), (90, 10, 40)])
def test_copies_of_a_thread_that_were_merged_are_refused(
    saver: VstateSaver, ours: int, theirs: int, steps: int, cold: bool
) -> None:
    """No value is put together from the records of both; a reset makes the thread whole again."""
    store = saver.repo.store
    step(saver, 0, {"m": ["shared " * 20]})
    saver.copy_thread("t", "u")
    for thread, size, last in (("u", theirs, 9), ("t", ours, steps)):
        step(saver, 1, {"m": [f"{thread} " * size * 60]}, named(thread))
        for number in range(2, last):
            step(saver, number, {"m": [f"{thread} " * size * 60, thread * 400 * number]}, named(thread))
    before = list(saver.list(named()))
    with Versioned(store, branch="threads/t") as state:
        state.merge("threads/u", policy="ours")
    for read_some in (lambda saver: list(saver.list(named())), lambda saver: saver.get_tuple(named())):
        with pytest.raises(InvalidInput, match="two copies of a journal were merged"):
            read_some(VstateSaver(store) if cold else saver)
    with Versioned(store, branch="threads/t") as state:
        state.reset("HEAD~1")
    assert list(VstateSaver(store).list(named())) == before


def test_runs_are_deleted_in_every_thread(saver: VstateSaver) -> None:
    """The checkpoints of a run go with their writes, in all threads and namespaces; others keep theirs."""
    for thread in ("t", "odd id / with %"):
        for number, run in enumerate(["one", "two", "one"]):
            config = step(saver, number, {"m": ["x" * 40] * number}, named(thread), run_id=run)
            saver.put_writes(config, [("a", number)], "task")
    saver.delete_for_runs(["one"])
    for thread in ("t", "odd id / with %"):
        (found,) = saver.list(named(thread))
        assert (found.checkpoint["id"], found.pending_writes) == ("00000001", [("task", "a", 1)])
        assert saver.get_tuple(named(thread, id="00000002")) is None
    assert [found.metadata["run_id"] for found in saver.list(None, filter={"source": "loop"})] == ["two"] * 2


def test_an_id_of_none_and_a_text_for_a_list_of_ids_are_refused(saver: VstateSaver) -> None:
    """None is no thread, and the letters of a text are no ids: nothing is written or deleted."""
    step(saver, 1, {"m": 1}, named("t"))
    for call in (
        lambda: saver.put(named(None), empty_checkpoint(), {}, {}),  # type: ignore[arg-type]  # refused
        lambda: saver.get_tuple(named(None)),  # type: ignore[arg-type]  # refused
        lambda: list(saver.list(named(None))),  # type: ignore[arg-type]  # refused
        lambda: saver.copy_thread("t", None),  # type: ignore[arg-type]  # refused
        lambda: saver.delete_thread(None),  # type: ignore[arg-type]  # refused
    ):
        with pytest.raises(InvalidInput, match="thread_id"):
            call()
    for remove in (saver.delete_for_runs, partial(saver.prune, strategy="delete")):
        with pytest.raises(TypeError, match="several ids"):
            remove("t")
    assert saver.repo.branch_names() == ["threads/t"]
    assert len(ids(saver)) == 1


def test_a_delta_channel_is_rebuilt_after_a_prune(saver: VstateSaver) -> None:
    """The writes since the last stored value come in order, and a prune keeps the newest checkpoint alone."""
    config = step(saver, 0, {"log": ["seed"]})
    for number in range(1, 5):
        saver.put_writes(config, [("log", [number])], "task")
        config = step(saver, number, {}, config, counters_since_delta_snapshot={"log": [number, number]})
    before = saver.get_delta_channel_history(config=config, channels=["log", "none"])
    assert before["log"] == {
        "seed": ["seed"],
        "writes": [("task", "log", [number]) for number in range(1, 5)],
    }
    assert before["none"] == {"writes": []}
    step(saver, 100, {"a": 1}, named(ns="old"))
    step(saver, 101, {"a": 1}, named(ns="old"))
    saver.prune(["t"])
    assert ids(saver) == ["00000101", "00000004"]
    assert saver.get_delta_channel_history(config=config, channels=["log", "none"]) == before


@dataclass
class Secretive:
    """A class of the program."""

    text: str


class Secret:
    """A cipher that flips the bits."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "flip", bytes(255 - byte for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(255 - byte for byte in ciphertext)


def test_nothing_passes_the_serializer_by(tmp_path: Path) -> None:
    """With an encrypting serializer no value, metadata or write is in the store in plain text."""
    with VstateSaver(tmp_path / "s", serde=EncryptedSerializer(Secret())) as saver:
        config = named()
        for number in range(3):
            config = step(saver, number, {"messages": ["topsecret" * 9] * number}, config, user="topsecret")
            saver.put_writes(config, [("messages", "topsecret")], "task")
        assert read(saver, named()).checkpoint["channel_values"]["messages"] == ["topsecret" * 9] * 2
        head = saver.repo.newest(saver.branch("t"))
        assert head is not None
        for key, entry in saver.repo.entries(head.root):
            assert "topsecret" not in repr(saver.repo.inspect(key, entry.raw))


def test_langgraphs_allow_list_decides_what_is_loaded() -> None:
    """A class that the strict serializer does not allow comes back as data, and a clone may allow it."""
    saver = VstateSaver(Memory(), serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    step(saver, 1, {"path": Secretive("x")})
    assert read(saver, named()).checkpoint["channel_values"]["path"] == {"text": "x"}
    clone = saver.with_allowlist([(Secretive.__module__, "Secretive")])
    assert read(clone, named()).checkpoint["channel_values"]["path"] == Secretive("x")
    assert read(saver, named()).checkpoint["channel_values"]["path"] == {"text": "x"}


@pytest.mark.parametrize("kind", ["dicts", "messages", "nested"])
def test_a_reader_may_edit_what_it_got(saver: VstateSaver, kind: str) -> None:
    """Messages, dicts and lists of a checkpoint are the reader's own, however often the same one is read."""
    calls: list[Any] = [{"name": "f", "args": {"a": [1]}, "id": "1"}]
    human = HumanMessage("x" * 50, additional_kwargs={"a": [1]})
    messages: list[Any] = {
        "dicts": [{"role": "user", "content": "x" * 50} for _ in range(99)],
        "messages": [human, AIMessage("", tool_calls=calls)] * 30,
        "nested": [{"role": "user", "content": [{"text": "x" * 50}]} for _ in range(99)],
    }[kind]
    step(saver, 1, {"messages": messages})
    for _ in range(4):
        found = read(saver, named())
        got = found.checkpoint["channel_values"]["messages"]
        assert got == messages
        assert [type(item) for item in got] == [type(item) for item in messages]
        if kind == "messages":
            got[0].content = "edited"
            got[0].additional_kwargs["a"].append(2)
            got[1].tool_calls[0]["args"].clear()
        else:
            got[0]["content"] = "edited"
            if kind == "nested":
                got[1]["content"][0]["text"] = "edited"
        got.pop()
        found.checkpoint["channel_versions"].clear()
        found.metadata.clear()


def test_versions_go_on_in_their_own_kind(saver: VstateSaver) -> None:
    """After None and numbers come numbers, and after a text of another saver comes a greater text."""
    assert saver.get_next_version(None, None) == 1
    assert saver.get_next_version(7, None) == 8
    text = f"{9:032}.{0.5:016}"
    after = saver.get_next_version(text, None)
    assert after > text
    assert after.startswith(f"{10:032}.")


@in_a_loop
async def test_in_an_event_loop(tmp_path: Path) -> None:
    """The async methods do the same; many tasks put at once, and each step is there."""
    async with VstateSaver(tmp_path / "s") as saver:
        checkpoints: list[Any] = [{**empty_checkpoint(), "id": f"{number:08}"} for number in range(70)]
        metadata: Any = {"source": "loop"}
        await asyncio.gather(*(saver.aput(named(), checkpoint, metadata, {}) for checkpoint in checkpoints))
        config = named(id="00000069")
        await saver.aput_writes(config, [("a", 1)], "task", task_path="~1")
        found = await saver.aget_tuple(named())
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]
        assert len([one async for one in saver.alist(named(), limit=15)]) == 15
        assert [one async for one in saver.alist(None)] == list(saver.list(None))
        await saver.acopy_thread("t", "u")
        await saver.aprune(["t"])
        assert len([one async for one in saver.alist(None)]) == 71
        await saver.adelete_thread("u")
        await saver.adelete_for_runs(["none"])
        assert len([one async for one in saver.alist(None)]) == 1


def write_a_thread(store: Path, name: str) -> None:
    with VstateSaver(store) as saver:
        config = named()
        for number in range(12):
            values = {"messages": [f"{name} {number} {i} " * 9 for i in range(number)]}
            checkpoint: Any = {**empty_checkpoint(), "id": f"{number:04}-{name}", "channel_values": values}
            checkpoint["channel_versions"] = {"messages": number}
            config = saver.put(config, checkpoint, {"step": number}, {"messages": number})
            saver.put_writes(config, [("messages", name)], name)


@pytest.mark.slow
def test_processes_write_one_thread(tmp_path: Path) -> None:
    """Checkpoints and writes of four processes in one thread are all there, with their values."""
    Disk(tmp_path / "s").close()
    forks = [Fork(partial(write_a_thread, tmp_path / "s", name)) for name in "abcd"]
    assert [fork.end() for fork in forks] == [(0, "")] * 4
    with VstateSaver(tmp_path / "s") as saver:
        found = list(saver.list(named()))
        assert len(found) == 48
        for one in found:
            number, _, name = one.checkpoint["id"].partition("-")
            messages = [f"{name} {int(number)} {i} " * 9 for i in range(int(number))]
            assert one.checkpoint["channel_values"] == {"messages": messages}
            assert one.pending_writes == [(name, "messages", name)]


def put_supersteps(store: Path) -> None:
    """Go on with a thread for ever: each superstep has a checkpoint and seven writes, all at once."""
    saver = VstateSaver(store)
    before = saver.get_tuple(named())
    config = before.config if before else named()
    with ThreadPoolExecutor(8) as threads:
        for number in count(int(before.checkpoint["id"]) + 1 if before else 1):
            id = f"{number:08}"

            def write(task: str, id: str = id) -> None:
                saver.put_writes(named(id=id), [("messages", f"{id} {task} " * 20)], task)
                os.write(1, f"{id} {task}\n".encode())

            def put(config: Any = config, id: str = id, number: int = number) -> None:
                saver.put(config, {**empty_checkpoint(), "id": id}, {"step": number}, {})
                os.write(1, f"{id} put\n".encode())

            calls = [threads.submit(put), *(threads.submit(write, task) for task in "abcdefg")]
            for call in calls:
                call.result()
            config = named(id=id)


@pytest.mark.slow
def test_each_write_of_a_superstep_that_was_killed_is_there(tmp_path: Path) -> None:
    """A process is killed in the middle of checkpoints and writes that land together, again and again."""
    chance = random.Random(3)
    acknowledged: set[str] = set()
    for _ in range(4):
        with Fork(partial(put_supersteps, tmp_path / "s")) as worker:
            heard = [worker.output.readline() for _ in range(chance.randrange(1, 60))]
            worker.kill()
            heard += worker.end()[1].splitlines(keepends=True)
        acknowledged |= {line.strip() for line in heard if line.endswith("\n")}
        with VstateSaver(tmp_path / "s") as saver:
            found = {f"{one.checkpoint['id']} put": one for one in saver.list(named())}
            assert all(line in found for line in acknowledged if line.endswith("put"))
            journal = saver._journal("t")
            for line in acknowledged:
                id, task = line.split()
                writes = {write.task for write in journal.index.writes("", id)}
                assert task == "put" or task in writes, line
            assert saver.repo.fsck().ok
    assert len(acknowledged) > 40


FENCED = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from vstate import Disk, LeaseLost, Versioned
from vstate.integrations.langgraph import VstateSaver
store = Disk(sys.argv[1])
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
with Versioned(store).lease("worker", ttl=0.5) as lease:
    saver = VstateSaver(store, lease=lease)
    saver.put(config, {**empty_checkpoint(), "id": "1"}, {}, {})
    print("ready", flush=True)
    sys.stdin.readline()
    newest = {"configurable": {**config["configurable"], "checkpoint_id": "2"}}
    calls = [
        lambda: saver.put(config, {**empty_checkpoint(), "id": "3"}, {}, {}),
        lambda: saver.put_writes(newest, [("a", 1)], "x"),
        lambda: saver.delete_thread("t"),
        lambda: saver.copy_thread("t", "u"),
        lambda: saver.prune(["t"]),
        lambda: saver.delete_for_runs(["r"]),
    ]
    for call in calls:
        try:
            call()
        except LeaseLost:
            print("refused", flush=True)
"""


@pytest.mark.slow
def test_a_worker_that_lost_its_turn_changes_nothing(tmp_path: Path) -> None:
    """A worker is stopped, another one takes the lease over, and the first gets LeaseLost from each write."""
    store = Disk(tmp_path / "s")
    command = [sys.executable, "-c", FENCED, str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        worker.send_signal(signal.SIGSTOP)
        try:
            with Versioned(store).lease("worker", ttl=30) as lease:
                saver = VstateSaver(store, lease=lease)
                config = saver.put(named(), _child("2", {"a": 1}), {"run_id": "r"}, {"a": 2})
                saver.put_writes(config, [("b", 2)], "task")
                heads = Repository(store).branches()
                worker.send_signal(signal.SIGCONT)
                out, _ = worker.communicate("go\n", timeout=60)
                assert out.split() == ["refused"] * 6
                assert Repository(store).branches() == heads
                assert ids(saver) == ["2", "1"]
        finally:
            worker.kill()
    with pytest.raises(LeaseLost):
        step(saver, 9, {})
    store.close()


def test_a_filtered_list_is_never_behind(tmp_path: Path) -> None:
    """Whatever moves the threads, a filter gives what a look at all checkpoints gives."""
    store, dice = Disk(tmp_path / "s", durability="process"), random.Random(7)
    plain, sealed = VstateSaver(store), VstateSaver(store, serde=EncryptedSerializer(Secret()))
    users = ["ann", "bob", "eve", *"defghijk"]
    numbers = iter(range(1, 10_000))

    def put(saver: VstateSaver, thread: str) -> None:
        user = dice.choice([*users, None, 7, {"name": "ann"}])
        step(saver, next(numbers), {}, named(thread), user=user, run_id=f"run {dice.randrange(4)}")

    def check() -> None:
        found = list(plain.list(None))
        for filter in ({"user": dice.choice(users)}, {"user": "ann", "run_id": "run 1"}, {"user": 7}):
            wanted = [f for f in found if all(f.metadata.get(k) == v for k, v in filter.items())]
            assert list(plain.list(None, filter=filter)) == wanted  # type: ignore[arg-type]

    def pulled(thread: str) -> None:
        """Another store has the thread, and moves it on."""
        other = Repository(Memory())
        name = plain.branch(thread)
        plain.repo.push(other, [name], force=True)
        put(VstateSaver(other.store), thread)
        other.push(plain.repo, [name], force=True)

    def at_random(thread: str) -> None:
        plain.put_writes(named(thread, id=f"{next(numbers):08}"), [("c", 1)], "task")
        name = plain.branch(thread)
        plain.repo.move_branch(name, f"{name}~1")

    others = [
        pulled,
        at_random,
        lambda thread: plain.prune([thread]),
        lambda thread: plain.delete_thread(thread),
        lambda thread: plain.delete_for_runs(["run 2"]),
        lambda thread: plain.copy_thread(thread, f"thread {dice.randrange(6)}"),
        lambda thread: put(VstateSaver(store), thread),
    ]
    for _ in range(60):
        thread = f"thread {dice.randrange(6)}"
        put(plain, thread)
        if not dice.randrange(2):
            dice.choice(others)(thread)  # type: ignore[no-untyped-call]
        check()
    put(plain, "last")
    for thread in ("last", "x" * 300):
        step(sealed, next(numbers), {}, named(thread), user="mallory")
        assert not any(b"mallory" in row for _, row in store.items("r/"))
        assert plain.branch(thread) in plain.repo.possible_branches({"user": "mallory"})
    assert len(plain.repo.possible_branches({"user": "nobody"})) < len(plain.repo.branch_names())


def test_the_example_of_a_rule(example: Any) -> None:
    """The rule of the threads, which an adapter sets as it is opened."""
    example("Retention")
    assert {*Repository(Disk("./threads")).keeps()} == {"threads/*"}


def test_the_rule_of_threads_is_that_of_their_prefix() -> None:
    """Without a prefix it would be the rule of all branches, of whatever program: that is refused."""
    for prefix, pattern in (("t-", "t-*"), ("a/b/", "a/b/*")):
        saver = VstateSaver(prefix=prefix, keep="1d")
        assert {*saver.repo.keeps()} == {pattern}
    with pytest.raises(InvalidInput, match="give a prefix"):
        VstateSaver(prefix="", keep="1d")


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """The branch of a thread, and the commands that show its steps."""
    example("The checkpointer: threads")
    with VstateSaver("./threads") as saver:
        for number in (1, 2):
            step(saver, number, {"messages": ["hello"] * number}, named("session 17"))
    log, diff, shown, *_ = commands("The checkpointer: threads")
    assert log.index("step 2") < log.index("step 1")
    assert "00000002" in diff
    assert "['hello', 'hello']" in shown


def test_calls_that_land_together_on_a_thread_that_is_read_in_part() -> None:
    """One of them needs the older part, and makes no record: the other ones land at their places."""
    store = Memory()

    def config(id: str = "") -> Any:
        found = {"thread_id": "t", "checkpoint_ns": ""}
        return {"configurable": {**found, "checkpoint_id": id} if id else found}

    def put(saver: VstateSaver, number: int, parent: str, **values: Any) -> str:
        made = {**empty_checkpoint(), "id": f"{number:08d}", "channel_values": values}
        made["channel_versions"] = versions = dict.fromkeys(values, number)
        saver.put(config(parent), made, {"step": number}, versions)
        return made["id"]

    first, last = VstateSaver(store), ""
    for number in range(30):
        last = put(first, number, last, i=number)
        first.put_writes(config(last), [("m", random.Random(number).randbytes(1500).hex())], "task")
    saver = VstateSaver(store)
    saver.get_tuple(config())
    journal = saver._journal("t")
    assert journal._before
    with ThreadPoolExecutor(2) as threads:
        with journal.lock:
            calls = [threads.submit(put, saver, 100, last, i=100)]
            calls.append(threads.submit(saver.put_writes, config("00000002"), [("m", 2)], "task"))
            while len(journal._waiting) < 2:
                sleep(0.001)
        for call in calls:
            call.result()
    text = random.Random("a text").randbytes(3000).hex()
    put(saver, 101, "00000100", i=101, doc=text)
    for each in (saver, VstateSaver(store)):
        found = each.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"]["doc"] == text
        assert len([*each.list(config())]) == 32
        assert each.get_tuple(config("00000002")) is not None
