"""Indexes of records: after any steps, on branches that diverge and merge too, they equal a scan."""

from __future__ import annotations

from typing import Any

import pytest
from clock import standing_still
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import BaseModel
from soak import sized

from vstate import Versioned
from vstate.kv import Memory
from vstate.patterns import Records, join_path


class Item(BaseModel):
    id: str
    group: str = ""
    rank: int | None = None
    text: str = ""


IDS = st.sampled_from(["", "a", "a/b", "b", "%index", "ä"])
ITEMS = st.builds(
    Item,
    id=IDS,
    group=st.sampled_from(["", "a", "%", "a/"]),
    rank=st.none() | st.integers(-2, 2),
    text=st.sampled_from(["", "x"]),
)


def place(item: Item) -> tuple[str, int] | None:
    return None if item.rank is None else (item.group, item.rank)


def items_in(state: Any) -> Records[Item]:
    index = {"place": place, "group": lambda item: item.group}
    return Records(state.namespace("items"), Item, key="id", index=index)


class Indexed(RuleBasedStateMachine):
    """Branches of one store, each with a dict as the model."""

    @initialize()
    def begin(self) -> None:
        self.clock = standing_still()
        self.time = self.clock.__enter__()
        self.store = Memory()
        self.handles = {"main": Versioned(self.store, branch="main")}
        self.long_lived = {"main": items_in(self.handles["main"])}
        self.models: dict[str, dict[str, Item]] = {"main": {}}
        self.loose = False

    def teardown(self) -> None:
        if hasattr(self, "clock"):
            self.clock.__exit__(None, None, None)

    def pick(self, data: st.DataObject) -> tuple[str, Records[Item], dict[str, Item]]:
        name = data.draw(st.sampled_from(sorted(self.handles)))
        records = self.long_lived[name] if data.draw(st.booleans()) else items_in(self.handles[name])
        return name, records, self.models[name]

    def resync(self, name: str) -> None:
        self.models[name] = {item.id: item for item in items_in(self.handles[name]).values()}

    @rule(data=st.data(), item=ITEMS)
    def put(self, data: st.DataObject, item: Item) -> None:
        _, records, model = self.pick(data)
        records.put(item)
        model[item.id] = item

    @rule(data=st.data(), item=ITEMS)
    def change(self, data: st.DataObject, item: Item) -> None:
        _, records, model = self.pick(data)
        if item.id in model:
            records.change(item.id, lambda before: item)
            model[item.id] = item

    @rule(data=st.data(), item=ITEMS)
    def edit(self, data: st.DataObject, item: Item) -> None:
        """Read a record, edit it, and put it, with a read of the index in between."""
        _, records, model = self.pick(data)
        held = records.get(item.id)
        if held is not None:
            held.group, held.rank = item.group, item.rank
            if data.draw(st.booleans()):
                list(records.indexed("place"))
            records.put(held)
            model[item.id] = held

    @rule(data=st.data(), id=IDS)
    def discard(self, data: st.DataObject, id: str) -> None:
        _, records, model = self.pick(data)
        assert records.discard(id) == (model.pop(id, None) is not None)

    @rule(data=st.data())
    def take_first(self, data: st.DataObject) -> None:
        _, records, model = self.pick(data)
        first = next(records.indexed("place"), None)
        if first is not None:
            model[first.id] = records.change(first.id, rank=None)

    @rule(data=st.data(), id=IDS)
    def expire(self, data: st.DataObject, id: str) -> None:
        name, records, model = self.pick(data)
        if id in model:
            records.expire(id, 10)
            self.handles[name].commit()
            self.time.pass_(11)
            self.loose = True
            for each in self.handles:
                self.resync(each)

    @rule(data=st.data(), item=ITEMS)
    def put_unaware(self, data: st.DataObject, item: Item) -> None:
        """A program without the index puts a record: all results are right, and a put restores the index."""
        name, records, model = self.pick(data)
        Records(self.handles[name].namespace("items"), Item, key="id").put(item)
        model[item.id] = item
        found = [each.id for each in records.indexed("place")]
        assert [id for id in found if id != item.id] == [
            id for id in self.wanted(model, "place") if id != item.id
        ]
        assert set(found) <= set(self.wanted(model, "place"))
        records.put(records[item.id])
        self.loose = True

    @rule(data=st.data(), item=ITEMS)
    def put_elsewhere(self, data: st.DataObject, item: Item) -> None:
        """Another process writes to the same branch."""
        name, _, _ = self.pick(data)
        state = self.handles[name]
        state.commit()
        if state.head is not None:
            Versioned(self.store, branch=name).apply(lambda inner: items_in(inner).put(item))
            state.refresh()
            self.models[name][item.id] = item

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.handles[self.pick(data)[0]].commit()

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = self.pick(data)[0]
        self.handles[name].discard()
        self.resync(name)
        self.make_good(name, items_in(self.handles[name]))

    @rule(data=st.data(), steps=st.integers(1, 3))
    def rollback(self, data: st.DataObject, steps: int) -> None:
        name = self.pick(data)[0]
        state = self.handles[name]
        if not state.has_uncommitted and len(list(state.log())) > steps:
            state.refresh()  # another process may have put an item
            state.rollback(f"HEAD~{steps}")
            self.resync(name)
            self.make_good(name, items_in(state))

    @rule(data=st.data())
    def branch(self, data: st.DataObject) -> None:
        name = self.pick(data)[0]
        state, new = self.handles[name], f"branch-{len(self.handles)}"
        if state.head is not None and len(self.handles) < 3 and not state.has_uncommitted:
            self.handles[new] = state.fork(new)
            self.long_lived[new] = items_in(self.handles[new])
            self.resync(new)

    @rule(data=st.data(), policy=st.sampled_from(["ours", "theirs"]))
    def merge(self, data: st.DataObject, policy: str) -> None:
        name, records, _ = self.pick(data)
        other = data.draw(st.sampled_from(sorted(self.handles)))
        state, theirs = self.handles[name], self.handles[other]
        state.commit()
        theirs.commit()
        if name == other or state.head is None or theirs.head is None:
            return
        result = state.merge(other, policy=policy)
        self.resync(name)
        self.loose |= bool(result.conflicts)
        self.make_good(name, records)

    def make_good(self, name: str, records: Records[Item]) -> None:
        """Merge policies, expiry and other programs may hide records from the index; no result is wrong."""
        if self.loose:
            found = [each.id for each in records.indexed("place")]
            assert found == [id for id in self.wanted(self.models[name], "place") if id in found]
            records.reindex()

    def wanted(self, model: dict[str, Item], name: str) -> list[str]:
        """The result of a scan of the dict, with texts in order of key."""
        there = [item for item in model.values() if name == "group" or item.rank is not None]

        def order(item: Item) -> str:
            rank = "" if name == "group" or item.rank is None else f"/{item.rank + 2}"
            return f"{join_path(item.group)}{rank}//{join_path(item.id)}"

        return [item.id for item in sorted(there, key=order)]

    @invariant()
    def exact(self) -> None:
        for name, model in getattr(self, "models", {}).items():
            for records in (items_in(self.handles[name]), self.long_lived[name]):
                assert {item.id: item for item in records.values()} == model
                assert len(records) == len(model)
                if not self.loose:
                    hints = len(self.handles[name].namespace("items").keys("%index/"))
                    assert hints == sum(1 + (item.rank is not None) for item in model.values())
                for index in ("place", "group"):
                    found = list(records.indexed(index))
                    assert [item.id for item in found] == self.wanted(model, index)
                    assert all(model[item.id] == item for item in found)
                assert [item.id for item in records.indexed("group", "a/")] == sorted(
                    item.id for item in model.values() if item.group == "a/"
                )


Indexed.TestCase.settings = settings(max_examples=sized(20, 300), stateful_step_count=30)
TestIndexed = pytest.mark.slow(Indexed.TestCase)
