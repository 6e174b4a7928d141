"""The answers of the viewer's API."""

from __future__ import annotations

import base64
import http.client
import json
import random
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import pytest
from counting import Counting
from viewers import Serve, Viewer

from vstate import Disk, Memory, Versioned
from vstate.display.texts import text_hunks
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo.repository import Repository
from vstate.viewer import exporting, life
from vstate.viewer import health as health_module
from vstate.viewer.health import health
from vstate.viewer.life import versions
from vstate.viewer.values import Values

pytestmark = pytest.mark.slow


def test_rows(viewer: Viewer) -> None:
    """A page of the list has rows with refs, changed keys and lanes; alike commits are folded."""
    answer = viewer.get("/commits?all=1&fold=1")
    rows = answer["rows"]
    assert answer["complete"]
    assert [row["message"] for row in rows] == [
        *("planned", "scored", "other way", "put 11", "put 0", "answered", "begin")
    ]
    assert [row["folded"] for row in rows] == [0, 0, 0, 11, 0, 0, 0]
    assert [row["lane"] for row in rows] == [0, 0, 1, 0, 0, 0, 0]
    assert rows[0]["refs"] == [{"name": "main", "kind": "branch", "current": True}]
    assert rows[0]["changes"]["names"] == [["~", "plan"]]
    opened = viewer.get(f"/commits?all=1&fold=1&open={rows[3]['id']}")
    assert opened["known"] == 17
    sought = viewer.get(f"/commits?all=1&fold=1&find={opened['rows'][8]['id']}")
    assert sought["found"] == 3  # its folded row


def test_the_page_knows_the_refs_of_its_answers(viewer: Viewer) -> None:
    """Otherwise it would repeat its requests when the first event comes."""
    _, _, page = viewer.send("/", Authorization=f"Bearer {viewer.token}")
    assert f'content="{viewer.get("/refs")["state"]}"' in page.decode()


def test_pages_of_one_moment(small: Path, writer: Viewer, tmp_path: Path) -> None:
    """Later pages come from the list as it was, while another process commits; a list that is gone is 410."""
    first = writer.get("/commits?limit=2")
    with Versioned(Disk(tmp_path / "store")) as state:
        state["new"] = 1
        state.commit("newer")
    page = writer.get(f"/commits?limit=2&first=2&view={first['view']}")
    assert [row["message"] for row in page["rows"]] == ["put 11", "put 10"]
    assert writer.get("/commits?limit=1")["rows"][0]["message"] == "newer"
    assert writer.ask("/commits?view=0123")[0] == 410


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("grep=PUT+1", ["put 11", "put 10", "put 1"]),
        ("key=notes", ["begin"]),
        ("info=model%3Dsmall", ["begin"]),
        ("since=2100-01-01", []),
        ("rev=v1..other", ["other way"]),
        ("author=ed25519:00", []),
    ],
)
def test_conditions(viewer: Viewer, query: str, found: list[str]) -> None:
    """The list takes the conditions of `vstate log`."""
    assert [row["message"] for row in viewer.get(f"/commits?{query}")["rows"]] == found


def test_keys(viewer: Viewer) -> None:
    """Keys are listed by folder, with the changed and removed ones marked; pages follow one another."""
    top = viewer.get("/keys?rev=other")
    assert viewer.get(f"/keys?rev=other&limit={len(top['items'])}")["next"] is None
    names = [(item["name"], item["change"]) for item in top["items"]]
    assert names == [
        *(("bytes", "removed"), ("chat", None), ("notes", "modified"), ("picture", None), ("plan", None)),
        *(("score", "modified"), ("table", None)),
    ]
    folder = top["items"][5]
    assert (folder["folder"], folder["keys"], folder["changed"]) == ("score/", 2, 1)
    inside = viewer.get("/keys?rev=other&prefix=score/&limit=1")
    assert [item["key"] for item in inside["items"]] == ["score/a"]
    rest = viewer.get(f"/keys?rev=other&prefix=score/&after={inside['next'].replace(chr(0), '%00')}")
    assert [item["key"] for item in rest["items"]] == ["score/b"]
    changed = viewer.get("/keys?rev=other&changed=1")
    assert [item["name"] for item in changed["items"]] == ["bytes", "notes", "score"]


