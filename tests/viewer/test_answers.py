"""The answers of the viewer's API."""

from __future__ import annotations

import base64
import http.client
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from counting import Counting
from viewers import Serve, Viewer, viewing

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

ANSWERS = {
    "a list of commits has rows with refs, changed keys and lanes; alike commits are folded": """
        /commits?all=1&fold=1 ? rows[*].[message, folded, lane]
            -> [["planned", 0, 0], ["scored", 0, 0], ["other way", 0, 1], ["put 11", 11, 0], ["put 0", 0, 0],
            ... ["answered", 0, 0], ["begin", 0, 0]]
        /commits?all=1&fold=1 ? [complete, rows[0].[refs, changes.names]]
            -> [true, [[{"name": "main", "kind": "branch", "current": true}], [["~", "plan"]]]]
        /commits?limit=2&first=2 ? rows[*].message -> ["put 11", "put 10"]
        /commits?limit=1&find=v1 ? found -> 14
        /commits?fold=1&limit=1&find=main~5 ? found -> 2
        /commits?view=0123 -> 410
    """,
    "the list takes the conditions of vstate log": """
        /commits?grep=PUT+1 ? rows[*].message -> ["put 11", "put 10", "put 1"]
        /commits?key=notes ? rows[*].message -> ["begin"]
        /commits?info=model%3Dsmall ? rows[*].message -> ["begin"]
        /commits?since=2100-01-01 ? rows -> []
        /commits?rev=v1..other ? rows[*].message -> ["other way"]
        /commits?author=ed25519:00 ? rows -> []
    """,
    "keys are listed by folder, the changed and removed ones marked; pages follow one another": """
        /keys?rev=other ? items[*].[name, change] -> [["bytes", "removed"], ["chat", null],
            ... ["notes", "modified"], ["picture", null], ["plan", null], ["score", "modified"],
            ... ["table", null]]
        /keys?rev=other ? items[5].[folder, keys, changed] -> ["score/", 2, 1]
        /keys?rev=other&limit=7 ? next -> null
        /keys?rev=other&prefix=score/&limit=1 ? [items[*].key, next] -> [["score/a"], "score/a\\u0000"]
        /keys?rev=other&prefix=score/&after=score/a%00 ? items[*].key -> ["score/b"]
        /keys?rev=other&changed=1 ? items[*].name -> ["bytes", "notes", "score"]
    """,
    "a value is described by the view that fits, and part by part with the changed parts marked": """
        /value?rev=main&key=plan ? [next, parts[*].[label, change]]
            -> [null, [["goal", null], ["steps", "modified"], ["pair", null]]]
        /value?rev=main&key=plan&limit=2 ? next -> 2
        /value?rev=main&key=plan&path=steps ? parts[*].[text, change]
            -> [["read", null], ["think", null], ["act", "added"]]
        /value?rev=v1&key=chat ? [kind, view.messages[*].new, view.messages[1].calls[0].[name, result]]
            -> ["chat", [false, true], ["calc", "4"]]
        /value?key=table&first=200&limit=100 ? view.[rows, first, next, cells[49]]
            -> [250, 200, null, ["[249]", "row 249", "62001"]]
        /value?key=bytes&rev=v1&first=2&limit=1 ? view.[data, next] -> ["ICEiIyQlJicoKSorLC0uLw==", 3]
        /value?key=absent -> 404
        /value?key=plan&path=nowhere -> 404
    """,
    "changes between two commits, against the merge base too, and inside a key by word": """
        /diff?old=main&new=other&base=1 ? changes[*].key -> ["bytes", "notes", "score/b"]
        /diff?new=other&key=notes ? details[0].hunks[0].lines[?sign!=' '].[sign, pieces[?is_changed].text]
            -> [["-", ["second", "line"]], ["+", ["other", "words"]]]
    """,
    "the versions of a key, the commits of its parts, places of a text, and the largest keys": """
        /history?key=score/a&limit=10 ? commits[*].number -> [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
        /blame?key=chat ? parts[*].commit.message -> ["begin", "answered", "answered"]
        /search?text=THINK ? places[*].path -> ["steps[1]"]
        /search?text=other ? branch -> "other"
        /search?text=v1 ? [branch, commit.message] -> [null, "answered"]
        /branches ? [summary, rows[*].[rev, commits, all]]
            -> ["2 branches", [["main", 16, true], ["other", 3, true]]]
        /health ? [largest[0].key, sort(branches[*].name)] -> ["table", ["main", "other"]]
    """,
}


@pytest.mark.parametrize("subject", ANSWERS)
def test_answers(viewer: Viewer, subject: str) -> None:
    """Each answer about a small store equals its row."""
    viewer.rows(ANSWERS[subject])


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


