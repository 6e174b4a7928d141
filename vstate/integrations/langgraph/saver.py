"""VstateSaver: LangGraph's checkpoints, each thread a branch, each step one small commit."""

from __future__ import annotations

import pickle
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from vstate.aio.workers import awaited, in_thread
from vstate.arguments import check_several
from vstate.errors import AlreadyExists, InvalidInput, NotFound, RefMoved
from vstate.integrations.branches import IDS, BranchName, branch_below, texts_below
from vstate.integrations.langgraph.store import field_of
from vstate.integrations.opening import KeepLike, Opened, Opening, StoreLike, first_labels, summary
from vstate.patterns.journal import Journal, Journals
from vstate.readers.threads import CHECKPOINT, Pair, Record, Saved, Thread, Value, Write, writes_record
from vstate.repo.core import Guard
from vstate.repo.rules.labels import Label
from vstate.state.tracking import IMMUTABLE
from vstate.values.pickling import loads

_T = TypeVar("_T")

_BATCH: Final = 64  # checkpoints that `alist` loads without a look at the event loop
_MESSAGES: Final = "langchain_core.messages."
_SHORTEST: Final = 4096  # bytes of a value that is worth a copy

# The facts of a thread: the texts in the metadata of its checkpoints, as labels by which a filtered list
# finds the thread.
_NO_FACTS: Final[Mapping[str, Label]] = {"": []}
_MOST_TEXTS: Final = 8  # of one name; then the label is True, which stands for any text
_MOST_BYTES: Final = 2048  # of all names and texts; then True under the empty name stands for any of any name
_NEVER_A_TEXT: Final = (type(None), bool, int, float, bytes, dict, list, tuple)


