"""KnowledgeStateManager: the indexing progress of knowledge bases, and the freshness of their sources."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from vstate.arguments import check_seconds
from vstate.managers.manager import Manager
from vstate.managers.record import Record, kept, record_copy
from vstate.patterns.lifecycle import Lifecycle
from vstate.state.namespace import Namespace

__all__ = [
    "IndexingProgress",
    "IndexingStatus",
    "KnowledgeBaseState",
    "KnowledgeStateManager",
    "SourceState",
    "SyncStatus",
]


class IndexingStatus(StrEnum):
    """The status of the indexing of a knowledge base."""

    IDLE = "idle"
    PREPARING = "preparing"
    INDEXING = "indexing"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    PAUSED = "paused"


class SyncStatus(StrEnum):
    """The status of a source, compared with the documents read from it."""

    SYNCED = "synced"
    PENDING = "pending"
    SYNCING = "syncing"
    FAILED = "failed"
    STALE = "stale"


class IndexingProgress(Record):
    """The indexing progress of a knowledge base."""

    knowledge_base_id: str
    status: IndexingStatus = IndexingStatus.IDLE
    total_documents: int = Field(default=0, ge=0)
    processed_documents: int = Field(default=0, ge=0)
    failed_documents: int = Field(default=0, ge=0)
    total_embeddings: int = Field(default=0, ge=0)
    storage_size_mb: float = Field(default=0.0, ge=0)
    started_at: datetime | None = None
    updated_at: datetime | None = None
    """The time of the last write by the manager."""

    @property
    def progress_percent(self) -> float:
        """The percentage of documents that were processed or failed; 0.0 without documents."""
        done = self.processed_documents + self.failed_documents
        return min(100.0, 100.0 * done / self.total_documents) if self.total_documents else 0.0

    @property
    def is_complete(self) -> bool:
        """Whether there are documents, and all were processed or failed."""
        return 0 < self.total_documents <= self.processed_documents + self.failed_documents


class SourceState(Record):
    """A source of a knowledge base, and the time of its last sync."""

    source_id: str
    knowledge_base_id: str
    sync_status: SyncStatus = SyncStatus.PENDING
    last_sync: datetime | None = None
    documents_synced: int = Field(default=0, ge=0)
    documents_pending: int = Field(default=0, ge=0)
    total_embeddings: int = Field(default=0, ge=0)
    storage_size_mb: float = Field(default=0.0, ge=0)
    updated_at: datetime | None = None
    """The time of the last write by the manager."""

    def needs_resync(self, older_than: timedelta) -> bool:
        """Whether the source is stale, failed, was never synced, or not for so long."""
        if self.last_sync is None or self.sync_status in (SyncStatus.STALE, SyncStatus.FAILED):
            return True
        return datetime.now(self.last_sync.tzinfo) - self.last_sync > older_than


class KnowledgeBaseState(Record):
    """A summary of a knowledge base, made of its progress and its sources."""

    knowledge_base_id: str = ""
    status: IndexingStatus = IndexingStatus.IDLE
    total_documents: int = 0
    """The total of the progress; if that is 0, the synced and pending documents of the sources."""
    total_embeddings: int = 0
    """The sum over the progress and the sources."""
    last_updated: datetime | None = None
    storage_size_mb: float = 0.0
    """The sum over the progress and the sources."""


_ENDED = (IndexingStatus.COMPLETED, IndexingStatus.FAILED)

_PAUSED = IndexingStatus.PAUSED

_LIFE = Lifecycle(
    {
        **{(status, "pause"): _PAUSED for status in IndexingStatus if status not in (*_ENDED, _PAUSED)},
        (_PAUSED, "resume"): IndexingStatus.IN_PROGRESS,
    },
    initial=IndexingStatus.IDLE,
)


class KnowledgeStateManager(Manager):
    """Knowledge bases: one record for the progress of each, and one for each source.

    - The program sets the status. The manager concludes nothing from counts, and zero documents are never
      complete.
    - While a knowledge base is paused, its counts may change, but its status stays until `resume` or its end.
    - For an unknown knowledge base, reads return None or an empty list; `pause` and `resume` raise
      KeyNotFound.
    """

    part = "knowledge"

    async def update_indexing_progress(self, progress: IndexingProgress) -> IndexingProgress:
        """Replace the progress of a knowledge base."""
        progress = record_copy(IndexingProgress, progress)
        id = progress.knowledge_base_id

        def update(part: Namespace) -> IndexingProgress:
            before, new = _progress(part).get(id), progress.model_copy(update={"updated_at": datetime.now()})
            if before is not None and before.status is _PAUSED and new.status not in _ENDED:
                new.status = _PAUSED
            return _progress(part).put(new)

        done = f"{progress.processed_documents} of {progress.total_documents} documents"
        failed = f", {progress.failed_documents} failed" if progress.failed_documents else ""
        return await self.change(update, f"knowledge base {id}: {progress.status}, {done}{failed}")

    async def get_indexing_progress(self, knowledge_base_id: str) -> IndexingProgress | None:
        """The progress of a knowledge base, or None."""
        return await self.read(lambda part: _progress(part).get(knowledge_base_id))

    async def pause(self, knowledge_base_id: str) -> IndexingProgress:
        """Pause the indexing. Raises IllegalTransition if it is paused or has ended."""
        return await self._move(knowledge_base_id, "pause")

    async def resume(self, knowledge_base_id: str) -> IndexingProgress:
        """Resume the indexing. Raises IllegalTransition unless it is paused."""
        return await self._move(knowledge_base_id, "resume")

    async def _move(self, knowledge_base_id: str, event: str) -> IndexingProgress:
        def move(part: Namespace) -> IndexingProgress:
            status = _LIFE.next(_progress(part)[knowledge_base_id].status, event)
            return _progress(part).change(knowledge_base_id, status=status, updated_at=datetime.now())

        return await self.change(move, f"knowledge base {knowledge_base_id}: {event}d")

    # Sources

    async def update_source_state(self, source: SourceState) -> SourceState:
        """Replace the state of a source."""
        new = record_copy(SourceState, source)
        new.updated_at = datetime.now()
        return await self.change(
            lambda part: _sources(part).put(new),
            f"knowledge base {source.knowledge_base_id}: source {source.source_id} {source.sync_status}",
        )

    async def get_sources(self, knowledge_base_id: str) -> list[SourceState]:
        """The sources in order of id."""
        return await self.read(lambda part: list(_sources(part).values(knowledge_base_id)))

    async def get_stale_sources(
        self, knowledge_base_id: str, older_than: float | timedelta = 86400
    ) -> list[SourceState]:
        """The sources to sync again: stale, failed, never synced, or not for `older_than` seconds.

        A source in SYNCING counts until its `last_sync` is recent: a sync that crashed never reports its end.
        """
        seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
        check_seconds("older_than", seconds, zero=True)
        sources = await self.get_sources(knowledge_base_id)
        return [source for source in sources if source.needs_resync(timedelta(seconds=seconds))]

    async def needs_resync(self, knowledge_base_id: str, older_than: float | timedelta = 86400) -> bool:
        """Whether `get_stale_sources` finds any."""
        return bool(await self.get_stale_sources(knowledge_base_id, older_than))

    # Summary

    async def get_knowledge_base_state(self, knowledge_base_id: str) -> KnowledgeBaseState | None:
        """The summary of a knowledge base at one moment, or None."""

        def summarise(part: Namespace) -> KnowledgeBaseState | None:
            progress = _progress(part).get(knowledge_base_id)
            sources = list(_sources(part).values(knowledge_base_id))
            if progress is None and not sources:
                return None
            known = progress or IndexingProgress(knowledge_base_id=knowledge_base_id)
            parts: list[IndexingProgress | SourceState] = [known, *sources]
            documents = sum(source.documents_synced + source.documents_pending for source in sources)
            return KnowledgeBaseState(
                knowledge_base_id=knowledge_base_id,
                status=known.status,
                total_documents=known.total_documents or documents,
                total_embeddings=sum(each.total_embeddings for each in parts),
                last_updated=max((each.updated_at for each in parts if each.updated_at), default=None),
                storage_size_mb=sum(each.storage_size_mb for each in parts),
            )

        return await self.read(summarise)


_progress = kept("progress", IndexingProgress, key="knowledge_base_id")
_sources = kept("sources", SourceState, key=("knowledge_base_id", "source_id"))