def test_values(viewer: Viewer) -> None:
    """A value is described by the view that fits, and part by part with the changed parts marked."""
    plan = viewer.get("/value?rev=main&key=plan")
    nexts = [viewer.get(f"/value?rev=main&key=plan&limit={plan['count'] - left}")["next"] for left in (0, 1)]
    assert nexts == [None, plan["count"] - 1]
    assert [(part["label"], part["change"]) for part in plan["parts"]] == [
        *(("goal", None), ("steps", "modified"), ("pair", None))
    ]
    steps = viewer.get("/value?rev=main&key=plan&path=steps")
    assert [(part["text"], part["change"]) for part in steps["parts"]] == [
        *(("read", None), ("think", None), ("act", "added"))
    ]
    chat = viewer.get("/value?rev=v1&key=chat")
    call = chat["view"]["messages"][1]["calls"][0]
    assert (chat["kind"], call["name"], call["result"]) == ("chat", "calc", "4")
    assert [message["new"] for message in chat["view"]["messages"]] == [False, True]
    table = viewer.get("/value?key=table&first=200&limit=100")["view"]
    assert (table["rows"], table["first"], table["next"]) == (250, 200, None)
    assert table["cells"][49] == ["[249]", "row 249", "62001"]
    shown = viewer.get("/value?key=bytes&rev=v1&first=2&limit=1")["view"]
    assert (base64.b64decode(shown["data"]), shown["next"]) == (bytes(range(32, 48)), 3)
    assert viewer.ask("/value?key=absent")[0] == 404
    assert viewer.ask("/value?key=plan&path=nowhere")[0] == 404


def test_pages_of_a_chat(state: Versioned, serve: Serve) -> None:
    """A call has its result though a page ends between them; an item that is no message is shown as it is."""
    call = {"id": "c", "function": {"name": "add", "arguments": "[2, 2]"}}
    chat: list[object] = [{"role": "user", "content": f"message {i}"} for i in range(1100)]
    chat[99] = {"role": "assistant", "content": "", "tool_calls": [call]}
    chat[1050] = ["not", "a", "message"]
    state["chat"] = chat
    state.commit()
    state["chat"][100] = {"role": "tool", "tool_call_id": "c", "content": "4"}
    state.commit()
    viewer = serve()
    last = viewer.get("/value?key=chat&limit=100")["view"]["messages"][-1]
    assert (last["place"], last["new"]) == (99, False)
    assert [(each["result"], each["new"]) for each in last["calls"]] == [("4", True)]
    following = viewer.get("/value?key=chat&first=100&limit=100")["view"]["messages"]
    assert following[0]["place"] == 101
    odd = viewer.get("/value?key=chat&first=1050&limit=1")["view"]["messages"]
    assert [(each["place"], each["text"]) for each in odd] == [(1050, "['not', 'a', 'message']")]


def test_marks_in_tables(state: Versioned, serve: Serve) -> None:
    """Changed cells are marked by the labels of their rows; so is a column that changed in many places."""
    columns = ["price", "price", "rows", "many"]
    frame = pd.DataFrame([[i, i, i, i] for i in range(12)], index=range(110, -10, -10), columns=columns)
    state["frame"], state["records"] = frame, [{"a": i, "odd name": i} for i in range(5)]
    state["large"] = ["x" * 17_000_000]
    state.commit()
    changed = frame.copy()
    changed.iloc[1, 1] = -1
    changed.iloc[2, 2] = -1
    changed["many"] += 1
    state["frame"] = pd.concat([changed, pd.DataFrame([[1, 1, 1, 1]], index=[500], columns=columns)])
    state["records"][3]["odd name"] = -1
    state["large"] = ["y" * 17_000_000]
    state.commit()
    viewer = serve()
    view = viewer.get("/value?key=frame")["view"]
    cells = [[row, column] for row, column in view["changed"] if column < 3 or row == 12]
    assert cells == [[1, 0], [1, 1], [2, 2], *([12, column] for column in range(4))]
    assert view["changed_columns"] == [3]
    assert viewer.get("/value?key=records")["view"]["changed"] == [[3, 1]]
    assert "not marked" in viewer.get("/value?key=large")["view"]["note"]


