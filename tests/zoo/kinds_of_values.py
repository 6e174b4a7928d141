"""The table of kinds: values that programs keep, an edit in place of each, and the view that shows it.

A row is `source || edit || view`. The source makes the value. The edit changes `v` in place; a kind that
cannot be edited has none. The view makes something comparable of `v`, by default `v` itself. A row that ends
with `|| refused` must be refused by name. A row goes on in lines that begin with spaces. Each dotted name is
imported as far as it is a module.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

STANDARD = """
None
True
2**200
-1.5
float('inf')
1+2j
'text' * 100
b'bytes' * 100
bytearray(b'ab' * 600) || v[3] = 0
memoryview(b'ab') || || bytes(v)
[1, [2, {}]] || v[1].append(3)
(1, [2]) || v[1].append(3)
{'a': {1: 2}, (1, 2): None} || v['a'][1] = 3
{'b', 'a', 'c', 'e', 'd'} || v.add('f')
frozenset({'b', 'a', ('c', 1)})
range(3, 9, 2)
slice(1, 2)
Ellipsis
NotImplemented
len
str.upper
[3, 1].append || v(4) || v.__self__
collections.OrderedDict(b=1, a=2) || v.move_to_end('b')
collections.defaultdict(list, a=[1]) || v['b'].append(2)
collections.Counter('aab') || v.update('c')
collections.deque([1, 2], 5) || v.append(3)
collections.UserList([1]) || v.append(2)
kinds_of_values.Point(1, 2)
kinds_of_values.Plain() || v.items.append(2) || vars(v)
kinds_of_values.Slots() || v.a.append(1) || v.a
kinds_of_values.Data('a') || v.parts.append(1)
kinds_of_values.Frozen(1)
kinds_of_values.Flags.A | kinds_of_values.Flags.B
kinds_of_values.Kept() || v.append(3) || (list(v), vars(v))
kinds_of_values.Plain
kinds_of_values.double
functools.partial(kinds_of_values.double, 2) || || v()
operator.itemgetter(1, 2) || || v([1, 2, 3])
lambda x: x + 1 || || v(1)
datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)
datetime.date(2026, 1, 2)
datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2), 'x'))
datetime.timedelta(1, 2, 3)
zoneinfo.ZoneInfo('UTC')
decimal.Decimal('1.10')
fractions.Fraction(1, 3)
uuid.UUID(int=5)
pathlib.PurePosixPath('/a/b')
pathlib.Path('a')
re.compile('a+', re.I)
re.error('bad', 'a(', 1) || v.msg = 'worse' || (str(v), v.pos, v.msg)
struct.Struct('<i') || refused
random.Random(5) || v.random() || v.getstate()
itertools.count(5) || next(v) || repr(v)
iter([1, 2]) || next(v) || list(copy.copy(v))
io.BytesIO(b'abc') || v.write(b'x') || v.getvalue()
io.StringIO('abc') || v.write('x') || v.getvalue()
types.SimpleNamespace(a=[1]) || v.a.append(2)
types.MappingProxyType({'a': 1}) || || dict(v)
weakref.ref(kinds_of_values.Plain) || refused
xml.etree.ElementTree.fromstring('<a><b/></a>') || v.append(xml.etree.ElementTree.Element('c'))
    || xml.etree.ElementTree.tostring(v)
ipaddress.ip_address('::1')
queue.Queue() || refused
threading.Lock() || refused
open(__file__) || refused
socket.socket() || refused
(i for i in '') || refused
sqlite3.connect(':memory:') || refused
contextvars.ContextVar('a') || refused
asyncio.Queue() || v.put_nowait(1) || v.qsize()
hashlib.sha256(b'') || refused
time.struct_time((2026, 1, 2, 3, 4, 5, 6, 7, 0))
typing.TypeVar('T') || || v.__name__
list[int]
int | str
kinds_of_values.ToolError('search', code=3) || v.code = 4 || (str(v), v.code, str(v.__cause__))
ExceptionGroup('several', [ValueError('a'), KeyError('b')]) || v.add_note('n')
    || (repr(v), getattr(v, '__notes__', None))
