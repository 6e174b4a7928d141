"""Commit: one state of a mapping, its parents, and the events since them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from vstate.objects.canonical import decode, encode, plain
from vstate.objects.ids import COMMIT, ID_BYTES, ObjectId

SIGNER_BYTES = 32
SIGNATURE_BYTES = 64

_SIGNED_BEGIN = b"vstate commit signature\0"
_ARRAY = 0x90  # MessagePack's first byte of a short array, without its length
_SIGNATURE_LENGTH = 1 + (2 + SIGNER_BYTES) + (2 + SIGNATURE_BYTES)  # as encoded: [signer, value]

_TYPES: Final = list, int, str, dict, list  # of parents, order, message, info and events
_LONGEST_SUBJECT: Final = 1000  # characters

LATEST: Final = 1_640_995_200_000_000 * 10  # microseconds: some day of the year 2490
"""A commit that comes from elsewhere is not dated later, so that there is room for commits after it."""
LAST_ORDER: Final = (2**64 - 1) // 1000  # so that reflog lines, in nanoseconds, have 16 hex digits
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


ONE_SECOND = 1_000_000
"""A clock that is less than so many microseconds behind the order of commits or moves counts as right."""


def microseconds(time: datetime) -> int:
    """Whole microseconds since 1970-01-01 UTC."""
    return (time - _EPOCH) // _MICROSECOND


def moment(microseconds: int) -> datetime:
    """The aware UTC datetime so many microseconds after 1970-01-01; ValueError out of range."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError as error:
        raise ValueError(f"time out of range: {microseconds}") from error


class Dated(Protocol):
    """A commit, or a move of a ref: its time by a clock that may be wrong, and its place in the order."""

    @property
    def time(self) -> datetime: ...
    @property
    def order(self) -> int: ...


D = TypeVar("D", bound=Dated)


