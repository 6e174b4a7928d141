"""What values look like: tables, arrays, conversations, texts and bytes, in `show` and `diff`."""

import re
import struct

import numpy
import pandas
import pytest
from chats import CHATS
from rich.cells import cell_len
from stores import commit
from terminal import outputs
from test_safety import plant_pickle


@pytest.fixture
def frame() -> pandas.DataFrame:
    """A frame with a block of two columns, text, times, categories and missing values."""
    return pandas.DataFrame(
        {
            "price": [1.5, float("nan"), 3.0],
            "city": ["Rome", None, "東京"],
            "count": [1, 2, 3],
            "when": pandas.to_datetime(["2024-01-01T00:00:00", "2024-01-02T03:04:05", None]),
            "grade": pandas.Categorical(["low", "high", None]),
            "weight": [4.0, 5.0, 6.0],
            "maybe": pandas.array([1, None, 3], dtype="Int64"),
        }
    )


def test_a_frame_is_a_table(vstate, store, frame):
    """show prints columns, dtypes and rows; missing cells are empty, and times have no empty fraction."""
    commit(store, frame=frame)
    lines = vstate("show", "frame").splitlines()
    assert lines[0] == "DataFrame: 3 rows, 7 columns"
    assert lines[1].split() == ["price", "city", "count", "when", "grade", "weight", "maybe"]
    assert re.fullmatch(r" +float64 +\S+ +int64 +datetime64\[\w\w\] +category +float64 +Int64", lines[2])
    assert lines[3].split() == ["0", "1.5", "Rome", "1", "2024-01-01", "low", "4.0", "1"]
    assert "2024-01-02T03:04:05" in lines[4]
    assert cell_len(lines[2]) == cell_len(lines[3]) == cell_len(lines[5])
    assert "_mgr" not in vstate("show", "frame")


def test_a_frame_inside_a_value_is_its_columns(vstate, store):
    """show, diff and blame print a frame in a dict or list by its columns, and a long one in part."""
    inner = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], 7: [0.5, 1.5, 2.5]})
    commit(store, result={"frame": inner, "all": [pandas.Series(range(30))]})
    assert re.search(r"pandas\.Series\(30 rows, int64 \[0, 1, .*…", vstate("blame", "result"))
    for output in (vstate("show", "result"), vstate("diff", "HEAD~1", "HEAD"), vstate("blame", "result")):
        text = "".join(output.split())
        assert "pandas.DataFrame(3rows,a:int64[1,2,3],b:" in text
        assert "7:float64[0.5,1.5,2.5]" in text
        assert "_mgr" not in text


@pytest.mark.parametrize(
    ("index", "order"),
    [
        pytest.param(None, "C", id="numbers"),
        pytest.param(["a", "b", "c"], "F", id="texts"),
        pytest.param([10, 20, 20], "C", id="repeated"),
        pytest.param(
            pandas.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)], names=["k", "n"]), "F", id="levels"
        ),
        pytest.param(pandas.date_range("2024-01-01", periods=3), "C", id="dates"),
        pytest.param(pandas.period_range("2024-01", periods=3, freq="M"), "F", id="periods"),
        pytest.param(pandas.CategoricalIndex(["u", "v", "w"]), "C", id="categories"),
    ],
)
@pytest.mark.slow
def test_each_cell_is_the_one_that_pandas_has(vstate, store, index, order):
    """Each label and cell is in its place, for every kind of index and every order of blocks in memory."""
    block = numpy.array(numpy.arange(12).reshape(3, 4), order=order)
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