def test_diff(viewer: Viewer) -> None:
    """Changes between two commits by key, against the merge base too, and inside a key by word."""
    both = viewer.get("/diff?old=main&new=other&base=1")
    assert [change["key"] for change in both["changes"]] == ["bytes", "notes", "score/b"]
    notes = viewer.get("/diff?new=other&key=notes")["details"][0]
    changed = [
        (line["sign"], [piece["text"] for piece in line["pieces"] if piece["is_changed"]])
        for line in notes["hunks"][0]["lines"]
        if line["sign"] != " "
    ]
    assert changed == [("-", ["second", "line"]), ("+", ["other", "words"])]


def test_life(viewer: Viewer) -> None:
    """The versions of a key have its numbers, and each part of a value has its commit."""
    first = viewer.get("/history?key=score/a&limit=10")
    rest = viewer.get(f"/history?key=score/a&limit=10&before={first['next']['before']}")
    numbers = [commit["number"] for commit in first["commits"] + rest["commits"]]
    assert numbers == [*map(float, range(11, -1, -1)), 1.0]
    parts = viewer.get("/blame?key=chat")["parts"]
    assert [part["commit"]["message"] for part in parts] == ["begin", "answered", "answered"]


def test_the_life_of_a_part(state: Versioned, serve: Serve) -> None:
    """The versions of a part are the commits that changed it; a page looks at so many versions of the key."""
    goals = {3: "learn", 5: "teach"}
    for i in range(10):
        plan = state.setdefault("plan", {})
        plan["count"], plan["goal"] = i, goals.get(i, plan.get("goal"))
        if i < 3 or i > 7:
            del plan["goal"]
        state.commit(str(i))
    viewer = serve()
    found = viewer.get("/history?key=plan&path=goal")
    assert [(each["message"], each["kind"], each["text"]) for each in found["commits"]] == [
        *(("8", "removed", None), ("5", "modified", "teach"), ("3", "added", "learn"))
    ]
    assert (found["looked"], found["next"]) == (10, None)
    page = viewer.get("/history?key=plan&path=goal&limit=4")
    assert ([each["message"] for each in page["commits"]], page["looked"]) == (["8"], 4)
    page = viewer.get(f"/history?key=plan&limit=4&{urlencode(page['next'])}")
    assert [each["message"] for each in page["commits"]] == ["5", "3"]
    counts = viewer.get("/history?key=plan&path=count")["commits"]
    assert [each["number"] for each in counts[:2]] == [9, 8]
    (line,) = viewer.get("/blame?key=plan&path=goal&rev=HEAD~2")["parts"]
    assert (line["line"], line["path"], line["commit"]["message"]) == (1, "goal", "5")


def test_the_life_of_an_item_follows_the_item(state: Versioned, serve: Serve) -> None:
    """Items that come in front of it do not change it, as in blame, also from one page to the next."""
    state["chat"] = [{"role": "user", "content": "first"}]
    state.commit("said")
    for number in range(6):
        state["chat"].insert(0, {"role": "system", "content": f"rule {number}"})
        state.commit(f"rule {number}")
    state["chat"][6]["content"] = "first, edited"
    state.commit("edited")
    viewer = serve()
    item = viewer.get("/history?key=chat&path=[6]")["commits"]
    assert [(each["message"], each["kind"]) for each in item] == [("edited", "modified"), ("said", "added")]
    assert item[-1]["text"] == "user: first"
    page = viewer.get("/history?key=chat&path=[6]&limit=4")
    assert page["next"]["path"] == "[3]"
    rest = viewer.get(f"/history?key=chat&limit=40&{urlencode(page['next'])}")
    assert [each["message"] for each in rest["commits"]] == ["said"]
    blamed = viewer.get("/blame?key=chat")["parts"]
    assert blamed[0]["text"] == "system: rule 5"
    assert [each["commit"]["message"] for each in blamed[-2:]] == ["rule 0", "edited"]