unittest.mock.sentinel.a
re.error
zipfile.Path
zipfile.CompleteDirs
asyncio.current_task
os.path.lexists
importlib.resources.open_text
pathlib.PurePath
re.IGNORECASE | re.DOTALL
typing.Callable[[int], str]
collections.abc.Callable[[int], str]
types.GenericAlias(list, int)
UnicodeDecodeError('a', b'b', 0, 1, 'c') || || str(v)
datetime.UTC
zoneinfo.ZoneInfo.no_cache('Europe/Berlin') || || str(v)
vstate.errors.KeyNotFound('k') || || str(v)
-0.0 || || repr(v)
float('nan') || || repr(v)
complex(1, -0.0) || || repr(v)
'wörd ' * 30_000
'\\ud800' * 40_000
''
b''
bytes(range(256)) * 300
bytearray() || v.append(1)
bytearray(range(256)) * 400 || v[50_000] = 7
[] || v.append(None)
[''.join(['wo', 'rd']) for _ in range(50)] || v.append('word')
{'b': 1, 'a': 2} || v.update(b=v.pop('b')) || list(v.items())
{1: 'int', (1, 2): 'tuple', None: 'none', 2.5: 'float', frozenset({1}): 'set'} || v[b'x'] = 1
{f'word {i}' for i in range(100)} || v.discard('word 3')
{kinds_of_values.Colour.RED, kinds_of_values.Flags.A} || v.remove(kinds_of_values.Colour.RED)
{('a', i, f'{i}') for i in range(60)} || v.add(('b', 0, '0'))
{f'k{i}': {f'a{i}', f'b{i}', 'c', 'd'} for i in range(30)} || v['k7'].add('new')
kinds_of_values.Point(1, [2]) || v.y.append(3)
kinds_of_values.WithGetstate() || v.items.append('two') || (v.items, v.lookup())
kinds_of_values.WithReduce(1) || v.number = 2 || vars(v)
kinds_of_values.WithNewargs(1, 2) || v.extra.append(1) || (v, v.extra)
kinds_of_values.Box[list[int]]([1]) || v.item.append(2) || vars(v)
kinds_of_values.Table() || v['k'] = 1 || (v, vars(v))
kinds_of_values.Colour.RED || || v is kinds_of_values.Colour.RED
kinds_of_values.Plain().count || v.__self__.items.append(4) || v()
kinds_of_values.counter() || v() || v.__closure__
functools.partial(kinds_of_values.double, x=1) || v.keywords.update(x=2) || v.keywords
collections.defaultdict(lambda: 5, a=1) || v['new'] || dict(v)
array.array('q', range(5000)) || v[2500] = -1
datetime.datetime(2024, 2, 29, fold=1) || || (v, v.fold)
kinds_of_values.recursive_list() || v.append(2) || (v[0], len(v), v[1] is v)
kinds_of_values.recursive_object() || v.name = 'other' || (v.name, v.parts[0] is v)
kinds_of_values.shared() || v['b'].append('more') || (v, v['a'] is v['b'] is v['pair'][0] is v['pair'][1])
kinds_of_values.graph() || v[0].neighbours.add(v[0])
    || [({n.name for n in x.neighbours}, all(any(n is m for m in v) for n in x.neighbours)) for x in v]
"""

OPTIONAL = """
numpy.arange(1000).reshape(10, 100) || v[3, 3] = 0 || v.tolist()
numpy.float32(1.5)
numpy.array([{'a': 1}, None], dtype=object) || v[0]['a'] = 2 || v.tolist()
numpy.random.default_rng(1) || v.random() || v.bit_generator.state
numpy.arange(100_000.0) || v[70_000] = -1.0 || v.tolist()
numpy.empty((0, 3)) || || (v.shape, v.dtype)
numpy.arange(4000.0).reshape(50, 80)[5:45:2, ::3] || v[3, 3] = -1.0 || v.tolist()
numpy.asfortranarray(numpy.arange(3000.0).reshape(60, 50)) || v[5, 5] = -1.0
    || (v.tolist(), v.flags.f_contiguous, v.flags.c_contiguous)
