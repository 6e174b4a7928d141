"""A cache, tiers and a part, one on top of the other, on each server."""

from pathlib import Path

from vstate import Versioned
from vstate.kv import Disk, Prefixed, Tiered, open_store
from vstate.repo.repository import Repository


def test_tenants_with_a_near_disk(server_url: str, tmp_path: Path) -> None:
    """Two tenants of one server, each with a near disk in front, and with one that is lost in between."""
    with open_store(server_url) as server:
        for name in ("a", "b"):
            near = Disk(tmp_path / name, durability="process")
            with near, Versioned(Tiered(near, Prefixed(server, name))) as state:
                state["text"] = name * 5000
                state.commit(f"of {name}")
        for name in ("a", "b"):
            with Disk(tmp_path / f"new {name}", durability="process") as near:
                store = Tiered(near, Prefixed(server, name))
                with Versioned(store) as state:
                    assert state["text"] == name * 5000
                    state["text"] = "changed"
                    state.commit()
                repo = Repository(store)
                repo.gc(keep_reflog="0s", grace="0s")
                assert repo.fsck().ok
                assert [commit.message for commit in repo.log()] == ["", f"of {name}"]
        assert {key[:2] for key in server.keys()} == {"a/", "b/"}  # noqa: SIM118  # a store, not a dict