def test_a_chat_that_came_as_a_whole_reads_message_by_message(state: Versioned, serve: Serve) -> None:
    """Added and removed, its diff has the messages in words; a column is its first cells."""
    state["chat"] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    state["frame"] = pd.DataFrame({"x": [1.5, 2.5]})
    state.commit("begin")
    del state["chat"]
    state.commit("removed")
    viewer = serve()
    for rev, side, kind in (("HEAD~1", "new", "added"), ("HEAD", "old", "removed")):
        details = viewer.get(f"/diff?new={rev}&key=chat")["details"]
        assert [each["kind"] for each in details] == [kind, kind]
        assert [each[side]["text"] for each in details] == ["user: hello", "assistant: hi"]
    assert viewer.get("/blame?key=frame")["parts"][0]["text"] == "float64, 2 cells: 1.5, 2.5"


def test_of_a_long_text_only_a_page_is_read(tmp_path: Path) -> None:
    """The pages of a text and of many bytes put together are the value; each reads only its own chunks."""
    text = "".join(f"line {n} of a long text, 東京 ∑\n" for n in range(600_000))
    data = random.Random(1).randbytes(17_000_000)
    store = Counting(Memory())
    state = Versioned(store)
    state["text"], state["bytes"] = text, data
    state.commit("long")
    values, commit = Values(Repository(store)), state.repo.resolve("HEAD")
    limit = 1_000
    for key, size in (("text", len(text.encode())), ("bytes", len(data))):
        pages: list[Any] = []
        first: int | None = 0
        while first is not None:
            store.lengths.clear()
            view = values.page(commit, key, "", before=None, first=first, limit=limit)["view"]
            assert sum(store.lengths) < 4_000_000
            assert view["size"] == size
            pages.append(view["text"] if key == "text" else base64.b64decode(view["data"]))
            first = view["next"] if len(pages) < 40 else None
        whole: Any = text if key == "text" else data
        joined = whole[:0].join(pages)
        assert whole[: len(joined)] == joined
        assert len(joined) > 500_000
    middle = values.page(commit, "text", "", before=None, first=9_000_000, limit=1)["view"]
    assert middle["text"][10:] in text


def test_the_sides_of_a_merge_begin_where_they_differ(state: Versioned, serve: Serve) -> None:
    """Long texts, and long values as texts, begin shortly before they differ; short ones are whole."""
    same = "the same for a long time, " * 40
    state.update({"text": f"{same}base", "dict": {"a": same, "b": 0}, "short": 1})
    state.commit("base")
    with state.fork("side") as side:
        side.update({"text": f"{same}theirs", "dict": {"a": same, "b": 2}, "short": 2})
        side.commit("theirs")
    state.update({"text": f"{same}ours", "dict": {"a": same, "b": 1}, "short": 3})
    state.commit("ours")
    conflicts = serve().get("/merge?ours=main&theirs=side")["conflicts"]
    sides = {each["key"]: [each[side]["text"] for side in ("base", "ours", "theirs")] for each in conflicts}
    assert [text[-6:] for text in sides["text"]] == [", base", ", ours", "theirs"]
    assert {len(text) < 60 for text in [*sides["text"], *sides["dict"]]} == {True}
    assert [text[-7:] for text in sides["dict"]] == ["'b': 0}", "'b': 1}", "'b': 2}"]
    assert sides["short"] == ["1", "3", "2"]


def test_a_table_tells_which_cells_changed(state: Versioned, serve: Serve) -> None:
    """The oddest changes come first, by row and column; those of a list of records too."""
    frame = pd.DataFrame(
        {"a": range(500), "b": [float(n) for n in range(500)]}, index=[f"r{n}" for n in range(500)]
    )
    changed = frame.copy()
    changed.loc["r400", "b"], changed.loc["r7", "a"] = float("nan"), -1
    state["frame"], state["rows"] = frame, [{"x": n, "y": n} for n in range(300)]
    state.commit("begin")
    state["frame"] = changed
    state["rows"][250]["y"] = -1
    state.commit("changed")
    viewer = serve()
    assert viewer.get("/value?key=frame")["view"]["changes"] == [[7, 0], [400, 1]]
    assert viewer.get("/value?key=rows")["view"]["changes"] == [[250, 1]]
    assert viewer.get("/value?key=rows&rev=HEAD~1&since=HEAD~1")["view"]["changes"] == []