numpy.frombuffer(bytes(1000), dtype='u1') || || (v.tolist(), v.flags.writeable)
numpy.frombuffer(memoryview(bytearray(range(256)) * 16), dtype='u1') || v[5] = 200 || v.tolist()
numpy.ma.array(range(2000), mask=[i % 3 == 0 for i in range(2000)], fill_value=-1)
    || v[1] = numpy.ma.masked || (v.mask.tolist(), v.filled().tolist(), v.fill_value)
numpy.zeros(300, dtype=[('id', 'i4'), ('name', 'U8'), ('xy', 'f8', (2,))]) || v[4] = (9, 'nine', (1.0, 2.0))
    || (v.tolist(), v.dtype)
numpy.rec.array([(1, 2.0), (3, 4.0)], names='a,b') || v.a[0] = 7 || (v.tolist(), v.dtype)
kinds_of_libraries.views() || v['all'].fill(1) || v['all'].tolist()
kinds_of_libraries.twice() || v[0].fill(1) || (v[1].tolist(), v[0] is v[1])
kinds_of_libraries.mixture() || v['data'][1][1]['deep'][0].extend(b'!') || str(v)
pandas.DataFrame({'a': [1, 2], 'b': ['x', None]}) || v.loc[0, 'a'] = 9 || v.to_dict()
kinds_of_libraries.frame() || v.loc[3, 'x'] = 42.0 || (v.to_csv(), list(v.dtypes))
kinds_of_libraries.frame().copy() || v.insert(0, 'new', 1) || (v.to_csv(), list(v.dtypes))
pandas.Series([1.0, None, 3.0], index=['a', 'b', 'c'], name='s') || v['b'] = 2.0 || (v.to_csv(), v.name)
pandas.MultiIndex.from_tuples([('a', 1), ('b', 2)]) || || v.tolist()
pandas.Categorical(['a', 'b', 'a']) || v[0] = 'b' || list(v)
pandas.Timestamp('2026-01-02', tz='UTC')
pandas.Period('2026-01')
pandas.DataFrame({'t': pandas.date_range('2026', periods=3, tz='UTC'), 'i': pandas.array([1, None, 3],
    'Int64')})
    || v['n'] = 1 || v.to_dict().__repr__()
polars.DataFrame({'a': [1, 2], 'b': ['x', None]}) || v.insert_column(0, polars.Series('c', [1, 2]))
    || v.to_dict(as_series=False)
polars.DataFrame({'a': [1]}).lazy() || || v.collect().to_dict(as_series=False)
pyarrow.table({'a': [1, 2]}) || || v.to_pydict()
pyarrow.array([1, None]) || || v.to_pylist()
scipy.sparse.csr_matrix([[0, 1], [2, 0]]) || v[0, 1] = 5 || v.toarray().tolist()
scipy.sparse.coo_array([[0, 1]]) || v.data[0] = 5 || v.toarray().tolist()
scipy.spatial.KDTree([[0., 1.], [2., 3.]]) || || v.query([0., 1.])
sklearn.linear_model.LinearRegression().fit([[0], [1]], [0, 1]) || v.coef_[0] = 5
    || (v.coef_.tolist(), v.intercept_)
sklearn.ensemble.RandomForestClassifier(n_estimators=3, random_state=1).fit([[0], [1]], [0, 1])
    || v.n_jobs = 2 || (v.predict([[0], [1]]).tolist(), v.n_jobs)
sklearn.pipeline.make_pipeline(sklearn.preprocessing.StandardScaler()).fit([[0.], [1.]])
    || v.steps[0][1].mean_[0] = 9 || v.steps[0][1].mean_.tolist()
