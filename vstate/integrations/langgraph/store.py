"""VstateStore: LangGraph's long-term memory on a branch, each batch of changes one commit."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from itertools import islice
from operator import ge, gt, le, lt, mul
from typing import Any, Final

from langgraph.store.base import (
    BaseStore,
    Embeddings,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    validate_op_namespace,
)

from vstate.aio.workers import in_thread
from vstate.arguments import check_count, check_text
from vstate.backoff import Backoff
from vstate.errors import CannotLoad, InvalidInput, RefMoved
from vstate.integrations.opening import Opened, Opening, StoreLike
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path, split_path
from vstate.plural import counted
from vstate.repo.merge.apply import purge
from vstate.repo.repository import Repository
from vstate.state.base import ReadableState
from vstate.state.live import Live
from vstate.state.snapshot import Snapshot
from vstate.values.loading import is_plain
from vstate.values.pickling import dumps, loads

_ITEMS: Final = "items"
_VECTORS: Final = "vectors"
_SECONDS: Final = 60  # in the minutes of LangGraph
_SHORT: Final = 4096  # bytes of a record that searches keep decoded, by the bytes of its entry
_MOST_DECODED: Final = 4096

_Namespace = tuple[str, ...]
_Found = tuple[float | None, str, Any]
"""An item: its score if there is a query, its key, and its record."""


_Texts = dict[int, list[tuple[str, str]]]
"""The texts of the items of a batch that need vectors, with their fields, by the place in the batch."""


class VstateStore(Opened, BaseStore):
    """A `BaseStore` of LangGraph: each item is a key of one branch. `compile(store=VstateStore("./memory"))`.

    - `branch` holds the items. `vstate log BRANCH`, `diff` and `blame` show the changes of an agent's memory.
    - The changes of a `batch` are one commit: all of them land, or none. Its reads come first, as in the
      stores of LangGraph. Two writers of one item never mix: the later batch wins.
    - The value of an item is data: dicts, lists, text, numbers, bytes, dates. An instance of a class that
      `allow` does not name raises CannotLoad at `put`, so no read ever runs code that a writer chose.
    - `ttl` is LangGraph's: minutes. A read begins the time again, by a commit, only with `refresh_on_read`.
      An expired item is absent at once. The next change removes it from the branch, and so does `sweep_ttl`.
    - With an `index`, `search(query=...)` compares the query with the vectors of the items, by their cosine.
      The vectors are stored beside the items as 32-bit numbers. Only items with vectors are found.
    """

    supports_ttl = True

    def __init__(
        self,
        store: StoreLike = None,
        *,
        branch: str = "memories",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        allow: Iterable[str] = (),
    ) -> None:
        self.embeddings: Embeddings | None = ensure_embeddings(index["embed"]) if index else None
        self.index_config = index
        self.ttl_config = ttl
        self.branch = branch
        self._opening = Opening(store, allow=allow)
        self._decoded: dict[bytes, Any] = {}

    # The calls that LangGraph makes

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The result of each operation, in order. All changes are one commit.

        Raises InvalidNamespaceError for a bad label, and then does nothing.
        """
        ops = self._checked(ops)
        texts, queries = self._texts(ops)
        if self.embeddings is None:
            return self._run(ops, {}, [], {})
        documents = self.embeddings.embed_documents(_documents(texts)) if texts else []
        return self._run(
            ops, texts, documents, {query: self.embeddings.embed_query(query) for query in queries}
        )

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        ops = self._checked(ops)
        texts, queries = self._texts(ops)
        if self.embeddings is None:
            return await in_thread(lambda: self._run(ops, {}, [], {}))
        documents = await self.embeddings.aembed_documents(_documents(texts)) if texts else []
        asked = {query: await self.embeddings.aembed_query(query) for query in queries}
        return await in_thread(lambda: self._run(ops, texts, documents, asked))

    def sweep_ttl(self) -> int:
        """Commit the removal of all expired items, and return their number."""
        purged = purge(self.repo, self.branch)
        if purged is None:
            return 0
        before, after = purged
        return sum(key.startswith(f"{_ITEMS}/") for key in self.repo.diff(before.root, after.root))

    # One batch

    def _checked(self, ops: Iterable[Op]) -> list[Op]:
        """The operations. Raises InvalidNamespaceError, and TypeError or InvalidInput for other arguments;
        CannotLoad for a value that no reader could load.
        """
        checked = list(ops)
        for op in checked:
            if not isinstance(op, GetOp | SearchOp | ListNamespacesOp | PutOp):
                raise TypeError(f"a batch has operations of LangGraph, not {type(op).__name__}: {op!r}")
            _check_arguments(op)
            validate_op_namespace(op)
            if isinstance(op, PutOp) and op.value is not None:
                data, buffers = dumps(dict(op.value))
                if not is_plain(data):
                    try:
                        loads(data, buffers, allow=self.repo.security.allow)
                    except CannotLoad as error:
                        reason = f"{error.reason}. Nothing of the batch is written"
                        raise CannotLoad(error.name, reason, key=op.key, called=error.called) from None
        return checked

    def _run(
        self,
        ops: list[Op],
        texts: _Texts,
        documents: Sequence[Sequence[float]],
        queries: Mapping[str, Sequence[float]],
    ) -> list[Result]:
        """Carry out the operations with the vectors of their texts; again, if another writer was faster."""
        vectors = iter(documents)
        fields = {
            place: {path: _normal(next(vectors)).tobytes() for path, _ in found}
            for place, found in texts.items()
        }
        asked = {query: _normal(vector) for query, vector in queries.items()}
        # As in LangGraph's own stores: every operation asks for it, and only the settings can mean it.
        refreshing = bool(self.ttl_config and self.ttl_config.get("refresh_on_read"))
        backoff = Backoff(0.001, 0.1)
        while True:
            head = self.repo.newest(self.branch)
            if head is not None:
                self.repo.require_trusted(head)
            work = _Batch(self.repo, head, self._decoded, queries=asked, refreshing=refreshing)
            results = [work.result(op, fields.get(place, {})) for place, op in enumerate(ops)]
            if not work.set and not work.deleted:
                return results
            try:
                self.repo.commit(
                    self.branch,
                    set=work.set,
                    delete=work.deleted.keys() | (work.expired - work.set.keys()),
                    expire=work.expire,
                    expect=head,
                    message=work.message(),
                )
            except RefMoved:
                backoff.pause()
            else:
                return results

    def _texts(self, ops: Sequence[Op]) -> tuple[_Texts, Iterable[str]]:
        """The texts of these operations that need vectors, and their queries."""
        fields: _Texts = {}
        queries: dict[str, None] = {}
        if self.index_config is None:
            return fields, queries
        usual = self.index_config.get("fields") or ["$"]
        for place, op in enumerate(ops):
            if isinstance(op, SearchOp) and op.query:
                queries[op.query] = None
            elif isinstance(op, PutOp) and op.value is not None and op.index is not False:
                found = [
                    (f"{path}.{number}" if number else path, text)
                    for path in (usual if op.index is None else op.index)
                    for number, text in enumerate(get_text_at_path(op.value, path))
                ]
                if found:
                    fields[place] = found
        return fields, queries