def test_the_life_of_a_merge_of_many_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its seconds are over, a page reads no further parents."""
    repo = Repository(Memory())
    parents = [repo.commit(f"b{i}", set={"k": {"a": i}}) for i in range(20)]
    first = parents[0]
    assert first is not None
    merge = repo.build_commit(first.root, [each for each in parents[1:] if each], message="merge")
    assert repo.publish("merged", [merge], {}, {}, expected=None, action="test")
    read: list[object] = []
    of = life._Parts.of
    monkeypatch.setattr(life._Parts, "of", lambda self, at, *rest: [read.append(at), of(self, at, *rest)][1])
    monkeypatch.setattr(life, "_SECONDS", -1.0)
    page = versions(repo, Values(repo), merge, "k", "a", before=None, limit=10)
    assert [each["message"] for each in page["commits"]] == ["merge"]
    assert (len(read), page["next"]["before"]) == (2, merge.id)


def test_search_and_health(viewer: Viewer) -> None:
    """Texts are found in values by path; the largest keys come first."""
    assert viewer.get("/search?text=THINK")["places"][0]["path"] == "steps[1]"
    assert [viewer.get(f"/search?text={name}")["branch"] for name in ("other", "v1")] == ["other", None]
    health = viewer.get("/health")
    assert health["largest"][0]["key"] == "table"
    assert {branch["name"] for branch in health["branches"]} == {"main", "other"}


@dataclass
class Plan:
    goal: str


def test_large_values(state: Versioned, serve: Serve) -> None:
    """A long array is shown by its beginning, its range and its form; objects by their fields."""
    state["array"] = np.arange(1_500_000, dtype=np.float64)
    state["plan"] = Plan("learn")
    state.commit()
    viewer = serve()
    view = viewer.get("/value?key=array&limit=3")["view"]
    assert (view["shape"], view["elements"], view["next"]) == ([1_500_000], ["0.0", "1.0", "2.0"], 3)
    assert view["histogram"]["sampled"]
    assert viewer.get("/value?key=array&first=1499999")["view"]["elements"] == ["1499999.0"]
    plan = viewer.get("/value?key=plan")
    assert plan["kind"] == "object"
    assert plan["parts"][0]["text"] == "learn"


def test_health_of_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of the first keys are added up, and all are counted."""
    monkeypatch.setattr(health_module, "_MOST_KEYS", 10)
    state = Versioned(Memory())
    for i in range(25):
        state[f"k{i:02}"] = i
    state.commit()
    found = health(state.repo)
    assert (found["keys"], found["measured"], len(found["largest"])) == (25, 10, 10)
    assert [(each["keys"], each["measured"]) for each in found["branches"]] == [(25, 10)]


def test_health_of_a_damaged_store() -> None:
    """A branch that cannot be read is counted; the others have their sizes."""
    state = Versioned(Memory())
    state["k"] = 1
    state.commit()
    state.switch("other", create=True)
    state["k"] = 2
    lost = state.commit()
    assert lost is not None
    state.store.delete(OBJECT_PREFIX + lost.oid.hex())
    found = health(Repository(state.store))
    assert (found["branch_count"], found["damaged"]) == (2, 1)
    assert [each["name"] for each in found["branches"]] == ["main"]


def test_versions_on_two_branches() -> None:
    """Pages of the life of a key have the versions of merged branches too, each once."""
    state = Versioned(Memory())
    state["k"] = 0
    state.commit("begin")
    other = state.fork("other")
    for i in range(3):
        for handle, name in ((other, "other"), (state, "main")):
            handle["k"] = f"{name} {i}"
            handle.commit(f"{name} {i}")
    state.merge("other", policy="ours")
    repo, start = state.repo, state.repo.resolve("main")
    values = Values(repo)
    whole = versions(repo, values, start, "k", "", before=None, limit=100)["commits"]
    page = versions(repo, values, start, "k", "", before=None, limit=2)
    paged = page["commits"]
    while page["next"] is not None:
        before = repo.resolve(page["next"]["before"])
        page = versions(repo, values, start, "k", "", before=before, limit=2)
        paged += page["commits"]
    assert paged == whole
    assert len(whole) >= 7