def test_a_frame_differs_by_column_and_row(vstate, store, frame):
    """Cells, columns, rows, order and dtypes have one line each, with a path that show takes."""
    commit(store, frame=frame)
    changed = frame.assign(new=1).drop(columns="weight")
    changed.loc[1, "price"] = 9.5
    changed.loc[2, "city"] = "Oslo"
    commit(store, frame=changed)
    lines = [line.strip() for line in vstate("diff", "frame").splitlines()[1:]]
    assert lines == [
        "+ new: int64, 3 cells: 1, 1, 1",
        "- weight: float64, 3 cells: 4.0, 5.0, 6.0",
        "~ price[1]: nan -> 9.5",
        "~ city[2]: '東京' -> 'Oslo'",
    ]
    assert vstate("show", "frame", "price[1]") == "9.5\n"
    assert vstate("show", "HEAD~1", "frame", "city[2]") == "'東京'\n"
    assert "did you mean: .price" in vstate.fails("show", "frame", "prise[1]")
    commit(store, frame=pandas.concat([changed.iloc[:1], changed]).reset_index(drop=True))
    assert [line.strip()[:9] for line in vstate("diff", "frame").splitlines()[1:]] == ["+ rows[1]"]
    commit(store, frame=changed.set_index("city"))
    commit(store, frame=changed.set_index("city").iloc[::-1].drop("Rome"))
    assert "- rows.Rome: {'price': 1.5" in vstate("diff", "frame")
    assert "the rows are in another order" in vstate("diff", "frame")
    many = pandas.DataFrame({"n": range(1000)})
    commit(store, frame=many)
    commit(store, frame=many + 1)
    lines = vstate("diff", "frame").splitlines()
    assert lines[1].strip() == "~ n[0]: 0 -> 1"
    assert lines[-1].strip() == "~ n: 990 more of 1,000 cells differ"


def test_the_diff_of_a_column_begins_with_what_is_odd(vstate, store):
    """Cells that became missing, then those of another type, then the largest changes, and a count."""
    cells: list[object] = [float(number) for number in range(100)]
    commit(store, frame=pandas.DataFrame({"x": pandas.Series(cells, dtype=object), "y": cells}))
    changed = [cell + 1 for cell in cells]
    changed[70], changed[80], changed[90], changed[95] = float("nan"), "eighty", 1e6, None
    other = [cell + 1 for cell in cells]
    other[50] = float("nan")
    commit(store, frame=pandas.DataFrame({"x": pandas.Series(changed, dtype=object), "y": other}))
    lines = [line.strip() for line in vstate("diff", "frame").splitlines()[1:]]
    assert lines[:5] == [
        "~ x[70]: 70.0 -> nan",
        "~ x[95]: 95.0 -> None",
        "~ x[80]: 80.0 -> 'eighty'",
        "~ x[90]: 90.0 -> 1000000.0",
        "~ x[0]: 0.0 -> 1.0",
    ]
    assert lines[10] == "~ x: 90 more of 100 cells differ, 2 became missing, 1 changed their type"
    assert lines[11] == "~ y[50]: 50.0 -> nan"


def test_blame_of_a_frame_is_short(vstate, store):
    """A long run of cells that one commit changed is its ends and a count; a column is one short line."""
    frame = pandas.DataFrame({"price": [float(number) for number in range(300)], "size": range(300)})
    commit(store, frame=frame)
    commit(store, frame=frame.assign(price=frame.price.where(frame.index != 200)))
    assert [len(line) < 200 for line in vstate("blame", "frame").splitlines()] == [True, True]
    lines = vstate("blame", "frame", "price").splitlines()
    assert "195 more parts of this commit" in lines[3]
    assert [line.split()[-2] for line in lines[:3]] == ["price.dtype", "price[0]", "price[1]"]
    assert next(line for line in lines if "price[200]" in line).split()[-1] == "nan"
    assert len(lines) == 3 + 1 + 3 + 1 + 3 + 1 + 3
    assert len(vstate.json("blame", "frame", "price")) == 301


def test_a_series_is_one_column(vstate, store):
    """Its cells are named by their labels alone."""
    commit(store, series=pandas.Series([1, 2], index=["a", "b"], name="n"))
    commit(store, series=pandas.Series([1, 3], index=["a", "b"], name="n"))
    assert vstate("diff", "series").splitlines()[1:] == ["    ~ b: 2 -> 3"]
    assert vstate("show", "series", "b") == "3\n"
    assert vstate("show", "series").splitlines()[0] == "Series: 2 rows, 1 column"