class _Batch:
    """The operations of one batch on the items of a commit, and the changes that they make."""

    def __init__(
        self,
        repo: Repository,
        head: Commit | None,
        decoded: dict[bytes, Any],
        *,
        queries: Mapping[str, array[float]],
        refreshing: bool,
    ) -> None:
        self.repo = repo
        self.root = None if head is None else head.root
        self.view: ReadableState = Live() if head is None else Snapshot(repo, head)
        # A snapshot has keys that expired after its commit. The next change of the branch removes them.
        self.expired = set(tree.expired(repo.objects.node, self.root, expiry.now()))
        self.decoded = decoded
        self.queries = queries
        self.refreshing = refreshing
        self.set: dict[str, Any] = {}
        self.deleted: dict[str, None] = {}
        self.expire: dict[str, float] = {}
        self.now = datetime.now(UTC).isoformat(timespec="microseconds")

    def result(self, op: Op, vectors: Mapping[str, bytes]) -> Result:
        """Carry out one operation. `vectors` are those of the item that it puts, by field."""
        if isinstance(op, GetOp):
            return self._get(op)
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        self._put(op, vectors)
        return None

    def message(self) -> str:
        """The message of the commit: the paths of the items, or how many there are."""
        put = [key for key in self.set if key.startswith(f"{_ITEMS}/")]
        gone = [key for key in self.deleted if key.startswith(f"{_ITEMS}/")]
        parts = [
            f"{verb} {keys[0].partition('/')[2] if len(keys) == 1 else counted(len(keys), 'item')}"
            for verb, keys in (("put", put), ("delete", gone))
            if keys
        ]
        return ", ".join(parts)

    def _get(self, op: GetOp) -> Item | None:
        key = join_path(_ITEMS, *op.namespace, op.key)
        record = self._read(key)
        if record is None:
            return None
        if op.refresh_ttl:
            self._refresh(key, record)
        return Item(**_described(key, record))

    def _search(self, op: SearchOp) -> list[SearchItem]:
        ranked: Iterator[_Found]
        asked = self.queries.get(op.query or "")
        if asked is None:
            newest = sorted(
                self._under(_ITEMS, op.namespace_prefix), key=lambda one: one[1]["updated_at"], reverse=True
            )
            ranked = ((None, key, record) for key, record in newest)
        else:
            ranked = self._ranked(asked, op.namespace_prefix)
        matching = (one for one in ranked if _matches(one[2]["value"], op.filter or {}))
        page = list(islice(matching, op.offset, op.offset + op.limit))
        if op.refresh_ttl:
            for _, key, record in page:
                self._refresh(key, record)
        return [SearchItem(**_described(key, deepcopy(record)), score=score) for score, key, record in page]

    def _ranked(self, asked: array[float], namespace: _Namespace) -> Iterator[_Found]:
        """The items with vectors, the most similar ones first. Only the items that are asked for are read."""
        scored = [(_score(asked, vectors), key) for key, vectors in self._under(_VECTORS, namespace)]
        for score, beside in sorted(scored, key=lambda one: one[0], reverse=True):
            key = f"{_ITEMS}{beside[len(_VECTORS) :]}"
            record = self._read(key)
            if record is not None:
                yield score, key, record

    def _namespaces(self, op: ListNamespacesOp) -> list[_Namespace]:
        conditions = op.match_conditions or ()
        # The items under a prefix without wildcards are next to each other.
        prefixes = [each.path for each in conditions if each.match_type == "prefix" and "*" not in each.path]
        start = max(prefixes, key=len, default=())
        keys = self.view.keys(join_path(_ITEMS, *start) + "/")
        paths = {key.rpartition("/")[0] for key in keys if key not in self.expired}
        found = [split_path(path)[1:] for path in paths]
        matching = [name for name in found if all(_fits(name, each) for each in conditions)]
        names = sorted({name[: op.max_depth] for name in matching})
        return names[op.offset : op.offset + op.limit]

    def _put(self, op: PutOp, vectors: Mapping[str, bytes]) -> None:
        key, beside = (join_path(kind, *op.namespace, op.key) for kind in (_ITEMS, _VECTORS))
        for each in (key, beside):
            self.set.pop(each, None)
            self.expire.pop(each, None)
        if op.value is None:
            self.deleted[key] = self.deleted[beside] = None
            return
        self.deleted.pop(key, None)
        old = self._read(key)
        record = {
            "value": dict(op.value),
            "created_at": self.now if old is None else old["created_at"],
            "updated_at": self.now,
        }
        if op.ttl is not None:
            record["ttl"] = op.ttl
        self._write(key, record, op.ttl)
        if vectors:
            self.deleted.pop(beside, None)
            self._write(beside, dict(vectors), op.ttl)
        else:
            self.deleted[beside] = None

    def _refresh(self, key: str, record: Mapping[str, Any]) -> None:
        """Let the time to live of an item, and of its vectors, begin again."""
        if self.refreshing and "ttl" in record and key not in self.deleted and key not in self.set:
            beside = f"{_VECTORS}{key[len(_ITEMS) :]}"
            self._write(key, record, record["ttl"])
            vectors = self._read(beside)
            if vectors is not None:
                self._write(beside, vectors, record["ttl"])

    def _read(self, key: str) -> Any:
        return None if key in self.expired else self.view.get(key)

    def _write(self, key: str, value: object, ttl: float | None) -> None:
        self.set[key] = value
        if ttl is not None:
            self.expire[key] = ttl * _SECONDS

    def _under(self, kind: str, namespace: _Namespace) -> Iterator[tuple[str, Any]]:
        """The records of a kind under a namespace. Searches share them, so they are never handed out."""
        prefix = join_path(kind, *namespace) + "/"
        for key, data in tree.scan(self.repo.objects.nodes, self.root, prefix):
            if key not in self.expired:
                if (record := self.decoded.get(data)) is None:
                    record = self.view[key]
                    self._remember(key, data, record)
                yield key, record

    def _remember(self, key: str, data: bytes, record: object) -> None:
        if self.repo.parse_entry(key, data).size <= _SHORT:
            if len(self.decoded) >= _MOST_DECODED:
                self.decoded.clear()
            self.decoded[data] = record