class _Thread(Thread):
    """A thread in memory. A long list of messages that is read again and again is loaded twice, then copied.

    A copy takes a quarter of the time: LangGraph's serializer calls the constructor of each message. A reader
    owns the list and the messages that it gets.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, str], tuple[Value, object, Callable[[], Any] | None]] = {}
        """By channel, a value that a serializer loaded, and how to copy it; None before the second time."""

    def loaded(self, saved: Saved, channel: str, serde: SerializerProtocol) -> Any:
        """The value of a channel, loaded; or copied, if the checkpoint is the newest."""
        ns, value = saved.ns, saved.values[channel]
        known, known_serde, copy = self._known.get((ns, channel), (None, None, None))
        again = known == value and known_serde is serde
        is_newest = self.find(ns, None) is saved
        if again and copy is not None and is_newest:
            return copy()
        found = serde.loads_typed(self.pair(value))
        if is_newest:
            self._known[ns, channel] = value, serde, _copier(found) if again else None
        return found


class VstateSaver(Opened, BaseCheckpointSaver[Any]):
    """A checkpointer of LangGraph. `builder.compile(checkpointer=VstateSaver("./threads"))`.

    - A thread is the branch `prefix` with the thread's id after it, quoted as `quote_ref` does. A step is one
      commit, which `put` has synced when it returns. `copy_thread` is one ref.
    - Each message of a list that grows is stored once, and each step stores the messages that it adds.
    - `serde` is LangGraph's serializer, with LangGraph's rules for the classes that it may load. All values,
      checkpoints and metadata go through it, so an `EncryptedSerializer` encrypts all of them.
    - With a `lease` of vstate, each write lands only while this process holds the lease. A worker that was
      stopped, and comes back after another one took over, gets LeaseLost and changes nothing.
    - The store has nothing of a thread after `delete_thread`. With `keep_history`, the reflog keeps it for 30
      days.
    - A deleted or pruned checkpoint stays so, beside runs that began before: a write that stands on it raises
      NotFound, and so ends its run. LangGraph's own savers bring the whole thread back.
    """

    def __init__(
        self,
        store: StoreLike = None,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = "threads/",
        lease: Guard | None = None,
        keep_history: bool = False,
        keep: KeepLike = None,
    ) -> None:
        super().__init__(serde=serde)
        self._opening = Opening(store, "langgraph", keep=keep, branches=[prefix])
        self.prefix = prefix
        self.lease = lease
        self.keep_history = keep_history
        self._journals = Journals(self._open, most=256)

    def _open(self, branch: str) -> Journal[_Thread]:
        return Journal(
            self.repo,
            branch,
            _Thread,
            guard=self.lease,
            labels=self._labels,
            marks=self._opening.marks,
            room=True,
        )

    def branch(self, thread_id: object) -> BranchName:
        """The branch of a thread, for `vstate log`, `diff` and `show`. InvalidInput if the id is None."""
        return branch_below(self.prefix, _id(thread_id))

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the values of its channels, in one commit; the config that names it.

        Raises NotFound if the checkpoint that it follows was deleted.
        """
        journal, thread_id, ns, parent = self._named(config)
        own: dict[str, Any] = {**checkpoint}
        values = own.pop("channel_values", {})
        versions = checkpoint["channel_versions"]
        pair = self._dump(own)
        about = get_checkpoint_metadata(config, metadata)
        described = self._dump(about)
        of_values = dict(zip(values, map(versions.get, values), strict=True))
        dumped: dict[str, Pair] = {}

        def dump(channel: str) -> Pair:
            if channel not in dumped:  # a plan that lost the race is made again
                dumped[channel] = self.serde.dumps_typed(values[channel])
            return dumped[channel]

        def plan(thread: Thread) -> list[Record]:
            self._require(journal, thread, ns, parent)
            return thread.record(
                ns, checkpoint["id"], parent, pair, described, of_values, dump, changed=new_versions
            )

        journal.append(plan, message=summary(f"{about.get('source', 'checkpoint')} {about.get('step')}"))
        self._opening.know(journal.branch, ns, checkpoint["id"])
        return _config(thread_id, ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task beside a checkpoint, which need not be there yet, in one commit.

        A write that is there already stays; an error, an interrupt or a resume replaces the one before.
        Raises NotFound if the checkpoint was there, and was deleted.
        """
        journal, _, ns, id = self._named(config)
        if id is None:
            raise InvalidInput("writes belong to a checkpoint: the config needs its checkpoint_id")
        found = [
            (WRITES_IDX_MAP.get(channel, place), channel, self._dump(value))
            for place, (channel, value) in enumerate(writes)
        ]

        def plan(thread: Thread) -> list[Record]:
            early = not self._require(journal, thread, ns, id)
            new = [write for write in found if not thread.has_write(ns, id, task_id, write[0])]
            return [writes_record(ns, id, task_path, task_id, new, early=early)] if new else []

        journal.append(plan, message=summary(f"writes {', '.join(dict(writes))}"))

    def _require(self, journal: Journal[_Thread], thread: Thread, ns: str, id: str | None) -> bool:
        """Whether a checkpoint is there. Raises NotFound if it was deleted, as far as that is known."""
        if id is None:
            return False
        is_there = thread.find(ns, id) is not None
        if not is_there and ((ns, id) in thread.links or self._opening.knows(journal.branch, ns, id)):
            raise NotFound(
                f"checkpoint {id!r} of branch {journal.branch!r} was deleted, so nothing that follows it is "
                "written: run the thread anew",
                name=id,
            )
        return is_there

    def delete_thread(self, thread_id: str) -> None:
        """Delete the branch of a thread, with all its checkpoints and writes.

        The store has nothing of them when this returns. That takes as long as a look at what its room holds:
        the thread, and copies of it. With `keep_history`, the reflog keeps them for 30 days.
        """
        branch = self.branch(thread_id)
        if self.lease is not None:
            # The transaction of a commit tests the lease; a deletion cannot.
            self._journal(thread_id).rewrite(lambda thread: [], message="delete")
        self._opening.delete(branch, keep_history=self.keep_history)
        self._journals.drop(branch)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, with their writes, in every thread.

        Values and writes of delta channels from which later ones are computed stay. No call lists them.
        """
        gone = set(check_several(run_ids, "delete_for_runs", "ids"))
        for thread_id in self._thread_ids() if gone else ():
            self._keep(
                thread_id,
                lambda thread, saved: self.serde.loads_typed(saved.metadata).get("run_id") not in gone,
                f"delete {len(gone)} runs",
            )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints and writes. A new thread is one ref, whatever the size."""
        source, branch = self._journal(source_thread_id), self.branch(target_thread_id)
        with source.lock:
            source.find(lambda thread: None)
            if (head := source.head) is None:
                return
            try:
                if self.lease is None:
                    self._opening.copy(self.branch(source_thread_id), branch, head)
                else:  # one commit more, whose transaction tests the lease
                    source.fork(
                        branch,
                        lambda newest: newest.copies(newest.all(), self._deltas),
                        message="copy",
                        labels=first_labels(branch, None),
                    )
                return
            except (AlreadyExists, RefMoved):
                thread = source.refresh()  # the target exists
                kept = thread.all()

        def plan(target: Thread) -> list[Record]:
            return thread.copies(kept, self._deltas, target)

        # Without the lock of the source: two threads may be copied onto each other.
        self._journal(target_thread_id).append(plan, message=summary(f"copy of {source_thread_id}"))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Reduce threads to the newest checkpoint of each namespace, or with "delete" to nothing.

        Values and writes of delta channels from which that one is computed stay too. No call lists them.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"a strategy is 'keep_latest' or 'delete', not {strategy!r}")
        for thread_id in check_several(thread_ids, "prune", "ids"):
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                self._keep(thread_id, lambda thread, saved: thread.find(saved.ns, None) is saved, "prune")

    def _deltas(self, saved: Saved) -> set[str]:
        """The delta channels whose value is computed from checkpoints before this one."""
        counted = self.serde.loads_typed(saved.metadata).get("counters_since_delta_snapshot") or {}
        absent = counted.keys() - saved.values.keys()
        return absent and absent & self.serde.loads_typed(saved.checkpoint)["channel_versions"].keys()

    def _keep(self, thread_id: str, stays: Callable[[Thread, Saved], bool], message: str) -> None:
        def plan(thread: Thread) -> list[Record] | None:
            kept = [saved for saved in thread.all() if stays(thread, saved)]
            return None if len(kept) == len(thread.all()) else thread.copies(kept, self._deltas)

        self._journal(thread_id).rewrite(plan, message=message)

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest of its namespace: that of the greatest id."""
        journal, thread_id, ns, id = self._named(config)

        def find(thread: _Thread) -> CheckpointTuple | None:
            saved = thread.find(ns, id)
            return None if saved is None else self._tuple(journal.branch, thread_id, thread, saved)

        return journal.find(find)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, the greatest id first; without a config those of one thread after
        another. A config without a namespace means all of them.
        """
        named = (config or {}).get("configurable", {})
        ns, id = named.get("checkpoint_ns"), named.get("checkpoint_id")
        bound = get_checkpoint_id(before) if before else None
        left = -1 if limit is None else limit
        for thread_id in [_id(named["thread_id"])] if "thread_id" in named else self._thread_ids(filter):
            journal = self._journal(thread_id)
            with journal.lock:
                thread = journal.refresh()
                found = thread.all(ns)
            for saved in found:
                if left == 0:
                    return
                if (id and saved.id != id) or (bound and saved.id >= bound):
                    continue
                if filter:
                    metadata = self.serde.loads_typed(saved.metadata)
                    if any(field_of(metadata, name) != value for name, value in filter.items()):
                        continue
                left -= 1
                with journal.lock:
                    one = self._tuple(journal.branch, thread_id, thread, saved)
                yield one

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """For each channel its writes since the last stored value, oldest first, and that value."""
        journal, _, ns, id = self._named(config)

        def find(thread: _Thread) -> tuple[dict[str, list[Write]], dict[str, Pair]]:
            writes: dict[str, list[Write]] = {channel: [] for channel in channels}
            seeds: dict[str, Value] = {}
            saved = thread.find(ns, id)
            for before in thread.ancestors(saved) if saved else ():
                wanted = writes.keys() - seeds.keys()
                if not wanted:
                    break
                for write in reversed(thread.writes(ns, before.id)):
                    if write.channel in wanted:
                        writes[write.channel].append(write)
                for channel in wanted & before.values.keys():
                    seeds[channel] = before.values[channel]
            return writes, thread.pairs(seeds)

        load = self.serde.loads_typed
        writes, seeds = journal.find(find)
        return {
            channel: {
                "writes": [(write.task, channel, load(write.value)) for write in reversed(found)],
                **({"seed": load(seeds[channel])} if channel in seeds else {}),
            }
            for channel, found in writes.items()
        }

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version after `current`: a number, or a text as LangGraph's own savers give it after a text."""
        if not isinstance(current, str):
            return 1 if current is None else current + 1
        return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"

    def _tuple(self, branch: str, thread_id: str, thread: _Thread, saved: Saved) -> CheckpointTuple:
        self._opening.know(branch, saved.ns, saved.id)
        # Only the outcome of LangGraph's own serializer is known to depend on the bytes alone.
        may_copy = type(self.serde) is JsonPlusSerializer
        values: dict[str, Any] = {}
        for channel, value in saved.values.items():
            if may_copy and value.grown.length >= _SHORTEST:
                values[channel] = thread.loaded(saved, channel, self.serde)
            else:
                values[channel] = self.serde.loads_typed((value.form, thread.heap.value(value.grown)))
        checkpoint = self.serde.loads_typed(saved.checkpoint)
        checkpoint["channel_values"] = values
        return CheckpointTuple(
            _config(thread_id, saved.ns, saved.id),
            checkpoint,
            self.serde.loads_typed(saved.metadata),
            _config(thread_id, saved.ns, saved.parent) if saved.parent else None,
            [
                (write.task, write.channel, self.serde.loads_typed(write.value))
                for write in thread.writes(saved.ns, saved.id)
            ],
        )

    # The same in an event loop

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`; without a thread if the store is on this machine."""
        return await self._read(config, lambda: self.get_tuple(config))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """As `get_delta_channel_history`."""
        return await self._read(
            config, lambda: self.get_delta_channel_history(config=config, channels=channels)
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`, some at a time in a thread."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while some := await in_thread(lambda: [*islice(found, _BATCH)]):
            for one in some:
                yield one

    aput = awaited(put)
    aput_writes = awaited(put_writes)
    adelete_thread = awaited(delete_thread)
    adelete_for_runs = awaited(delete_for_runs)
    acopy_thread = awaited(copy_thread)
    aprune = awaited(prune)

    async def _read(self, config: RunnableConfig, read: Callable[[], _T]) -> _T:
        """Read at once if nothing makes the event loop wait: no server, and no write of this thread."""
        lock = self._named(config)[0].lock
        if not self.repo.store.remote and lock.acquire(blocking=False):
            try:
                return read()
            finally:
                lock.release()
        return await in_thread(read)

    # Parts

    def _named(self, config: RunnableConfig) -> tuple[Journal[_Thread], str, str, str | None]:
        """The journal and the id of the thread, the namespace and the checkpoint that a config names."""
        named = config["configurable"]
        thread_id = _id(named["thread_id"])
        journal = self._journals[branch_below(self.prefix, thread_id)]
        return journal, thread_id, named.get("checkpoint_ns", ""), get_checkpoint_id(config)

    def _journal(self, thread_id: str) -> Journal[_Thread]:
        return self._journals[self.branch(thread_id)]

    def _labels(self, journal: Journal[_Thread], records: Sequence[Record]) -> Mapping[str, Label] | None:
        """The labels of a thread that gets these records.

        Labels are not encrypted. So they are set only where the metadata are not either.
        """
        own = journal.branch.labels if isinstance(journal.branch, BranchName) else None
        if type(self.serde) is not JsonPlusSerializer:
            return own
        labels = _NO_FACTS if journal.head is None else journal.labels
        metadata = [fields["metadata"] for kind, fields, *_ in records if kind == CHECKPOINT]
        if labels is None:  # something else has moved the branch
            labels = _NO_FACTS
            metadata += [saved.metadata for saved in journal.index.all()]
        facts = labels
        if IDS in labels:
            facts = {name: label for name, label in labels.items() if name != IDS}
        for pair in metadata:
            facts = _with_metadata(facts, self.serde.loads_typed(pair))
        return facts if own is None else {**facts, IDS: own[IDS]}

    def _thread_ids(self, filter: Mapping[str, Any] | None = None) -> Iterable[str]:
        """The ids of all threads, or of those that may have checkpoints with this in their metadata."""
        texts = _texts_of(filter or {})
        found = (
            self.repo.possible_branches(texts, self.prefix) if texts else self.repo.branch_names(self.prefix)
        )
        return texts_below(self.repo, self.prefix, found).values()

    def _dump(self, value: Any) -> Pair:
        form, data = self.serde.dumps_typed(value)
        return form, bytes(data)


def _id(thread_id: object) -> str:
    if thread_id is None:
        raise InvalidInput("the thread_id is None: give the thread an id, such as that of its user")
    return str(thread_id)


def _config(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def _copier(value: Any) -> Callable[[], Any] | None:
    """A function that makes copies of the value as it is now; None if only its serializer can."""
    if type(value) is not list:
        return None
    if all(type(item) is dict and IMMUTABLE.issuperset(map(type, item.values())) for item in value):
        dicts: list[dict[Any, Any]] = [item.copy() for item in value]
        return lambda: [item.copy() for item in dicts]
    if all(isinstance(item, BaseMessage) and type(item).__module__.startswith(_MESSAGES) for item in value):
        data = pickle.dumps(value, 5)
        return lambda: loads(data)
    return None


def _with_metadata(known: Mapping[str, Label], metadata: Mapping[str, Any]) -> Mapping[str, Label]:
    """The labels of a thread that has these, and gets a checkpoint with this metadata."""
    labels: dict[str, Label] = {}
    for name, value in metadata.items():
        label = known.get(name, [])
        if type(value) in _NEVER_A_TEXT or not name or label is True:
            continue
        texts = label if isinstance(label, list) else []
        if type(value) is not str or (value not in texts and len(texts) == _MOST_TEXTS):
            labels[name] = True
        elif value not in texts:
            labels[name] = [*texts, value]
    if not labels:
        return known
    labels = {**known, **labels}
    return labels if _fits(labels) else {"": True}


def _texts_of(filter: Mapping[str, Any]) -> dict[str, str]:
    """The part of a filter that the labels of a thread may rule out. A dot in a name leads into a dict."""
    wanted = {
        name: value for name, value in filter.items() if type(value) is str and name and "." not in name
    }
    return wanted if _fits(wanted) else {}


def _fits(labels: Mapping[str, Label]) -> bool:
    """Whether a store takes the labels."""
    size = 0
    for name, label in labels.items():
        for text in (name, *(label if isinstance(label, list) else [label])):
            try:
                size += len(text.encode()) + 5 if isinstance(text, str) else 1
            except UnicodeEncodeError:
                return False
    return size <= _MOST_BYTES
