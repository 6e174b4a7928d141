"""Spans: operations as OpenTelemetry shows them, and commits that name their trace."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from vstate import Commit, Disk, Memory, MergeConflict, Versioned, aio

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
trace = pytest.importorskip("opentelemetry.trace")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
export = pytest.importorskip("opentelemetry.sdk.trace.export")

SECRET = "hunter2"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The spans that end from now on."""
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def named(exported: Any) -> dict[str, Any]:
    """The last span of each name."""
    return {span.name: span for span in exported.get_finished_spans()}


def test_operations_have_spans_with_sizes_and_counts(exported: Any) -> None:
    """Commits, reads from the store, merges, gc, push and fetch have spans, and cached reads have none."""
    store, there = Memory(), Memory()
    with Versioned(store) as state:
        state.update({f"secret/{i}": [SECRET * 20, i] for i in range(50)})
        commit = state.commit("one")
        assert commit is not None
        state.repo.push(there, "main", create=True)
        state.repo.fetch(there)
        fork = state.fork("other")
        fork["more"] = 1
        fork.commit()
        state["mine"] = 1
        state.repo.commit("third", set={"k": [SECRET]})
        state.commit()
        state.merge("other")
        state.repo.gc()
    found = named(exported)
    assert found.keys() == {
        f"vstate.{name}" for name in ["commit", "publish", "push", "fetch", "merge", "gc"]
    }
    assert found["vstate.merge"].attributes == {
        "vstate.strategy": "merge",
        "vstate.keys": 1,
        "vstate.conflicts": 0,
    }
    assert found["vstate.push"].attributes["vstate.objects"] > 50
    assert found["vstate.gc"].attributes["vstate.live"] > 50
    first = exported.get_finished_spans()[:2]
    assert [span.name for span in first] == ["vstate.publish", "vstate.commit"]
    assert first[0].parent.span_id == first[1].context.span_id
    assert first[0].attributes["vstate.bytes"] > 1000
    assert first[1].attributes == {"vstate.commits": (commit.id,), "vstate.events": 0}
    exported.clear()
    with Versioned(store) as state:
        state.get_many([f"secret/{i}" for i in range(20)])
        assert state["secret/40"] == state["secret/40"]
    reads = [span.attributes["vstate.objects"] for span in exported.get_finished_spans()]
    assert sorted(reads) == [1, 20]


def test_a_span_of_a_failure_has_the_class_of_the_error(exported: Any) -> None:
    """The error's message, which names keys, stays out of every span."""
    store = Memory()
    with Versioned(store) as one, Versioned(store) as other:
        one["password"] = SECRET
        one.commit()
        other["password"] = "mine"
        with pytest.raises(MergeConflict):
            other.commit()
        other.discard()
    failed = exported.get_finished_spans()[-1]
    assert failed.attributes["error.type"] == "MergeConflict"
    assert failed.status.status_code is trace.StatusCode.ERROR
    for span in exported.get_finished_spans():
        assert not span.events
        assert "password" not in span.to_json()
        assert SECRET not in span.to_json()


def test_a_commit_names_its_trace(exported: Any) -> None:
    """The info of a commit has the id of the trace around it, also from a thread of an event loop."""
    tracer = trace.get_tracer_provider().get_tracer("program")
    with Versioned(Memory()) as state:
        with tracer.start_as_current_span("request") as span:
            state["k"] = 1
            state.commit(user="ann")
            made = state.repo.commit("other", set={"k": 1})
            assert made is not None
            state["k"] = 2
            state.commit(trace="my own")
        wanted = f"{span.get_span_context().trace_id:032x}"
        own, first = state.log()
        assert first.info == {"trace": wanted, "user": "ann"}
        assert made.info == {"trace": wanted}
        assert own.info == {"trace": "my own"}

    async def add(state: aio.Versioned, key: str) -> tuple[str, Commit]:
        with tracer.start_as_current_span("request") as span:
            commit = await state.apply(lambda state: state.update({key: 1}))
            assert commit is not None
            return f"{span.get_span_context().trace_id:032x}", commit

    async def together() -> None:
        async with aio.Versioned(Memory()) as state:
            made = await asyncio.gather(*(add(state, f"{i}") for i in range(8)))
            assert [commit.info["trace"] for _, commit in made] == [trace for trace, _ in made]

    asyncio.run(together())


def test_vstate_does_not_load_the_api(tmp_path: Any) -> None:
    """A program without spans pays for no import."""
    script = (
        "import sys, vstate\n"
        f"with vstate.Versioned({str(tmp_path / 'store')!r}) as state: state['k'] = 1; state.commit()\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert dict(Versioned(Disk(tmp_path / "store"))) == {"k": 1}
