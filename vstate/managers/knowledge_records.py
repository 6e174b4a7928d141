"""The records of knowledge bases: how far the indexing is, and how fresh each source."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from vstate.managers.record import Record


class IndexingStatus(StrEnum):
    """Where the indexing of a knowledge base is."""

    IDLE = "idle"
    PREPARING = "preparing"
    INDEXING = "indexing"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    PAUSED = "paused"


class SyncStatus(StrEnum):
    """How a source is, compared with what was read from it."""

    SYNCED = "synced"
    PENDING = "pending"
    SYNCING = "syncing"
    FAILED = "failed"
    STALE = "stale"


class IndexingProgress(Record):
    """How far the indexing of a knowledge base is."""

    knowledge_base_id: str
    status: IndexingStatus = IndexingStatus.IDLE
    total_documents: int = Field(default=0, ge=0)
    processed_documents: int = Field(default=0, ge=0)
    failed_documents: int = Field(default=0, ge=0)
    total_embeddings: int = Field(default=0, ge=0)
    storage_size_mb: float = Field(default=0.0, ge=0)
    started_at: datetime | None = None
    updated_at: datetime | None = None
    """When the manager wrote it."""

    @property
    def progress_percent(self) -> float:
        """Percent of the documents that were processed, or failed: 0.0 as long as there are none."""
        done = self.processed_documents + self.failed_documents
        return min(100.0, 100.0 * done / self.total_documents) if self.total_documents else 0.0

    @property
    def is_complete(self) -> bool:
        """Whether there are documents, and each was processed or failed."""
        return 0 < self.total_documents <= self.processed_documents + self.failed_documents


class SourceState(Record):
    """A source of a knowledge base, and when it was last read."""

    source_id: str
    knowledge_base_id: str
    sync_status: SyncStatus = SyncStatus.PENDING
    last_sync: datetime | None = None
    documents_synced: int = Field(default=0, ge=0)
    documents_pending: int = Field(default=0, ge=0)
    total_embeddings: int = Field(default=0, ge=0)
    storage_size_mb: float = Field(default=0.0, ge=0)
    updated_at: datetime | None = None
    """When the manager wrote it."""

    def needs_resync(self, older_than: timedelta) -> bool:
        """Whether it is stale, or failed, or was not read for so long, or never."""
        if self.last_sync is None or self.sync_status in (SyncStatus.STALE, SyncStatus.FAILED):
            return True
        return datetime.now(self.last_sync.tzinfo) - self.last_sync > older_than


class KnowledgeBaseState(Record):
    """A knowledge base in a few numbers, made of its progress and its sources."""

    knowledge_base_id: str = ""
    status: IndexingStatus = IndexingStatus.IDLE
    total_documents: int = 0
    """Those of the progress; as long as that has none, those synced and pending in the sources."""
    total_embeddings: int = 0
    """The sum of those of the progress and of the sources."""
    last_updated: datetime | None = None
    storage_size_mb: float = 0.0
    """As `total_embeddings`."""
