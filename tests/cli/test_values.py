"""What values look like: tables, arrays, conversations, texts and bytes, in `show` and `diff`."""

import re
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from chats import CHATS
from rich.cells import cell_len
from stores import commit
from terminal import outputs
from test_safety import plant_pickle

from vstate import File


@pytest.fixture
def frame(pandas: Any) -> Any:
    """A frame with a block of two columns, text, times, categories and missing values."""
    return pandas.DataFrame(
        {
            "price": [1.5, float("nan"), 3.0],
            "city": ["Rome", None, "東京"],
            "count": [1, 2, 3],
            "when": pandas.to_datetime(["2024-01-01T00:00:00.000", "2024-01-02T03:04:05.074", None]),
            "grade": pandas.Categorical(["low", "high", None]),
            "weight": [4.0, 5.0, 6.0],
            "maybe": pandas.array([1, None, 3], dtype="Int64"),
        }
    )


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))

SESSIONS = {
    "a frame is a table of columns, dtypes and rows; missing cells are empty": """
        >>> commit(store, frame=frame)
        show frame -> DataFrame: 3 rows, 7 columns / price city count when grade weight maybe
            / float64 ... int64 datetime64[us] category float64 Int64 / 0 1.5 Rome 1 2024-01-01 low 4.0 1
            / 1 nan...2 2024-01-02T<clock>000 high 5.0 / 2 3.0 東京 3 NaT 6.0 3
        >>> changed = frame.assign(new=1).drop(columns="weight")
        >>> changed.loc[1, "price"], changed.loc[2, "city"] = 9.5, "Oslo"
        >>> commit(store, frame=changed)
        diff frame -> ~ frame pandas.DataFrame, <size> -> <size> / + new: int64, 3 cells: 1, 1, 1
            / - weight: float64, 3 cells: 4.0, 5.0, 6.0 / ~ price[1]: nan -> 9.5
            / ~ city[2]: '東京' -> 'Oslo'
        show frame price[1] -> 9.5
        show HEAD~1 frame city[2] -> '東京'
        show frame prise[1] -> [1] vstate: no .prise ...did you mean: .price?
    """,
    "rows of a frame come, go and move; of a column in which much differs, the first cells are shown": """
        >>> commit(store, frame=frame)
        >>> commit(store, frame=pandas.concat([frame.iloc[:1], frame]).reset_index(drop=True))
        diff frame -> ~ frame pandas.DataFrame, <size>... / + rows[1]: {'price': 1.5, 'city': 'Rome', ...}
        >>> commit(store, frame=frame.set_index("city"))
        >>> commit(store, frame=frame.set_index("city").iloc[::-1].drop("Rome"))
        diff frame -> ...(the rows are in another order) / - rows.Rome: {'price': 1.5, ...}
        >>> many = pandas.DataFrame({"n": range(1000)})
        >>> commit(store, frame=many)
        >>> commit(store, frame=many + 1)
        diff frame -> ~ frame pandas.DataFrame, <size> / ~ n[0]: 0 -> 1 / ...
            / ~ n[9]: 9 -> 10 / ~ n: 990 more of 1,000 cells differ
    """,
    "a frame inside a value is its columns, and a Series is one column, named by its labels": """
        >>> inner = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], 7: [0.5, 1.5, 2.5]})
        >>> commit(store, result={"frame": inner, "all": [pandas.Series(range(30))]})
        show result -> { / 'frame': pandas.DataFrame( / 3 rows, / a: int64 [1, 2, 3], / b: ...
            / 7: float64 [0.5, 1.5, 2.5], / ), / 'all': [ / pandas.Series( / 30 rows, / int64 [ / 0, 1, 2, ...
        blame result -> ... pandas.DataFrame(3 rows, a: int64 [1, 2, 3], ...) / ...
            ...pandas.Series(30 rows, int64 [0, 1, ...…
        >>> commit(store, series=pandas.Series([1, 2], index=["a", "b"], name="n"))
        >>> commit(store, series=pandas.Series([1, 3], index=["a", "b"], name="n"))
        diff series -> ~ series pandas.Series, <size> / ~ b: 2 -> 3
        show series b -> 3
        show series -> Series: 2 rows, 1 column / n / int64 / a 1 / b 3
    """,
    "a column that cannot be read is named, and so is a frame of an unknown form": """
        >>> commit(store, frame=pandas.DataFrame({"a": [1], "odd": pandas.arrays.SparseArray([5])}))
        show frame -> DataFrame: 1 row, 2 columns / ... / (vstate cannot read the cells of odd)
        >>> commit(store, frame=pandas.DataFrame({"a": [1], "odd": pandas.arrays.SparseArray([6])}))
        diff frame -> ~ frame pandas.DataFrame, <size> / ~ odd._sparse_values[0]: 5 -> 6
        >>> plant_pickle(store, "unknown", b"\\x80\\x05cpandas\\nDataFrame\\n)\\x81}\\x8c\\x04_mgrK\\x05sb.")
        show unknown -> (its columns are stored in a form that vstate does not know; these are its fields)
            / pandas.DataFrame(_mgr=5)
    """,
    "records of short fields are a table, and a list of numbers is read across": """
        >>> records = [{"id": n, "name": f"n{n}"} for n in range(50)]
        >>> long = [*records[:3], {"id": 3, "name": "x" * 100}]
        >>> commit(store, records=records, long=long, numbers=list(range(100)), names=["x" * 20] * 9)
        show records -> list of dict: 50 rows, 2 columns / id name / int str / [0] 0 n0 / [1] 1 n1 / ...
            / [14] 14 n14 / … … … / [45] 45 n45 / ... / [49] 49 n49
        show long -> [ / {'id': 0, 'name': 'n0'}, / ...
        show numbers -> [ / 0, 1, 2, ..., 26, / 27, ... / 99, / ]
        show names -> [ / 'xxxxxxxxxxxxxxxxxxxx', ...
    """,
    "an array has dtype, shape and range, and its first and last rows; JSON has every element": """
        >>> commit(store, array=numpy.arange(3000.0).reshape(1000, 3), long=[*range(200_000)])
        show array -> numpy.ndarray: float64, 1,000 × 3, 0.0 to 2999.0 / [0] 0.0 1.0 2.0 / ...
            / [19] 57.0 58.0 59.0 / … / [994] 2982.0 2983.0 2984.0 / ... / [999] 2997.0 2998.0 2999.0
        show array [999][2] -> 2999.0
        show array [999] -> numpy.ndarray: float64, 3, 2997.0 to 2999.0 / [0] 2997.0 2998.0 2999.0
        show array ? [length(value.data), value.data[999], value.omitted]
            -> [1000, [2997.0, 2998.0, 2999.0], null]
        show array --limit 50 ? [length(value.data), value.omitted] -> [17, 2951]
        show long ? [length(value), value[-1]] -> [200000, 199999]
        show long --limit 10 ? value -> [0, 1, 2, 3, 4, 5, 6, 7, 8, {"$more": 199991}]
        >>> array = numpy.arange(1000.0)
        >>> commit(store, array=array)
        >>> array[500], array[10:20] = -1, 0
        >>> commit(store, array=array)
        diff -> ~ array numpy.ndarray, <size>
            / ~ [10:20]: 10.0, 11.0, 12.0, 13.0, … -> 0.0, 0.0, 0.0, 0.0, … (10 of 1000 elements differ)
            / ~ [500]: 500.0 -> -1.0
    """,
    "the diff of a column begins with the odd cells: missing ones, other types, the largest changes": """
        >>> cells = [float(number) for number in range(100)]
        >>> commit(store, frame=pandas.DataFrame({"x": pandas.Series(cells, dtype=object), "y": cells}))
        >>> odd = {50: cells[50], 70: float("nan"), 80: "eighty", 90: 1e6, 95: None}
        >>> x = pandas.Series([odd.get(at, cell + 1) for at, cell in enumerate(cells)], dtype=object)
        >>> commit(store, frame=pandas.DataFrame({"x": x, "y": [*cells[:50], float("nan"), *cells[51:]]}))
        diff frame -> ~ frame ... / ~ x[70]: 70.0 -> nan / ~ x[95]: 95.0 -> None / ~ x[80]: 80.0 -> 'eighty'
            / ~ x[90]: 90.0 -> 1000000.0 / ~ x[0]: 0.0 -> 1.0 / ...
            / ~ x: 89 more of 100 cells differ, 2 became missing, 1 changed their type / ~ y[50]: 50.0 -> nan
    """,
    "in blame, a long run of cells of one commit is its ends and a count, and a column one short line": """
        >>> frame = pandas.DataFrame({"price": [float(number) for number in range(300)], "size": range(300)})
        >>> commit(store, frame=frame)
        >>> commit(store, frame=frame.assign(price=frame.price.where(frame.index != 200)))
        blame frame -> <id> <time> change price float64, 300 cells: 0.0, ...…
            / <id> <time> change size int64, 300 cells: 0, ...…
        blame frame price -> <id> <time> change price.dtype ... / <id> <time> change price[0] 0.0
            / <id> <time> change price[1] 1.0 / … 195 more parts of this commit (--json has them all)
            / <id> <time> change price[197] 197.0 / ... / <id> <time> change price[200] nan
            / <id> <time> change price[201] 201.0 / ... / … 93 more ...
            / <id> <time> change price[299] 299.0
        blame frame price ? length(@) -> 301
    """,
    "a File is its text or bytes, with its kind; its change is a patch; its lines are counted and blamed": """
        >>> old = {"f/a.py": File(b"one\\ntwo\\n"), "f/run": File(b"go\\n"), "f/last": File(b"a.py", "link")}
        >>> commit(store, **old, **{"f/pic": File(PNG), "f/bin": File(bytes(200))})
        >>> new = {"f/a.py": File(b"one\\n2\\nlake"), "f/run": File(b"go\\n", "executable")}
        >>> commit(store, "more", **new, **{"f/last": File(b"run", "link"), "f/bin": File(b"\\xff" * 200)})
        show f/a.py -> one / 2 / lake
        show HEAD~1 f/a.py -> one / two
        show f/last -> run
        show HEAD~1 f/bin -> <size> / 00000000 00 00 ...
        show f/last ? [type, value] -> ["link", "run"]
        show f/pic -> <size>, image/png / 00000000 89 50 4e 47 ...
        show f -> f/a.py 'one\\n2\\nlake' / f/bin b'\\xff... / f/last 'run' / ...
        show f/pic ? value."$bytes" -> ...
        ls f/ -l -> <size> file f/a.py / <size> file f/bin / <size> link -> run f/last / <size> file f/pic
            / <size> executable f/run
        diff HEAD~1 HEAD -> diff --git a/f/a.py b/f/a.py / --- a/f/a.py / +++ b/f/a.py / @@ -1,2 +1,3 @@ / one
            / -two / +2 / +lake / \\ No newline at end of file / diff --git a/f/bin b/f/bin
            / Binary files a/f/bin and b/f/bin differ / diff --git a/f/last b/f/last / --- a/f/last
            / +++ b/f/last / @@ -1 +1 @@ / -a.py / \\ No newline at end of file / +run
            / \\ No newline at end of file / diff --git a/f/run b/f/run / old mode 100644 / new mode 100755
        diff --stat -> ~ f/a.py file, <size> -> <size> +2 -1 / ~ f/bin file, <size>
            / ~ f/last link, <size> -> <size> +1 -1 / ~ f/run file, <size> -> executable, <size>
            / ~4 modified
        diff f/a.py --stat ? changes[0].[lines, details, patch] -> [{"added": 2, "removed": 1}, null, null]
        diff f/a.py ? changes[0].[details[0].new, old.type] -> ["one\\n2\\nlake", "file"]
        diff f/a.py ? starts_with(changes[0].patch, 'diff --git a/f/a.py b/f/a.py') -> true
        diff f/run ? changes[0].details[0].[path, old, new] -> ["", "file", "executable"]
        log --stat -n 1 -> <id> (HEAD -> main) more / <time> / ~ f/a.py file, <size> -> <size> +2 -1 / ...
        log -p -n 1 -- f/a.py -> <id> (HEAD -> main) more / <time> / ~ f/a.py file, <size> -> <size>
            / ~ text: / @@ -1,3 +1,3 @@ / one / -two / - / +2 / +lake
        grep LAKE -> f/a.py : one\\n2\\nlake / 1 place in 10 keys
        log -S lake -> <id> (HEAD -> main) more...
        blame f/a.py -> <id> <time> change 1 one / <id> <time> more 2 2 / <id> <time> more 3 lake
        bisect f/a.py "contains(value, 'two')" --good HEAD~1 -> ...bad <id> more...
        show f/pic -o TMP/pic -> -
        >>> assert Path(TMP, "pic").read_bytes() == PNG
        show text -o - -> one / 2 / three
        show plan -o - -> [1] vstate: 'plan' is a stores.Plan, which has no bytes to write...
        show -o - -> [2] ...name its KEY.
    """,
    "a line of an array begins with the path of its row or element": """
        >>> commit(store, rows=numpy.arange(600).reshape(20, 30), deep=numpy.arange(12).reshape(2, 2, 3))
        show rows -> numpy.ndarray: int64, 20 × 30, 0 to 599 / [0] 0 1 2 ... / [1] 30 31 ... / [19] 570 ...
        show deep -> numpy.ndarray: int64, 2 × 2 × 3, 0 to 11 / [0][0] 0 1 2 / [0][1] 3 4 5 / [1][0] 6 7 8
            / [1][1] 9 10 11
        show deep [1][0][0] -> 6
        >>> commit(store, long=numpy.arange(2000).reshape(2, 1000))
        show long -> ... / [0][0] 0 1 ... / ... / [1][998] 1998 1999
        show long [1][998] -> 1998
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, pandas, frame, session):
    """Each session has the output that is written here."""
    names = {"File": File, "Path": Path, "PNG": PNG, "frame": frame, "plant_pickle": plant_pickle}
    rows(SESSIONS[session], numpy=numpy, pandas=pandas, **names)


@pytest.mark.parametrize(
    ("index", "order"),
    [
        pytest.param(None, "C", id="numbers"),
        pytest.param(["a", "b", "c"], "F", id="texts"),
        pytest.param([("x", 1), ("x", 2), ("y", 1)], "F", id="levels"),
    ],
)
@pytest.mark.slow
def test_each_cell_is_the_one_that_pandas_has(pandas, vstate, store, index, order):
    """Each label and cell is in its place, for every kind of index and every order of blocks in memory."""
    block = numpy.array(numpy.arange(12).reshape(3, 4), order=order)
    if index and isinstance(index[0], tuple):
        index = pandas.MultiIndex.from_tuples(index, names=["k", "n"])
    frame = pandas.DataFrame(block, columns=list("abcd"), index=index)[["d", "b", "a", "c"]]
    commit(store, frame=frame)
    lines = [line.split() for line in vstate("show", "frame").splitlines()]
    assert lines[0][:3] == ["DataFrame:", "3", "rows,"]
    for number, line in enumerate(lines[3:]):
        assert [int(cell) for cell in line[-4:]] == [4 * number + at for at in (3, 1, 0, 2)]
    if index is None or isinstance(index[0], str):
        assert [line[0] for line in lines[3:]] == [str(label) for label in frame.index]
    frame.iloc[1, 3] = -1
    commit(store, frame=frame)
    (detail,) = vstate.json("diff", "frame")["changes"][0]["details"]
    assert (detail["path"][0], detail["old"], detail["new"]) == ("c", 6, -1)


def test_a_pyarrow_table_is_read_without_pyarrow(vstate, store):
    """The buffers of Arrow's format: numbers, texts, bools, with missing cells and in chunks."""
    from vstate.display.tables import table_view
    from vstate.values.instance import Instance

    def array(kind: str, rows: int, *buffers: bytes | None) -> Instance:
        made = [b and Instance("pyarrow.lib.py_buffer", args=(b,), called=True) for b in buffers]
        name = Instance("pyarrow.lib.type_for_alias", args=(kind,), called=True)
        return Instance("pyarrow.lib._restore_array", args=((name, rows, 0, 0, made, [], None),), called=True)

    def chunked(*arrays: Instance) -> Instance:
        kind = arrays[0].args[0][0]
        return Instance("pyarrow.lib.chunked_array", args=([*arrays], kind), called=True)

    columns = [
        chunked(array("int64", 2, b"\x01", struct.pack("<2q", 7, 0)), array("int64", 1, None, bytes(8))),
        chunked(array("string", 3, None, struct.pack("<4i", 0, 1, 1, 3), b"abc")),
        chunked(array("bool", 3, None, b"\x05")),
        chunked(array("date32[day]", 3, None, struct.pack("<3i", 0, 1, 365))),
    ]
    fields = [Instance("pyarrow.lib.field", args=(name, None)) for name in "nstd"]
    schema = Instance("pyarrow.lib.schema", args=(fields, None), called=True)
    value = Instance("pyarrow.lib._reconstruct_table", args=(columns, schema), called=True)
    view = table_view(value)
    assert view is not None
    assert [row[1:] for row in view.first] == [
        ("7", "a", "True", "1970-01-01"),
        ("", "", "False", "1970-01-02"),
        ("0", "bc", "True", "1971-01-01"),
    ]
    short = Instance("pyarrow.lib._reconstruct_table", args=([array("int64", 9, None, b"x")], schema))
    assert table_view(short) is None


def test_show_and_blame_take_each_path_that_diff_prints(pandas, vstate, store):
    """Also the ranges of arrays, and the rows of frames."""
    array, table = numpy.arange(40), numpy.zeros((30, 5))
    frame = pandas.DataFrame({"price": [1.5, 2.5]}, index=["a", "b c"])
    commit(store, array=array, table=table, frame=frame, by_number=frame.reset_index(drop=True))
    array[10:20] = -1
    frame.loc["new"] = 9.0
    frame.loc["d e"] = 8.0
    grown = numpy.ones((31, 5))
    second = commit(store, array=array, table=grown, frame=frame, by_number=frame.reset_index(drop=True)).id
    printed = {
        (change["key"], detail["path"])
        for change in vstate.json("diff")["changes"]
        for detail in change["details"]
        if detail["path"]
    }
    for path in (("array", "[10:20]"), ("table", "[30:31]"), ("frame", "rows.new"), ("by_number", "rows[3]")):
        assert path in printed
    for key, path in printed:
        assert vstate.json("show", key, path)["path"] == path
        assert vstate.json("blame", key, path)[0]["commit"] == second
    assert vstate.json("show", "frame", 'rows["d e"].price')["value"] == 8.0
    for key, path in (("frame", "rows.a"), ("array", "[20:30]"), ("array", "[39]"), ("frame", "price.a")):
        assert vstate.json("blame", key, path)[0]["commit"] != second
    assert vstate.json("show", "array", "[18:21]")["value"]["data"] == [-1, -1, 20]
    assert "no [30:41] in the value" in vstate.fails("show", "array", "[30:41]")


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
@pytest.mark.slow
def test_messages_are_a_conversation(vstate, store, messages):
    """One line a message. Each call of a tool stands beside its result, in any order of the two."""
    commit(store, chat=messages())
    lines = [line.rstrip() for line in vstate("show", "chat").splitlines()[1:]]
    assert re.fullmatch(r"\[0\] user( Ann)? +Weather in Rome\? And Paris\?", lines[0])
    assert re.fullmatch(r"\[1\] assistant( Bot)? +weather\(.*Rome.*\) -> sun", lines[1])
    assert re.fullmatch(r"(\[[12]\] assistant)? +weather\(.*Paris.*\) -> rain", lines[2])
    assert re.fullmatch(r"\[\d\] assistant( Bot)? +Sun in Rome\.", lines[3])
    assert len(lines) == 4


Z = bytes(5000)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("word " * 2000, "word " * 1000 + "WORD " + "word " * 1000, ["character 5001", "WORD "]),
        ("a\n" * 4000, "a\n" * 2000 + "b\n" + "a\n" * 2000, ["-2000,2 +2000,3", "+b"]),
        ("x" * 5000 + "1" + "x" * 5000, "x" * 5000 + "2" + "x" * 5000, ["character 5001", "x1x", "x2x"]),
        (Z + b"a" + Z, Z + b"b" + Z, ["@@ byte 5000 @@", "-61 ", "+62 "]),
        (Z + b"a", Z + b"new a", ["@@ byte 5000 @@", "+6e 65 77 20"]),
        ("x" * 5000 + "old end", "x" * 5000 + "new end", ["old", "new", "end"]),
        (10**400, 10**400 + 1, ["0000' -> ", "0001'"]),
        (bytes(60) + b"a", bytes(60) + b"b", ["00a' -> ", "00b'"]),
    ],
    ids=["words", "lines", "one word", "bytes", "bytes added", "the end", "number", "few bytes"],
)
@pytest.mark.slow
def test_the_part_that_differs(vstate, store, old, new, lines):
    """Of 10 kB with one change, diff shows the change, its place and a little around it."""
    commit(store, long=old)
    commit(store, long=new)
    text = vstate("diff", "long")
    for part in lines:
        assert part in text
    assert len(text) < 700


