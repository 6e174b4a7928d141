"""`vstate runs`, and the branch of a run in every other command, the viewer and mcp; nothing is unpickled."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient
from vstate_cli.commands.mcp import Tools

from vstate import Versioned
from vstate.repo.repository import Repository
from vstate.viewer.asgi import application

loaded = []


def load():
    loaded.append(1)
    return Trap()


class Trap:
    """Its loading is seen."""

    def __reduce__(self):
        return load, ()


@pytest.fixture
def store(tmp_path):
    place = tmp_path / "store"

    def quote(order):
        return {"amount": order, "currency": "EUR"}

    def fail():
        raise OSError("no \x1b[31mroute")

    def charge(quote, idempotency_key):
        raise TimeoutError("no answer")

    with Versioned(place) as state:
        with state.run("order 17") as run:
            run.step(quote, 5)
            for step, options in ((fail, {}), (charge, {"once": True})):
                with pytest.raises(OSError):
                    run.step(step, *[{"amount": 5}] * bool(options), **options)
        with state.run("later") as run:
            run.step(lambda: b"x" * 5000, name="long")
            run.step(Trap)
        with pytest.raises(KeyboardInterrupt), state.run("broken") as run:
            run.step(lambda: None, name="nothing")
            raise KeyboardInterrupt
    return place


def test_the_list_and_the_steps(vstate):
    """The list has the newest run first; a run has its steps, their times, results and open intents."""
    listed = vstate.run("runs").output.splitlines()
    assert [line.split("  ")[0].strip() for line in listed] == ["broken", "later", "order 17"]
    assert [line.split("on main  ")[1] for line in listed] == ["not ended", "ended", "ended  open: charge#1"]
    shown = vstate.run("runs", "show", "order 17").output.splitlines()
    assert [line.split()[3:5] for line in shown[1:]] == [
        ["quote#1", "done"],
        ["fail#1", "failed"],
        ["charge#1", "open"],
    ]
    assert "{'amount': 5, 'currency': 'EUR'}" in shown[1]
    assert "OSError: no \\x1b[31mroute" in shown[2]
    assert "TimeoutError: no answer" in shown[3]
    documents = json.loads(vstate.run("runs", "--json").output)
    assert documents[2] | {"began": 0, "time": 0} == {
        "id": "order 17",
        "branch": "main",
        "began": 0,
        "time": 0,
        "steps": 3,
        "open": ["charge#1"],
        "ended": True,
    }
    document = json.loads(vstate.run("runs", "show", "order 17", "--json").output)
    assert [step["step"] for step in document["steps"]] == ["quote#1", "fail#1", "charge#1"]
    assert document["steps"][2]["key"]
    assert document["steps"][0]["result"] == "{'amount': 5, 'currency': 'EUR'}"
    assert "b'xx" in vstate.run("runs", "show", "later").output
    for words, code in ((["show"], 2), (["list", "x"], 2), (["show", "order"], 1), (["what"], 2)):
        assert vstate.run("runs", *words).exit_code == code
    assert "did you mean: order 17" in vstate.run("runs", "show", "order 18").stderr


def test_a_run_reads_everywhere(vstate, store):
    """The branch of a run shows its steps as a table in show, diff, the viewer and mcp."""
    assert "3 rows, 8 columns" in vstate.run("show", "runs/order%2017", "steps").output
    assert vstate.run("show", "runs/order%2017", "step/quote#1/result").output.startswith("{'amount': 5")
    assert (
        "~ [2].error: None -> 'TimeoutError: no answer'"
        in vstate.run("diff", "runs/order%2017~2", "runs/order%2017").output
    )
    assert vstate.run("log", "--oneline", "-3", "runs/order%2017").output.split("\n")[1].split()[1:3] == [
        "charge#1:",
        "open",
    ]
    assert "+0000 · run=order 17\n" in vstate.run("log", "-1", "runs/order%2017").output
    assert "step/fail#1/record" in vstate.run("ls", "--raw", "runs/order%2017").output
    with Versioned(store) as state:
        repo = state.repo
        assert type(repo) is Repository
        client = TestClient(application(repo), base_url="http://localhost")
        found = client.get("/api/v1/value", params={"rev": "runs/order%2017", "key": "steps"})
        assert found.status_code == 200, found.text
        assert "TimeoutError" in found.text
        tools = {tool.__name__: tool for tool in Tools(repo).reading}
        assert "charge#1" in tools["show"](rev="runs/order%2017", key="steps")


def test_nothing_is_unpickled(vstate):
    """A result whose loading runs code is shown, and not loaded."""
    before = len(loaded)
    assert "Trap#1  done" in vstate("runs", "show", "later")
    assert vstate("show", "runs/later", "step/Trap#1/result")
    assert len(loaded) == before