networkx.MultiDiGraph([(1, 2), (1, 2)]) || v.nodes[1]['a'] = 1 || (list(v.edges), dict(v.nodes))
PIL.Image.new('RGB', (4, 4), 'red') || v.putpixel((0, 0), (1, 2, 3)) || v.tobytes()
sympy.Matrix([[1, 2]]) || v[0, 0] = 5 || v.tolist()
xarray.Dataset({'a': ('x', [1, 2])}) || v['b'] = 3 || v.to_dict()
kinds_of_libraries.Attrs(1) || v.parts.append(2)
kinds_of_libraries.Struct(a=1) || v.parts.append(2)
msgspec.Raw(b'1') || || bytes(v)
kinds_of_libraries.Model(goal='a') || v.steps.append('b')
kinds_of_libraries.Private(goal='a') || v._hidden.append('b') || (v, v._hidden)
kinds_of_libraries.Root([1]) || v.root.append(2)
kinds_of_libraries.PydanticData('a') || v.parts.append(1)
kinds_of_libraries.invalid() || || str(v)
pydantic.SecretStr('a')
pydantic.TypeAdapter(list[int]) || || v.validate_python(['1'])
langchain_core.messages.HumanMessage('a', id='1') || v.additional_kwargs['b'] = 1
langchain_core.messages.AIMessage('a', tool_calls=[{'name': 'f', 'args': {}, 'id': '1'}])
    || v.tool_calls[0]['args']['x'] = 1
langchain_core.messages.ToolMessage('a', tool_call_id='1', artifact={'x': 1}) || v.artifact['y'] = 2
langchain_core.exceptions.OutputParserException('bad', observation='o', llm_output='x')
    || v.observation = 'p' || (str(v), v.observation, v.llm_output)
openai.types.chat.ChatCompletionMessage(role='assistant', content='a') || v.content = 'b'
openai.RateLimitError('slow', response=httpx.Response(429, request=httpx.Request('GET', 'http://a')),
    body={'code': 1})
    || v.body['code'] = 2 || (str(v), v.status_code, v.body)
openai.OpenAI(api_key='k') || refused
httpx.Request('GET', 'http://a', headers={'a': 'b'}) || v.headers['c'] = 'd'
    || (str(v.url), dict(v.headers))
httpx.Response(200, json={'a': 1}) || v.headers['c'] = 'd' || (v.json(), dict(v.headers))
httpx.Headers({'a': 'b'}) || v['c'] = 'd'
httpx.HTTPStatusError('bad', request=httpx.Request('GET', 'http://a'), response=httpx.Response(500))
    || || (str(v), v.response.status_code)
httpx.Client() || refused
requests.Session() || v.headers['a'] = 'b' || dict(v.headers)
requests.Response() || v.status_code = 404 || v.status_code
bs4.BeautifulSoup('<a href="b">c</a>', 'html.parser') || v.a['href'] = 'd' || str(v)
lxml.etree.fromstring('<a><b/></a>') || refused
matplotlib.figure.Figure(figsize=(1, 1)) || v.suptitle('a') || v.texts and [t.get_text() for t in v.texts]
kinds_of_libraries.figure() || v.axes[0].set_title('a') || (v.axes[0].get_title(), len(v.axes[0].lines))
plotly.graph_objects.Figure(data=[{'type': 'bar', 'y': [1, 2]}]) || v.update_layout(title='a')
    || json.loads(v.to_json())