HARD = "e\u0301" * 30 + "日本語" * 20 + "👩‍👩‍👧" * 10 + "\x1b[31m" + "\u200b" * 10


@pytest.mark.slow
def test_a_terminal_gets_no_control_characters_of_a_patch(vstate, store, environment):
    """A pipe gets the exact text, for git; a terminal gets escapes, and no line is cut."""
    commit(store, **{"f/x": File(b"\ta\r\n")})
    commit(store, **{"f/x": File(b"\ta\x1b[31m" + b"long" * 50 + b"\r\n")})
    patch = vstate.run("diff").stdout_bytes.decode()
    assert "+\ta\x1b[31mlong" in patch
    terminal = environment(VSTATE_PAGER="cat", COLUMNS="", TERM="xterm", NO_COLOR="1")
    (shown,) = outputs([({}, ["-s", str(store), "diff"])], terminal)
    assert shown == patch.replace("\x1b", "\\x1b").replace("\r\n", "\\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20, 60])
def test_every_line_fits_the_terminal(store, environment, columns, frame):
    """Tables, conversations and trees are cut to the width, as are changes, however far they are indented."""
    found = {
        "frame": frame.assign(**{HARD: HARD, "long name " * 5: 1}),
        "array": numpy.arange(4000.0).reshape(40, 100) * 1e9,
        "chat": [{"role": "user" * 9, "content": HARD}, {"role": HARD, "content": "x" * 999}],
        "records": [{"a": 1, "b": "x" * 50, HARD: "y" * 50}] * 3,
        "tree": {"a": {"b": {"c": ["x" * 50, {"名前": HARD, "n": [*range(50)]}]}}, HARD: HARD},
    }
    commit(store, **found)
    commit(store, a={"b": "x" * 50}, new={}, other=1, **{f"key {number} of many": 1 for number in range(9)})
    commit(store, a={"b": "y" * 70}, new={"field": ["z" * 50] * 9, "日本": HARD}, more=["w" * 300])
    commands = [["show", key] for key in found]
    if columns > 20:
        more = "show, diff, log --all, log -p -2, log -p -2 --graph, log --all --graph"
        commands += [command.split() for command in more.split(", ")]
    terminal = environment(VSTATE_PAGER="cat", COLUMNS="", TERM="xterm")
    texts = outputs([({}, ["-s", str(store), *command]) for command in commands], terminal, columns)
    for arguments, text in zip(commands, texts, strict=True):
        lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
        for line in lines[1:] if arguments[-1] in found else lines:
            assert line.startswith("commit ") or cell_len(line) <= columns, (arguments, line)