def test_a_column_that_cannot_be_read_is_named(vstate, store):
    """A column of an unknown form does not hide the others, and a change inside it is shown by its fields."""
    commit(store, frame=pandas.DataFrame({"a": [1], "odd": pandas.arrays.SparseArray([5])}))
    assert "(vstate cannot read the cells of odd)" in vstate("show", "frame")
    commit(store, frame=pandas.DataFrame({"a": [1], "odd": pandas.arrays.SparseArray([6])}))
    assert "odd._sparse_values" in vstate("diff", "frame")


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


def test_records_are_a_table(vstate, store):
    """A list of dicts of the same short fields is a table; with one long field it is a list of dicts."""
    records = [{"id": n, "name": f"n{n}"} for n in range(50)]
    commit(store, records=records, long=[*records[:3], {"id": 3, "name": "x" * 100}])
    lines = vstate("show", "records").splitlines()
    assert lines[0] == "list of dict: 50 rows, 2 columns"
    assert lines[3].split() == ["[0]", "0", "n0"]
    assert lines[-1].split() == ["[49]", "49", "n49"]
    assert len(lines) < 30
    assert vstate("show", "long").startswith("[\n  {'id': 0, ")


def test_an_array_has_dtype_shape_and_range(vstate, store):
    """show prints them with the first and last rows; --json has every element."""
    commit(store, array=numpy.arange(3000.0).reshape(1000, 3))
    lines = vstate("show", "array").splitlines()
    assert lines[0] == "numpy.ndarray: float64, 1,000 × 3, 0.0 to 2999.0"
    assert lines[1].split() == ["[0]", "0.0", "1.0", "2.0"]
    assert lines[-1].split() == ["[999]", "2997.0", "2998.0", "2999.0"]
    assert vstate("show", "array", "[999][2]") == "2999.0\n"
    assert vstate("show", "array", "[999]").splitlines()[1].split()[1:] == ["2997.0", "2998.0", "2999.0"]
    value = vstate.json("show", "array")["value"]
    assert value["data"] == numpy.arange(3000.0).reshape(1000, 3).tolist()
    assert "omitted" not in value
    value = vstate.json("show", "array", "--limit", "50")["value"]
    assert sum(map(len, value["data"])) + value["omitted"] == 3000
    assert value["omitted"] > 2900


@pytest.mark.parametrize(
    ("shape", "labels"),
    [
        ((20, 30), ["[0]", "[1]", "[2]", "[19]"]),
        ((2, 2, 3), ["[0][0]", "[0][1]", "[1][0]", "[1][1]"]),
        ((2, 1000), ["[0][0]", "[1][998]"]),
    ],
)
def test_the_labels_of_an_array_are_paths(vstate, store, shape, labels):
    """Rows that are not too long have a line each; a line begins with the path of its row or element."""
    commit(store, array=numpy.arange(numpy.prod(shape)).reshape(shape))
    lines = [line.split() for line in vstate("show", "array").splitlines()[1:] if line != "…"]
    assert {*labels} <= {line[0] for line in lines}
    for label, first, *_ in lines:
        assert vstate("show", "array", f"{label}[0]" if shape[-1] < 1000 else label) == f"{first}\n"


def test_show_and_blame_take_each_path_that_diff_prints(vstate, store):
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


@pytest.mark.slow
def test_a_long_list_is_whole_in_json(vstate, store):
    """No item is left out, unless --limit says so; then the JSON counts the others."""
    commit(store, long=[*range(200_000)])
    assert vstate.json("show", "long")["value"] == [*range(200_000)]
    assert vstate.json("show", "long", "--limit", "10")["value"][-1] == {"$more": 200_000 - 9}


def test_a_frame_of_an_unknown_form_says_so(vstate, store):
    """It is shown as its fields, behind a line that says why."""
    plant_pickle(store, "frame", b"\x80\x04cpandas\nDataFrame\n)\x81}\x8c\x04_mgrK\x05sb.")
    assert vstate("show", "frame").splitlines() == [
        "(its columns are stored in a form that vstate does not know; these are its fields)",
        "pandas.DataFrame(_mgr=5)",
    ]


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
