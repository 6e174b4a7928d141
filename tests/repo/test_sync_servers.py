"""Sync with stores on real servers: Redis, PostgreSQL, S3."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_files import chain, large, refs_of, save, values_at

from vstate import Disk, Memory, Versioned, open_store
from vstate.errors import Diverged
from vstate.repo import Repository
from vstate.repo.clone import clone


def test_there_and_back(server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push, clone by a URL in the environment, commit on both sides, pull and push again."""
    monkeypatch.setenv("PLACE", server_url)
    store = Memory()
    state = chain(store, 12)
    state.set_policy("small", "theirs")
    save(state, "large", large=large(1, 300_000))
    state.repo.remotes.add("origin", "${PLACE}")
    state.push(create=True)
    clone("${PLACE}", tmp_path / "copy")
    with Versioned(Disk(tmp_path / "copy", create=False)) as copy:
        assert copy.policies() == {"small": "theirs"}
        assert dict(copy) == dict(state)
        save(copy, "copy", small="copy")
        copy.push()
        state["own"] = 1
        save(state, "own", small="state")
        with pytest.raises(Diverged):
            state.push()
        assert state.pull().strategy == "merge"
        assert (state["small"], state["own"]) == ("copy", 1)
        state.push()
        assert copy.pull().strategy == "fast-forward"
        assert dict(copy) == dict(state)
    with open_store(server_url, create=False) as there:
        assert refs_of(there)["heads/main"] == refs_of(store)["heads/main"]
        assert values_at(there).items() <= values_at(store).items()
        report = Repository(there).fsck()
        assert report.ok, str(report)
        assert report.orphans == 0
