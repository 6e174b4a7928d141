"""The OpenAPI file describes the answers of the viewer as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from viewers import Viewer

from vstate import Memory
from vstate.repo.repository import Repository
from vstate.viewer.changing import Changing
from vstate.viewer.health import JOBS
from vstate.viewer.reading import Reading

jsonschema = pytest.importorskip("jsonschema")

pytestmark = pytest.mark.slow

QUERIES = {
    "/commits": "?all=1&fold=1&find=v1",
    "/keys": "?rev=other",
    "/value": "?key=plan",
    "/diff": "?old=main&new=other&base=1",
    "/history": "?key=score/a",
    "/blame": "?key=chat",
    "/search": "?text=think",
    "/merge": "?ours=main&theirs=other",
}
FURTHER = ["/value?key=chat", "/value?key=table", "/diff?new=other&key=notes", "/merge?ours=main&theirs=v1"]


def test_answers(writer: Viewer) -> None:
    """Each answer has all members of its schema, and no other ones; errors too."""
    document = writer.get("/openapi.json")

    def check(path: str, answer: Any, method: str = "get", status: str = "200") -> None:
        responses = document["paths"][path][method]["responses"]
        schema = responses[status]["content"]["application/json"]["schema"]
        jsonschema.validate(answer, {**schema, "components": document["components"]})

    for path in Reading(Repository(Memory())).answers:
        check(path, writer.get(path + QUERIES.get(path, "")))
    for request in FURTHER:
        check(request.partition("?")[0], writer.get(request))
    check("/commits/{rev}", writer.get("/commits/v1"))
    check("/value", writer.ask("/value?key=absent")[1], status="default")
    branch = {"name": "new", "at": "v1", "preview": True}
    check("/branches", writer.ask("/branches", branch)[1], "post")
    seen = writer.get("/commits/main")["id"]
    back = {"branch": "main", "rev": "v1", "seen": seen, "preview": True}
    check("/rollback", writer.ask("/rollback", back)[1], "post")


def test_addresses() -> None:
    """Every address is described, with its methods."""
    file = Path(__file__).parents[2] / "vstate" / "viewer" / "openapi.json"
    paths = json.loads(file.read_text())["paths"]
    repo = Repository(Memory())
    reading, changes = {*Reading(repo).answers}, {*Changing(repo).changes}
    assert {path for path in paths if "post" in paths[path]} == changes
    events = {"/events", *(f"/{name}" for name in JOBS)}
    assert {path for path in paths if "get" in paths[path]} == reading | events | {"/commits/{rev}", "/bytes"}
