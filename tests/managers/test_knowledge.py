"""KnowledgeStateManager: progress, sources, and their summary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from present import present

from vstate import IllegalTransition, KeyNotFound
from vstate.managers import (
    IndexingProgress,
    IndexingStatus,
    KnowledgeBaseState,
    KnowledgeStateManager,
    SourceState,
    SyncStatus,
)

HOUR = timedelta(hours=1)


@pytest.fixture
def manager() -> KnowledgeStateManager:
    return KnowledgeStateManager()


def source(id: str = "s", kb: str = "kb", **fields: Any) -> SourceState:
    return SourceState(source_id=id, knowledge_base_id=kb, **fields)


def progress(total: int = 0, processed: int = 0, failed: int = 0, **fields: Any) -> IndexingProgress:
    fields = {"knowledge_base_id": "kb", "status": IndexingStatus.IN_PROGRESS, **fields}
    return IndexingProgress(
        total_documents=total, processed_documents=processed, failed_documents=failed, **fields
    )


@in_a_loop
async def test_the_documented_calls(local_store: AgentStore) -> None:
    """The calls in the documentation of agenticaiframework, on every store, and for a second manager."""
    began = datetime.now()
    made = IndexingProgress(
        knowledge_base_id="kb",
        status=IndexingStatus.IN_PROGRESS,
        total_documents=1000,
        processed_documents=450,
        failed_documents=5,
        started_at=began,
    )
    async with KnowledgeStateManager(local_store()) as manager, KnowledgeStateManager(local_store()) as other:
        await manager.update_indexing_progress(made)
        for id, status in (("web", SyncStatus.SYNCING), ("files", SyncStatus.SYNCED)):
            synced = {"last_sync": began, "documents_synced": 150, "documents_pending": 50}
            await manager.update_source_state(source(id, sync_status=status, **synced))
        found = present(await other.get_indexing_progress("kb"))
        assert found.model_dump(exclude={"updated_at"}) == made.model_dump(exclude={"updated_at"})
        assert (found.progress_percent, found.is_complete) == (45.5, False)
        sources = await other.get_sources("kb")
        assert [(s.source_id, s.sync_status, s.last_sync) for s in sources] == [
            ("files", "synced", began),
            ("web", "syncing", began),
        ]
        whole = present(await other.get_knowledge_base_state("kb"))
        assert (whole.total_documents, whole.total_embeddings, whole.storage_size_mb) == (1000, 0, 0.0)
        assert began <= present(whole.last_updated) <= datetime.now()
        assert whole.last_updated == max(s.updated_at for s in sources if s.updated_at)
        await manager.update_source_state(source("web", path="new"))  # it replaces the other one
        _, web = await other.get_sources("kb")
        assert (web.documents_synced, web.model_extra) == (0, {"path": "new"})


# Progress


@pytest.mark.parametrize(
    ("counts", "percent", "is_complete"),
    [
        ((0, 0, 0), 0.0, False),
        ((0, 0, 3), 0.0, False),  # zero documents are never complete
        ((10, 4, 1), 50.0, False),
        ((10, 9, 1), 100.0, True),  # failed documents count as done
        ((3, 7, 0), 100.0, True),  # more documents than the total count as all
    ],
)
@in_a_loop
async def test_progress(counts: tuple[int, int, int], percent: float, is_complete: bool) -> None:
    """The manager concludes no status from the counts."""
    async with KnowledgeStateManager() as manager:
        await manager.update_indexing_progress(progress(*counts))
        found = present(await manager.get_indexing_progress("kb"))
        assert (found.progress_percent, found.is_complete) == (percent, is_complete)
        assert found.status == "in_progress"
        assert present(await manager.get_knowledge_base_state("kb")).status == "in_progress"
        with pytest.raises(ValueError, match="total_documents"):
            progress(-1)


@pytest.mark.parametrize("status", IndexingStatus)
@in_a_loop
async def test_pausing(manager: KnowledgeStateManager, status: IndexingStatus) -> None:
    """What has not ended can be paused. Reports of running workers do not end a pause; the end does."""
    if status is not IndexingStatus.PAUSED:
        await manager.update_indexing_progress(progress(10, 4, status=status))
        head = manager.state.head
        with pytest.raises(IllegalTransition):
            await manager.resume("kb")
        if status in (IndexingStatus.COMPLETED, IndexingStatus.FAILED):
            with pytest.raises(IllegalTransition):
                await manager.pause("kb")
            assert manager.state.head == head
            return
        assert (await manager.pause("kb")).status is IndexingStatus.PAUSED
        kept = await manager.update_indexing_progress(progress(10, 10, status=status))
        assert (kept.status, kept.processed_documents) == (IndexingStatus.PAUSED, 10)
    else:
        await manager.update_indexing_progress(progress(10, 10, status=status))
    with pytest.raises(IllegalTransition, match="resume"):
        await manager.pause("kb")
    assert (await manager.resume("kb")).status is IndexingStatus.IN_PROGRESS
    await manager.pause("kb")
    for end in (IndexingStatus.COMPLETED, IndexingStatus.FAILED):
        assert (await manager.update_indexing_progress(progress(10, 10, status=end))).status is end
    messages = [commit.message async for commit in manager.state.log()]
    assert messages[1:4] == [
        "knowledge base kb: completed, 10 of 10 documents",
        "knowledge base kb: paused",
        "knowledge base kb: resumed",
    ]


# Sources


@pytest.mark.parametrize(
    ("age", "status", "older_than", "expected"),
    [
        (None, "pending", 3600, True),
        (HOUR / 2, "synced", 3600, False),
        (HOUR / 2, "synced", HOUR, False),
        (HOUR / 2, "stale", 3600, True),
        (HOUR / 2, "failed", 3600, True),
        (HOUR / 2, "pending", 3600, False),
        (2 * HOUR, "synced", 3600, True),
        (2 * HOUR, "syncing", HOUR, True),  # a sync that crashed never reports its end
        (-HOUR, "synced", 3600, False),
        (23 * HOUR, "synced", None, False),  # by default a day
        (25 * HOUR, "synced", None, True),
    ],
)
@pytest.mark.parametrize("zone", [None, UTC])
@in_a_loop
async def test_sources_that_need_a_resync(
    age: Any, status: str, older_than: Any, expected: bool, zone: Any
) -> None:
    """Never synced, stale, failed, or too long ago; in seconds or as a timedelta, with and without a zone."""
    last_sync = None if age is None else datetime.now(zone) - age
    given = () if older_than is None else (older_than,)
    async with KnowledgeStateManager() as manager:
        await manager.update_source_state(source("fresh", last_sync=datetime.now(), sync_status="synced"))
        assert await manager.needs_resync("kb", *given) is False
        await manager.update_source_state(source(last_sync=last_sync, sync_status=status))
        assert await manager.needs_resync("kb", *given) is expected
        found = await manager.get_stale_sources("kb", *given)
        assert [s.source_id for s in found] == ["s"] * expected


# Summary


@in_a_loop
async def test_a_knowledge_base_summarises_its_parts(local_store: AgentStore) -> None:
    """Documents of the progress, or of the sources; the sum of embeddings and sizes."""
    assert KnowledgeBaseState().total_documents == 0
    async with KnowledgeStateManager(local_store()) as manager:
        await manager.update_source_state(
            source(documents_synced=3, documents_pending=2, total_embeddings=30)
        )
        await manager.update_source_state(source("t", documents_synced=4, storage_size_mb=1.5))
        whole = present(await manager.get_knowledge_base_state("kb"))
        assert (whole.total_documents, whole.total_embeddings, whole.storage_size_mb) == (9, 30, 1.5)
        assert whole.status is IndexingStatus.IDLE
        await manager.update_indexing_progress(progress(20, 9, total_embeddings=5, storage_size_mb=0.25))
        whole = present(await manager.get_knowledge_base_state("kb"))
        assert (whole.total_documents, whole.total_embeddings, whole.storage_size_mb) == (20, 35, 1.75)
        assert whole.status is IndexingStatus.IN_PROGRESS


@in_a_loop
async def test_an_unknown_knowledge_base(manager: KnowledgeStateManager) -> None:
    """None, no sources, nothing to sync; pause and resume raise."""
    assert await manager.get_indexing_progress("kb") is None
    assert await manager.get_knowledge_base_state("kb") is None
    assert await manager.get_sources("kb") == []
    assert await manager.needs_resync("kb", 0) is False
    for move in (manager.pause, manager.resume):
        with pytest.raises(KeyNotFound):
            await move("kb")
