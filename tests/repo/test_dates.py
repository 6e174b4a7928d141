"""Ages and times as people type them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from vstate.errors import InvalidInput
from vstate.repo.names.dates import parse_age, parse_time

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time zone is Berlin: one hour ahead of UTC in winter, two in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20", "2026-11-19 23:00"),
        ("2026-07-01", "2026-06-30 22:00"),
        ("2026-11-20 10:00", "2026-11-20 09:00"),
        ("2026-11-20T10:00:30", "2026-11-20 09:00:30"),
        ("2026-11-20T10:00:00Z", "2026-11-20 10:00"),
        ("2026-11-20 10:00-05:00", "2026-11-20 15:00"),
        (" 2026-11-20 10:00:00.250+00:00 ", "2026-11-20 10:00:00.250"),
        ("now", "2026-11-20 12:30"),
        ("Yesterday", "2026-11-19 12:30"),
        ("2 hours ago", "2026-11-20 10:30"),
        ("1 hour ago", "2026-11-20 11:30"),
        ("an hour  ago", "2026-11-20 11:30"),
        ("a week ago", "2026-11-13 12:30"),
        ("1.5 days ago", "2026-11-19 00:30"),
        ("90 secs ago", "2026-11-20 12:28:30"),
        ("10 minutes ago", "2026-11-20 12:20"),
        ("2 months ago", "2026-09-21 12:30"),
        ("1 year ago", "2025-11-20 12:30"),
        ("3d", "2026-11-17 12:30"),
        ("3d ago", "2026-11-17 12:30"),
        ("2 w", "2026-11-06 12:30"),
        ("0.5h", "2026-11-20 12:00"),
    ],
)
def test_times(text: str, wanted: str) -> None:
    """Every form is a moment in UTC; without a zone it is local time, in winter or summer."""
    found = parse_time(text, now=NOW)
    assert found == datetime.fromisoformat(wanted).replace(tzinfo=UTC)
    assert found.utcoffset() == timedelta()


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "tomorrow", "2026-13-01", "2026-11-31", "10:00", "2 fortnights ago", "hours ago", "ago",
        "-2 hours ago", "2 hours", "3", "3x", "9999999999 years ago", "9999999999999w", "2026-11-20 25:00",
        "nan days ago",
        "0001-01-01T00:00:00+23:00",
    ],
)  # fmt: skip
def test_malformed_times(text: str) -> None:
    """Any other text raises InvalidInput with examples."""
    with pytest.raises(
        InvalidInput, match=r"is not a time: write 2026-11-20, .* yesterday, '2 hours ago' or 3d"
    ):
        parse_time(text, now=NOW)


def test_yesterday_of_a_day_that_had_25_hours() -> None:
    """Yesterday is the same local time; one day ago is 24 hours."""
    after = datetime(2026, 10, 25, 11, 0, tzinfo=UTC)  # noon, after the clocks were put back in the night
    assert parse_time("yesterday", now=after) == datetime(2026, 10, 24, 10, 0, tzinfo=UTC)
    assert parse_time("1 day ago", now=after) == datetime(2026, 10, 24, 11, 0, tzinfo=UTC)


def test_now_is_now() -> None:
    """Without `now` the current time counts; a time is a text."""
    before = datetime.now(UTC)
    assert before <= parse_time("now") <= datetime.now(UTC)
    with pytest.raises(TypeError):
        parse_time(5)  # type: ignore[arg-type]


def test_ages_stay_as_they_were() -> None:
    """An age accepts no words and nothing below 0, although a time does."""
    assert parse_age("30d") == timedelta(days=30)
    assert parse_age("0") == timedelta()
    for text in ("yesterday", "2 hours ago", "3d ago", "-1d"):
        with pytest.raises(InvalidInput):
            parse_age(text)
