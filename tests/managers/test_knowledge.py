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


# Progress


@pytest.mark.parametrize("failed", [0, 3])
@in_a_loop
async def test_zero_documents_are_never_complete(failed: int) -> None:
    """Neither by counts nor by a derived status: the manager concludes nothing."""
    assert not progress().is_complete
    assert progress().progress_percent == 0.0
    assert not IndexingProgress(knowledge_base_id="kb", status="completed").is_complete
    async with KnowledgeStateManager() as manager:
        await manager.update_indexing_progress(progress(0, 0, failed))
        found = present(await manager.get_indexing_progress("kb"))
        assert (found.status, found.is_complete, found.progress_percent) == ("in_progress", False, 0.0)
        assert present(await manager.get_knowledge_base_state("kb")).status == "in_progress"


def test_how_far_it_is() -> None:
    """Failed documents count as done; more documents than the total count as all."""
    cases = {(10, 4, 1): (50.0, False), (10, 9, 1): (100.0, True), (3, 7, 0): (100.0, True)}
    for counts, expected in cases.items():
        found = progress(*counts)
        assert (found.progress_percent, found.is_complete) == expected
    with pytest.raises(ValueError, match="total_documents"):
        progress(-1)


@in_a_loop
async def test_pausing(manager: KnowledgeStateManager) -> None:
    """Reports of running workers do not end the pause; the end of the indexing does."""
    await manager.update_indexing_progress(progress(10, 4))
    assert (await manager.pause("kb")).status is IndexingStatus.PAUSED
    kept = await manager.update_indexing_progress(progress(10, 10))
    assert (kept.status, kept.processed_documents) == (IndexingStatus.PAUSED, 10)
    assert (await manager.resume("kb")).status is IndexingStatus.IN_PROGRESS
    await manager.pause("kb")
    done = await manager.update_indexing_progress(progress(10, 10, status="completed"))
    assert done.status is IndexingStatus.COMPLETED
    messages = [commit.message async for commit in manager.state.log()]
    assert messages == [
        "knowledge base kb: completed, 10 of 10 documents",
        "knowledge base kb: paused",
        "knowledge base kb: resumed",
        "knowledge base kb: in_progress, 10 of 10 documents",
        "knowledge base kb: paused",
        "knowledge base kb: in_progress, 4 of 10 documents",
    ]


@pytest.mark.parametrize("status", IndexingStatus)
@in_a_loop
async def test_pause_and_resume_by_status(manager: KnowledgeStateManager, status: IndexingStatus) -> None:
    """Indexing that has not ended can be paused, and then resumed; other moves raise, and change nothing."""
    await manager.update_indexing_progress(progress(status=status))
    head = manager.state.head
    if status is IndexingStatus.PAUSED:
        with pytest.raises(IllegalTransition, match="resume"):
            await manager.pause("kb")
        await manager.resume("kb")
        return
    with pytest.raises(IllegalTransition):
        await manager.resume("kb")
    if status in (IndexingStatus.COMPLETED, IndexingStatus.FAILED):
        with pytest.raises(IllegalTransition):
            await manager.pause("kb")
        assert manager.state.head == head
    else:
        assert (await manager.pause("kb")).status is IndexingStatus.PAUSED


# Sources


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"last_sync": -HOUR / 2, "sync_status": "synced"}, False),
        ({"last_sync": -HOUR / 2, "sync_status": "stale"}, True),
        ({"last_sync": -HOUR / 2, "sync_status": "failed"}, True),
        ({"last_sync": -HOUR / 2, "sync_status": "pending"}, False),
        ({"last_sync": -2 * HOUR, "sync_status": "synced"}, True),
        ({"last_sync": -2 * HOUR, "sync_status": "syncing"}, True),
        ({"last_sync": HOUR, "sync_status": "synced"}, False),
    ],
)
@pytest.mark.parametrize("zone", [None, UTC])
@in_a_loop
async def test_sources_that_need_a_resync(fields: dict[str, Any], expected: bool, zone: Any) -> None:
    """Never synced, stale, failed, or too long ago; in seconds or as a timedelta, with and without a zone."""
    if "last_sync" in fields:
        fields = {**fields, "last_sync": datetime.now(zone) + fields["last_sync"]}
    async with KnowledgeStateManager() as manager:
        await manager.update_source_state(source("fresh", last_sync=datetime.now(), sync_status="synced"))
        assert await manager.needs_resync("kb", older_than=3600) is False
        await manager.update_source_state(source(**fields))
        for older_than in (3600, HOUR):
            assert await manager.needs_resync("kb", older_than=older_than) is expected
            found = await manager.get_stale_sources("kb", older_than)
            assert [s.source_id for s in found] == ["s"] * expected


@in_a_loop
async def test_an_age_that_is_none(manager: KnowledgeStateManager) -> None:
    """It is a day then."""
    await manager.update_source_state(source(last_sync=datetime.now() - 23 * HOUR))
    assert not await manager.needs_resync("kb")
    await manager.update_source_state(source(last_sync=datetime.now() - 25 * HOUR))
    assert await manager.needs_resync("kb")


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