"""


class Kind(NamedTuple):
    """A row of the table; `package` is the package that it needs, "standard" for none."""

    source: str
    edit: str
    view: str
    refused: bool
    package: str


_LIBRARIES = {
    "Attrs": "attrs", "Struct": "msgspec", "Model": "pydantic", "Private": "pydantic", "Root": "pydantic",
    "PydanticData": "pydantic", "invalid": "pydantic", "figure": "matplotlib",
    "views": "numpy", "twice": "numpy", "mixture": "numpy", "frame": "pandas",
}  # fmt: skip


def kinds() -> list[Kind]:
    """The rows of the table."""
    found = []
    for table, optional in ((STANDARD, False), (OPTIONAL, True)):
        for line in re.sub(r"\n +", " ", table.strip()).splitlines():
            source, *rest = (part.strip() for part in line.split("||"))
            refused = rest == ["refused"]
            change, shown = ("", "") if refused else (*rest, "", "")[:2]
            name = re.match(r"\w+", source)
            package = name[0] if optional and name else "standard"
            if package == "kinds_of_libraries":
                package = _LIBRARIES[source.partition("(")[0].removeprefix("kinds_of_libraries.")]
            found.append(Kind(source, change, shown or "v", refused, package))
    return found


def usual() -> list[Kind]:
    """The kinds that a program stores without another library than numpy and pandas."""
    packages = {"standard", *filter(importlib.util.find_spec, ("numpy", "pandas"))}
    # numpy warns of its matrices.
    return [
        kind
        for kind in kinds()
        if kind.package in packages and not kind.refused and "matrix" not in kind.source
    ]


def namespace(*sources: str) -> dict[str, Any]:
    """The modules that the sources name."""
    names: dict[str, Any] = {}
    for dotted in re.findall(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)*", " ".join(sources)):
        parts = dotted.split(".")
        for end in range(1, len(parts) + 1):
            try:
                importlib.import_module(".".join(parts[:end]))
            except ImportError:
                break
            names.setdefault(parts[0], importlib.import_module(parts[0]))
    return names


def make(kind: Kind) -> Any:
    """A new value of this kind."""
    return eval(kind.source, {"__file__": __file__, **namespace(kind.source)})


def edit(kind: Kind, value: Any) -> None:
    """Change the value in place."""
    exec(kind.edit, {**namespace(kind.edit), "v": value})


def view(kind: Kind, value: Any) -> Any:
    """The comparable view of a value."""
    return eval(kind.view, {**namespace(kind.view), "v": value})


# Classes of a program


class Point(NamedTuple):
    x: int
    y: Any


class Plain:
    def __init__(self) -> None:
        self.items = [1]

    def count(self) -> int:
        return len(self.items)


class WithGetstate:
    """Leaves a cache out of its pickle."""

    def __init__(self) -> None:
        self.items = ["one"]
        self.cache: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"items": self.items}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.items = state["items"]
        self.cache = {}

    def lookup(self) -> int:
        return self.cache.setdefault("length", len(self.items))


class WithReduce:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return WithReduce, (self.number,)


class WithNewargs(tuple[int, int]):
    extra: list[int]

    def __new__(cls, a: int, b: int) -> WithNewargs:
        made = super().__new__(cls, (a, b))
        made.extra = []
        return made

    def __getnewargs__(self) -> tuple[int, int]:
        return self[0], self[1]


class Box(Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item


class Table(dict[str, Any]):
    def __init__(self) -> None:
        super().__init__()
        self.title = "t"


class Node:
    """Compares and hashes by identity, as classes do unless they say otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.neighbours: set[Node] = set()


class Slots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = [1]


@dataclasses.dataclass
class Data:
    name: str
    parts: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    number: int


class Colour(enum.Enum):
    RED = "red"


class Flags(enum.Flag):
    A = 1
    B = 2


class Kept(list[int]):
    def __init__(self) -> None:
        super().__init__([1, 2])
        self.name = "kept"


class ToolError(Exception):
    def __init__(self, tool: str, *, code: int) -> None:
        super().__init__(f"{tool} failed")
        self.code = code
        self.__cause__ = TimeoutError("slow")


def double(x: int) -> int:
    return 2 * x


def counter() -> Callable[[], int]:
    counts = [0]

    def count() -> int:
        counts[0] += 1
        return counts[0]

    return count


def recursive_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def recursive_object() -> Data:
    data = Data("loop")
    data.parts.append(data)
    return data


def shared() -> dict[str, Any]:
    inner = ["inner"]
    return {"a": inner, "b": inner, "pair": (inner, inner)}


def graph() -> list[Node]:
    nodes = [Node(f"n{i}") for i in range(40)]
    for i, node in enumerate(nodes):
        node.neighbours = {nodes[(i * 7 + j) % 40] for j in range(1, 20)}
    return nodes
