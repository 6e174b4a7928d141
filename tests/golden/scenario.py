"""What the golden stores hold: `fill` and `fill_threads` make it, the others tell what a store holds."""

from __future__ import annotations

from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

from blake3 import blake3
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint

from vstate import Versioned
from vstate.integrations.langgraph import VstateSaver
from vstate.kv.base import KVStore
from vstate.objects.ids import ObjectId
from vstate.repo.repository import Repository
from vstate.repo.writing import BranchChanges
from vstate.sessions import Conversation
from vstate.values.entry import decode_value

LONG = "".join(f"line {number} of a long text\n" for number in range(800))


def fill(store: KVStore) -> None:
    """Branches with and without rooms, merges, tags, and whatever else has rows of its own."""
    state = Versioned(store)
    state.update(
        none=None, yes=True, small=-1, large=2**80, real=0.1, text="é\n", long=LONG, data=bytes(200_000)
    )
    state.update({"nested": {"list": [1, [2.5, "three"]], "set": frozenset({1, 2})}, "day": date(2026, 1, 2)})
    state["path"], state["fraction"] = Path("a/b"), Fraction(1, 3)
    for number in range(120):
        state[f"item/{number:04}"] = {"number": number, "name": f"item {number}"}
    state.record("started", by="ann")
    state.commit("Begin", author="ann")
    state.tag("v1")
    state.expire("item/0000", 100 * 365 * 86_400)
    state.set_policy("item/", "theirs")
    state.commit("Expire")
    side = state.fork("side")
    side["item/0001"], side["only"] = "side", "side"
    side.commit("On the side")
    side.close()
    state["item/0001"] = "main"
    state.commit("On main")
    state.merge("side")
    conversation = Conversation(state, "chat")
    for number in range(12):
        conversation.append({"role": "user", "content": f"message {number}"})
        state.commit(f"Message {number}")
    with state.lease("writer", 1):
        state["leased"] = True
        state.commit("Under a lease")
    state.close()
    _fill_branches(Repository(store))


def _fill_branches(repo: Repository) -> None:
    repo.create_branch("cut", "main")
    for number in range(3):
        repo.commit("cut", set={"cut": number})
        made = repo.commit("thin", set={"thin": number})
        if number == 0 and made is not None:
            repo.create_tag("stays", made.id)
    repo.keep("thin", last=1, daily=1)
    repo.gc(branch="cut", keep_last=2, keep_reflog="0s", grace="0s")
    for name in ("threads/ann", "threads/bob", "threads/gone"):
        for number in range(3):
            change = BranchChanges(name, set={"n": number, "text": LONG[: 500 * number]}, room=True)
            repo.commit_many([change])
    repo.commit("threads/ann", set={"n": 3}, labels={"user": "ann", "scores": [1, 2.5]})
    repo.delete_branch("threads/gone")
    repo.remotes.add("origin", "s3://elsewhere/agents")
    repo.keep("threads/*", idle="36500d", last=100)
    repo.commit("main", set={"last": [number / 7 for number in range(2500)]}, message="After gc")


def described(store: KVStore) -> dict[str, Any]:
    """What the store says of itself, as plain data."""
    repo = Repository(store)
    found: dict[str, Any] = {
        "head": repo.refs.head().branch,
        "tags": {name: commit.id for name, commit in repo.tags().items()},
        "remotes": repo.remotes.list(),
        "keeps": {pattern: repr(keep) for pattern, keep in repo.keeps().items()},
        "policies": Versioned(store).policies(),
        "labels": repo.labels(),
        "deleted": [line.action for line in repo.refs.reflog("heads/threads/gone")],
    }
    for name in repo.branches():
        commits = [*repo.log(name)]
        found[name] = {
            "commits": [
                [
                    made.id,
                    made.message,
                    made.time.isoformat(),
                    made.info,
                    [*map(str, repo.history.parents(made))],
                ]
                for made in commits
            ],
            "events": [[event.kind, event.data] for made in commits for event in made.events],
            "reflog": [line.action for line in repo.refs.reflog(f"heads/{name}")],
            "values": [_values(repo, made.root) for made in commits],
        }
    return found


def _values(repo: Repository, root: ObjectId | None) -> str:
    """A hash of all values of a state."""
    values = {key: repr(decode_value(entry, repo.objects).value) for key, entry in repo.entries(root)}
    return blake3(repr(sorted(values.items())).encode()).hexdigest()[:16]


def fill_threads(saver: VstateSaver) -> None:
    """A thread of LangGraph with messages and writes, a copy that went on, and a deleted one."""
    for name in ("a", "gone"):
        config: RunnableConfig = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        for step in range(12):
            checkpoint = empty_checkpoint()
            messages = [f"message {number} of {name}" for number in range(step + 1)]
            checkpoint["channel_values"] = {"messages": messages, "step": step}
            versions = {"messages": str(step), "step": str(step)}
            checkpoint["channel_versions"] = dict(versions)
            metadata: CheckpointMetadata = {"source": "loop", "step": step, "parents": {}}
            config = saver.put(config, checkpoint, metadata, dict(versions))
            saver.put_writes(config, [("messages", f"write {step}")], f"task {step}")
        if name == "a":
            saver.copy_thread("a", "copy")
    saver.delete_thread("gone")


def threads(saver: VstateSaver) -> dict[str, Any]:
    """By thread, its checkpoints, newest first, with their metadata and writes."""
    return {
        name: [
            [found.checkpoint, found.metadata, found.pending_writes]
            for found in saver.list({"configurable": {"thread_id": name}})
        ]
        for name in ("a", "copy", "gone")
    }