@pytest.mark.parametrize("array", [np.array([10**400], dtype=object), np.full(700, 1.797e308)])
def test_arrays_of_huge_numbers(array: Any) -> None:
    """They are shown without a drawing."""
    state = Versioned(Memory())
    state["a"] = array
    commit = state.commit()
    assert commit is not None
    view = Values(state.repo).page(commit, "a", "", before=None, first=0, limit=10)["view"]
    assert view["histogram"] is None
    assert len(view["elements"]) == min(len(array), 10)


def test_a_diff_that_is_cut_says_so() -> None:
    """Of thousands of changed lines the first are shown, and a line tells of the others."""
    hunks = text_hunks("old\n" * 5000, "".join(f"new {i}\n" for i in range(6000)))
    assert "the first 2,000 of each are shown" in hunks[-1].lines[-2].pieces[0].text
    hunks = text_hunks("".join(f"{i}\nsame\nsame\nsame\nsame\n" for i in range(3000)), "same\n" * 12_000)
    assert "more changes behind these" in hunks[-1].lines[-1].pieces[0].text


@pytest.mark.parametrize("room", [3_000, 15_000, 30_000, 60_000, 200_000])
def test_a_file_without_room(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the room of a file ends, each value ends with a page that is there, and has its view."""
    state = Versioned(Memory())
    state["list"] = [{"n": [i]} for i in range(900)]
    state["text"] = "long " * 60_000
    state["chat"] = [{"role": "user", "content": f"message {i}"} for i in range(900)]
    state.commit()
    monkeypatch.setattr(exporting, "_MOST_CHARACTERS", room)
    page = exporting.export_html(state.repo)
    data = json.loads(page.partition('id="vstate-data">')[2].partition("</script>")[0])
    for value in data["values"]:
        for name, part in value["parts"].items():
            path, _, first = name.partition("\n")
            following = part["next"] if part["next"] is not None else (part["view"] or {}).get("next")
            assert following is None or f"{path}\n{following}" in value["parts"]
            assert not first or part["view"]


def test_notebook(small: Path) -> None:
    """`state.view()` is a sandboxed frame with the whole page as text; nothing in it ends the attribute."""
    with Versioned(Disk(small)) as state:
        window = state.view("v1..main")
        frame = window._repr_html_()
        assert frame.startswith('<iframe sandbox="allow-scripts" ')
        assert frame.count('"') == 12
        assert "planned" in window.html
        assert "default-src 'none'" in window.html


def test_small_answers_are_not_held_back(viewer: Viewer) -> None:
    """On a connection that stays open, no answer waits for the browser to confirm its head: that is 40 ms."""
    connection = http.client.HTTPConnection(viewer.base.removeprefix("http://"), timeout=60)
    times = []
    for _ in range(20):
        begun = monotonic()
        connection.request("GET", "/api/v1/store", headers={"Authorization": f"Bearer {viewer.token}"})
        connection.getresponse().read()
        times.append(monotonic() - begun)
    connection.close()
    assert min(times[1:]) < 0.03


def test_a_forged_conversation_is_bounded(state: Versioned, serve: Serve) -> None:
    """A store of 2 kB, in which one long text stands in many calls of many messages."""
    long = "x" * 3000
    call = {"id": "c", "function": {"name": "f", "arguments": long}}
    use = {"type": "tool_use", "id": "u", "name": "f", "input": long}
    state["chat"] = [{"role": "user", "content": "begin"}]
    state.commit("begin")
    state["chat"] += [
        {"role": "assistant", "content": [use] * 50, "tool_calls": [call] * 50, "n": i} for i in range(100)
    ]
    head = state.commit("forged")
    assert head is not None
    viewer = serve(write=True)
    back = {"branch": "main", "rev": "main~1", "seen": head.id, "preview": True}
    for answer in (
        viewer.get("/diff?key=chat"),
        viewer.get("/value?key=chat&limit=1000"),
        viewer.ask("/rollback", back)[1],
    ):
        assert len(json.dumps(answer)) < 10_000_000