def _documents(texts: _Texts) -> list[str]:
    return [text for fields in texts.values() for _, text in fields]


def _check_arguments(op: Op) -> None:
    """Raise TypeError for a namespace or a key of another type, and InvalidInput for a count below 0."""
    if isinstance(op, GetOp | PutOp):
        check_text("key", op.key)
        namespaces: list[Any] = [op.namespace]
    else:
        check_count("limit", op.limit, 0)
        check_count("offset", op.offset, 0)
        if isinstance(op, SearchOp):
            namespaces = [op.namespace_prefix]
        else:
            check_count("max_depth", op.max_depth, 0, none="None for any depth")
            namespaces = [each.path for each in op.match_conditions or ()]
    for namespace in namespaces:
        if not isinstance(namespace, tuple | list):  # the letters of a str would be labels
            raise TypeError(f"a namespace is a tuple of str, not {type(namespace).__name__}: {namespace!r}")


def _described(key: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an `Item`, from its key and its record."""
    _, *namespace, name = split_path(key)
    times = {field: datetime.fromisoformat(record[field]) for field in ("created_at", "updated_at")}
    return {"namespace": tuple(namespace), "key": name, "value": record["value"], **times}


def _fits(namespace: _Namespace, condition: MatchCondition) -> bool:
    """Does the namespace begin, or end, with the labels of the condition? "*" is any one label."""
    path = condition.path
    if len(namespace) < len(path):
        return False
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(labels, path, strict=bool(path)))


def _matches(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Does a value have these fields? A dot in a name leads into a dict, if no field has the whole name."""
    return all(_is_like(field_of(value, name), like) for name, like in wanted.items())


def field_of(value: Any, name: str) -> Any:
    """The field of a dict, None if absent. A dot in a name leads into a dict, if no field has that name."""
    if not isinstance(value, Mapping):
        return None
    if name in value:
        return value[name]
    first, dot, rest = name.partition(".")
    return field_of(value.get(first), rest) if dot else None


def _is_like(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if any(name.startswith("$") for name in wanted):
            return all(_compare(found, operator, operand) for operator, operand in wanted.items())
        return isinstance(found, Mapping) and _matches(found, wanted)
    if isinstance(wanted, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(wanted)
            and all(map(_is_like, found, wanted))
        )
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


def _compare(found: Any, operator: str, operand: Any) -> bool:
    """Apply an operator of LangGraph's filters. Values that have no order are not in it."""
    if operator in ("$eq", "$ne"):
        return _is_like(found, operand) == (operator == "$eq")
    if operator not in _ORDERS:
        raise InvalidInput(
            f"a filter has no operator {operator!r}; there are: $eq, $ne, {', '.join(_ORDERS)}"
        )
    try:
        return bool(_ORDERS[operator](found, operand))
    except TypeError:
        return False


def _normal(vector: Sequence[float]) -> array[float]:
    """The vector of length 1 in the same direction, so that the product of two is their cosine."""
    length = math.sqrt(sum(map(mul, vector, vector)))
    return array("f", [number / length for number in vector] if length else vector)


def _score(asked: array[float], vectors: Mapping[str, bytes]) -> float:
    """The cosine of the query and the most similar vector of an item."""
    return max(math.fsum(map(mul, asked, array("f", packed))) for packed in vectors.values())
