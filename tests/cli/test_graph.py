"""The lanes that `vstate log --graph` draws."""

import random

import pytest
from vstate_cli.graph import Graph

from vstate.objects.ids import ObjectId


def name(text: str) -> ObjectId:
    return ObjectId(text.encode().ljust(32, b"\0"))


def draw(history: str) -> list[str]:
    """The picture of commits written as `child:parent,parent` in the order of a log."""
    graph, lines = Graph(), []
    for item in history.split():
        commit, _, parents = item.partition(":")
        row = graph.add(name(commit), [name(parent) for parent in parents.split(",") if parent])
        lines += [*row.before, f"{row.head} {commit}", *row.forks]
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("history", "picture"),
    [
        pytest.param("b:a a:", ["* b", "* a"], id="a line"),
        pytest.param("m:a,b b:o a:o o:", ["*   m", "|\\", "| * b", "* | a", "|/", "* o"], id="a merge"),
        pytest.param(
            "m:a,b,c c:o b:o a:o o:",
            ["*     m", "|\\", "|\\ \\", "| * | c", "| | * b", "| |/", "* | a", "|/", "* o"],
            id="three parents",
        ),
        pytest.param(
            "m:a,b b:c,a a:c c:",
            ["*   m", "|\\", "| * b", "|/|", "* | a", "|/", "* c"],
            id="a parent in the lane to the left",
        ),
        pytest.param(
            "m:n,x x:y n:z,y y:z z:",
            ["*   m", "|\\", "| * x", "* | n", "|\\|", "| * y", "|/", "* z"],
            id="a parent in the lane to the right",
        ),
        pytest.param(
            "m:a,b b: a:p,q q: p:",
            ["*   m", "|\\", "| * b", "*   a", "|\\", "| * q", "* p"],
            id="several roots",
        ),
        pytest.param(
            "m:a,b b:o a: o:", ["*   m", "|\\", "| * b", "* | a", " /", "* o"], id="the first lane ends first"
        ),
    ],
)
def test_pictures(history, picture):
    """Each shape of history is drawn as git draws it."""
    assert draw(history) == picture


def test_any_history_can_be_drawn():
    """Random histories with many merges have one star for each commit, and end without lanes."""
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randrange(1, 30)
        graph = Graph()
        for number in range(count):
            older = range(number + 1, min(count, number + 6))
            parents = rng.sample(older, k=min(len(older), rng.choice([1, 1, 1, 2, 3])))
            row = graph.add(name(str(number)), [name(str(parent)) for parent in parents])
            assert row.head.count("*") == 1
            assert len({len(row.head), len(row.beside), *map(len, row.forks)}) == 1
        assert graph.between == ""