def dated(newest_first: Iterable[D], now: int) -> Iterator[tuple[D, int]]:
    """Each with the microsecond when it was made, which is never later than that of the one before.

    That is its order. A clock that was ahead leaves orders after `now`. Those are dated by their clocks,
    as far as these are before `now`, and none is older than the ones behind it. So a clock that was behind
    makes nothing old.
    """
    ahead: list[D] = []

    def known(date: int) -> Iterator[tuple[D, int]]:
        clocks = [clock for each in ahead if (clock := microseconds(each.time)) <= now]
        date = date or min(clocks, default=now)
        dates = []
        for each in reversed(ahead):
            clock = microseconds(each.time)
            date = max(date, clock) if clock <= now else date
            dates.append(date)
        return zip(ahead, reversed(dates), strict=True)

    for each in newest_first:
        if each.order > now:
            ahead.append(each)
            continue
        yield from known(each.order)
        ahead = []
        yield each, each.order
    yield from known(0)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: `kind` in the program's own words, `data` plain.

    `commit` is the id of the commit that holds the event and its effects; None before that commit.
    """

    kind: str
    time: datetime
    data: Mapping[str, Any]
    namespace: str = ""
    commit: str | None = None

    @classmethod
    def now(cls, kind: str, data: Mapping[str, Any], namespace: str = "") -> Event:
        """An event, dated now; InvalidInput unless its data is plain."""
        if not isinstance(kind, str):
            raise TypeError(f"an event's kind is a str, not {type(kind).__name__}")
        return cls(plain(kind, "kind"), datetime.now(UTC), plain(dict(data), "data"), namespace)


class Signature(NamedTuple):
    """The signer, an Ed25519 public key of 32 bytes, and the 64 bytes of the signature."""

    signer: bytes
    value: bytes


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Commit:
    """A content-addressed snapshot; equal content has an equal `id`.

    `root` is the root of the tree of its keys (None: no keys), `parent_ids` names the commits it was made on,
    `time` is an aware UTC datetime by the clock of its writer, `info` plain data, and `events` the events
    since the first parent. `id`, `tree` and `parents` are the same ids as text. `signature` is only a claim
    of the commit: `vstate.repo.rules.signing` verifies it.
    """

    root: ObjectId | None
    parent_ids: tuple[ObjectId, ...]
    time: datetime
    message: str
    info: Mapping[str, Any]
    events: Sequence[Event]
    signature: Signature | None
    order: int
    """Microseconds, more than those of every parent: the order of walks. `time`, unless a clock was wrong."""
    body: bytes = field(init=False)
    """The canonical encoding, whose hash is the id."""
    oid: ObjectId = field(init=False)
    """The id as bytes."""

    def __init__(
        self,
        root: ObjectId | None,
        parent_ids: tuple[ObjectId, ...],
        time: datetime,
        message: str = "",
        info: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        signature: Signature | None = None,
        order: int | None = None,
    ) -> None:
        clock = microseconds(time)
        order = clock if order is None else order
        info = {} if info is None else info
        told = [[e.kind, microseconds(e.time), e.data, e.namespace] for e in events] if events else []
        # Most commits have neither a clock nor a signature.
        others = [*([] if order == clock else [clock]), *([] if signature is None else [list(signature)])]
        body = encode([root, list(parent_ids), order, message, info, told, *others])
        # The usual __init__ of a frozen class makes a call for each field.
        self.__dict__.update(
            root=root,
            parent_ids=parent_ids,
            time=time,
            message=message,
            info=info,
            events=events,
            signature=signature,
            order=order,
            body=body,
            oid=ObjectId.of(COMMIT, body),
        )

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that a signature on this commit covers: all but the signature itself."""
        body = self.body
        if self.signature is not None:
            # Cut out of the bytes, not encoded again: no signature covers a second spelling.
            body = bytes([body[0] - 1]) + body[1:-_SIGNATURE_LENGTH]
        return _SIGNED_BEGIN + ObjectId.of(COMMIT, body)

    @property
    def id(self) -> str:
        """The id in 64 hex digits."""
        return str(self.oid)

    @property
    def tree(self) -> str | None:
        """The id of the tree of its keys in 64 hex digits; None if it has no keys."""
        return None if self.root is None else str(self.root)

    @property
    def parents(self) -> tuple[str, ...]:
        """The ids of the commits that it was made on, each in 64 hex digits."""
        return tuple(map(str, self.parent_ids))

    @property
    def short(self) -> str:
        """The first 10 digits of the id."""
        return self.oid.short

    @classmethod
    def decode(cls, oid: ObjectId, body: bytes) -> Commit:
        """The commit that `body` encodes; ValueError when it encodes none."""
        try:
            root, parents, order, message, info, events, *rest = decode(body)
        except TypeError as error:
            raise ValueError(f"not a commit: {error}") from error
        clock = order
        if (type(parents), type(order), type(message), type(info), type(events)) != _TYPES:
            raise ValueError("not a commit: a field has another type")
        if order > LAST_ORDER:
            raise ValueError(f"time out of range: {order}")
        if rest and type(rest[0]) is int and (clock := rest.pop(0)) >= order:
            raise ValueError("a clock that is not behind the order is left out")
        ids = _ids(parents if root is None else [root, *parents])
        fields: dict[str, Any] = {
            "root": None if root is None else ids[0],
            "parent_ids": ids[-len(parents) :] if parents else (),
            "time": moment(clock),
            "message": message,
            "info": info,
            "events": tuple(_events(events, str(oid))) if events else (),
            "signature": _signature(rest, body) if rest else None,
            "order": order,
            "body": body,
            "oid": oid,
        }
        # Not `cls(…)`, which would encode the fields again.
        commit = cls.__new__(cls)
        commit.__dict__.update(fields)
        return commit

    def __eq__(self, other: object) -> bool:
        return self.oid == other.oid if isinstance(other, Commit) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.oid)

    def __repr__(self) -> str:
        return f"Commit({self.short} {self.message!r})" if self.message else f"Commit({self.short})"

    @property
    def subject(self) -> str:
        """The first line of the message; of a longer one than 1,000 characters, these and an ellipsis."""
        line = self.message.strip().split("\n", 1)[0]
        return line if len(line) <= _LONGEST_SUBJECT else line[:_LONGEST_SUBJECT] + "…"

    def __str__(self) -> str:
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in self.subject)
        return f"{self.short}  {self.time:%Y-%m-%d %H:%M:%S}  {shown}".rstrip()

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        return f"<code>{self.short}</code> {self.time:%Y-%m-%d %H:%M:%S} {escape(self.message)}"


def _ids(values: list[Any]) -> tuple[ObjectId, ...]:
    for value in values:
        if type(value) is not bytes or len(value) != ID_BYTES:
            raise ValueError("an id of 32 bytes is missing")
    return tuple(map(ObjectId, values))


def _events(rows: list[Any], commit: str) -> Iterator[Event]:
    for row in rows:
        if type(row) is not list or list(map(type, row)) != [str, int, dict, str]:
            raise ValueError("an event is malformed")
        kind, at, data, namespace = row
        yield Event(kind, moment(at), data, namespace, commit)


def _signature(fields: list[Any], body: bytes) -> Signature:
    (parts,) = fields
    if type(parts) is not list or list(map(type, parts)) != [bytes, bytes]:
        raise ValueError("a signature is two byte strings")
    if list(map(len, parts)) != [SIGNER_BYTES, SIGNATURE_BYTES]:
        raise ValueError("a signature is a public key of 32 bytes and a value of 64")
    found = Signature(*parts)
    # `signed_bytes` cuts the signature off by length, so only the canonical form is accepted.
    if body[0] >> 4 != _ARRAY >> 4 or not body.endswith(encode(list(found))):
        raise ValueError("a signed commit that is not canonical")
    return found