def test_what_was_erased_is_not_shown(tmp_path: Path) -> None:
    """A permalink leads to the new commit, even if the viewer has the old one in memory."""
    with Disk(tmp_path / "store") as disk, Versioned(disk) as state:
        state.update({"ann": "MARKER-of-ann", "n": 1})
        old = state.commit("both")
        assert old is not None
        with viewing(tmp_path / "store", write=True) as viewer:
            asked = [f"/value?rev={old.id}&key=ann", f"/commits/{old.id}", f"/keys?rev={old.id}", "/commits"]
            assert [viewer.ask(path)[0] for path in asked] == [200] * 4
            state.erase("ann")
            answers = [viewer.ask(path) for path in asked]
            assert [status for status, _ in answers] == [404, 200, 200, 200]
            assert "MARKER" not in str(answers)
            assert answers[1][1]["id"] == state.repo.branch("main").id
            assert viewer.ask("/undo", {"branch": "main", "seen": old.id})[0] == 409


@dataclass
class Plan:
    goal: str


@pytest.fixture(scope="module")
def rich(pandas: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer of a store with a branch for each subject below."""
    place = tmp_path_factory.mktemp("rich") / "store"
    call = {"id": "c", "function": {"name": "add", "arguments": "[2, 2]"}}
    chat: list[object] = [{"role": "user", "content": f"message {i}"} for i in range(1100)]
    chat[99] = {"role": "assistant", "content": "", "tool_calls": [call]}
    chat[1050] = ["not", "a", "message"]
    answered = [*chat[:100], {"role": "tool", "tool_call_id": "c", "content": "4"}, *chat[101:]]
    columns = ["price", "price", "rows", "many"]
    frame = pandas.DataFrame([[i, i, i, i] for i in range(12)], index=range(110, -10, -10), columns=columns)
    changed = frame.copy()
    changed.iloc[1, 1] = changed.iloc[2, 2] = -1
    changed["many"] += 1
    changed = pandas.concat([changed, pandas.DataFrame([[1, 1, 1, 1]], index=[500], columns=columns)])
    cells = pandas.DataFrame({"a": range(500), "b": [float(n) for n in range(500)]})
    cells.index = [f"r{n}" for n in range(500)]
    odd = cells.copy()
    odd.loc["r400", "b"], odd.loc["r7", "a"] = float("nan"), -1
    rows = [{"x": n, "odd name": n} for n in range(300)]
    edited = [*rows[:250], {"x": 250, "odd name": -1}, *rows[251:]]
    plans: list[dict[str, Any]] = []
    for i in range(10):
        goal = {"goal": "teach" if i >= 5 else "learn"} if 3 <= i <= 7 else {}
        plans.append({"plan": {"count": i} | goal})
    said = [{"role": "user", "content": "first"}]
    rules = [{"role": "system", "content": f"rule {n}"} for n in range(6)]
    items = [[*rules[:n][::-1], *said] for n in range(7)]
    items.append([*rules[::-1], {"role": "user", "content": "first, edited"}])
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    same = "the same for a long time, " * 40
    sides = [
        {"text": f"{same}{side}", "dict": {"a": same, "b": n}}
        for n, side in enumerate(("base", "our", "their"))
    ]
    with Disk(place) as store:
        repo = Repository(store)

        def commit(branch: str, *steps: dict[str, Any]) -> None:
            """Commit these steps to a branch; each message is the number of its step."""
            for number, step in enumerate(steps):
                repo.commit(branch, set=step, message=str(number))

        commit("chat", {"chat": chat}, {"chat": answered})
        before = {"frame": frame, "rows": rows, "cells": cells, "large": ["x" * 17_000_000]}
        commit(
            "tables", before, {"frame": changed, "rows": edited, "cells": odd, "large": ["y" * 17_000_000]}
        )
        commit("plan", *plans)
        commit("item", *({"chat": each} for each in items))
        commit("talk", {"chat": talk, "frame": pandas.DataFrame({"x": [1.5, 2.5]})})
        repo.commit("talk", delete=["chat"])
        commit("ours", sides[0] | {"short": 1})
        repo.create_branch("theirs", "ours")
        commit("ours", sides[1] | {"short": 3})
        commit("theirs", sides[2] | {"short": 2})
        commit("large", {"array": np.arange(1_500_000, dtype=np.float64), "plan": Plan("learn")})
    with viewing(place) as viewer:
        yield viewer


RICH = {
    "a call has its result though a page ends between them; an item that is no message is shown as it is": """
        /value?rev=chat&key=chat&limit=100 ? view.messages[-1].[place, new, calls[*].[result, new]]
            -> [99, false, [["4", true]]]
        /value?rev=chat&key=chat&first=100&limit=100 ? view.messages[0].place -> 101
        /value?rev=chat&key=chat&first=1050&limit=1 ? view.messages[*].[place, text]
            -> [[1050, "['not', 'a', 'message']"]]
    """,
    "changed cells are marked by the labels of their rows, and a column that changed in many places": """
        /value?rev=tables&key=frame ? view.changed[?[1]<`3` || [0]==`12`]
            -> [[1, 0], [1, 1], [2, 2], [12, 0], [12, 1], [12, 2], [12, 3]]
        /value?rev=tables&key=frame ? view.changed_columns -> [3]
        /value?rev=tables&key=rows&first=200 ? view.changed -> [[250, 1]]
        /value?rev=tables&key=rows ? view.changes -> [[250, 1]]
        /value?rev=tables&key=cells ? view.changes -> [[7, 0], [400, 1]]
        /value?rev=tables~1&since=tables~1&key=rows ? view.changes -> []
        /value?rev=tables&key=large ? contains(view.note, 'not marked') -> true
    """,
    "the versions of a part are the commits that changed it; a page looks at some versions of the key": """
        /history?rev=plan&key=plan&path=goal ? commits[*].[message, kind, text]
            -> [["8", "removed", null], ["5", "modified", "teach"], ["3", "added", "learn"]]
        /history?rev=plan&key=plan&path=goal ? [looked, next] -> [10, null]
        /history?rev=plan&key=plan&path=goal&limit=4 ? [commits[*].message, looked] -> [["8"], 4]
        /history?rev=plan&key=plan&path=goal&limit=4&before=plan~3 ? commits[*].message -> ["5", "3"]
        /history?rev=plan&key=plan&path=count ? commits[:2].number -> [9, 8]
        /blame?rev=plan~2&key=plan&path=goal ? parts[*].[line, path, commit.message] -> [[1, "goal", "5"]]
    """,
    "an item keeps its life when others come in front of it, also from one page to the next": """
        /history?rev=item&key=chat&path=[6] ? commits[*].[message, kind, text]
            -> [["7", "modified", "~ content: 'first' -> 'first, edited'"], ["0", "added", "user: first"]]
        /history?rev=item&key=chat&path=[6]&limit=4 ? next.path -> "[3]"
        /history?rev=item&key=chat&path=[3]&limit=40&before=item~3 ? commits[*].message -> ["0"]
        /blame?rev=item&key=chat ? parts[-2:].commit.message -> ["1", "7"]
        /blame?rev=item&key=chat ? parts[0].text -> "system: rule 5"
    """,
    "a chat that came or went as a whole reads message by message; a column is its first cells": """
        /diff?new=talk~1&key=chat ? details[*].[kind, new.text]
            -> [["added", "user: hello"], ["added", "assistant: hi"]]
        /diff?new=talk&key=chat ? details[*].[kind, old.text]
            -> [["removed", "user: hello"], ["removed", "assistant: hi"]]
        /blame?rev=talk&key=frame ? parts[0].text -> "float64, 2 cells: 1.5, 2.5"
    """,
    "the sides of a merge begin where they differ": """
        /merge?ours=ours&theirs=theirs ? conflicts[*].key -> ["dict", "short", "text"]
        /merge?ours=ours&theirs=theirs ? conflicts[1].[base.text, ours.text, theirs.text] -> ["1", "3", "2"]
        /merge?ours=ours&theirs=theirs ? conflicts[2].[base, ours, theirs][*].text
            -> ["…me for a long time, base", "…me for a long time, our", "…me for a long time, their"]
        /merge?ours=ours&theirs=theirs ? max(conflicts[0].[base, ours, theirs][*].length(text)) < `60` -> true
    """,
    "a long array is shown by its beginning, its range and its form; objects by their fields": """
        /value?rev=large&key=array&limit=3 ? view.[shape, elements, next, histogram.sampled]
            -> [[1500000], ["0.0", "1.0", "2.0"], 3, true]
        /value?rev=large&key=array&first=1499999 ? view.elements -> ["1499999.0"]
        /value?rev=large&key=plan ? [kind, parts[0].text] -> ["object", "learn"]
        /history?rev=large&key=array ? commits[*].[kind, type, text] -> [["added", "numpy.ndarray", null]]
    """,
}


@pytest.mark.parametrize("subject", RICH)
def test_rich_answers(rich: Viewer, subject: str) -> None:
    """Each answer about odd and long values equals its row."""
    rich.rows(RICH[subject])


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
