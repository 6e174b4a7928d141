"""JSONSession: whole files, one for each pair of ids, that keep the modules of earlier saves."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from running import run_forked

from vstate.errors import CorruptStore, InvalidInput
from vstate.sessions import JSONSession, SessionBase, StateModule

NAMES = ["a", "b_c", "a_b", "c", "..", ".", "../escaped", "/etc/x", "a/b", "é", "É", " ", "A b", "A", "B_C"]
NAMES += ["%", "%2F", "%5F", "%5f", "x" * 300, "X" * 300]


class Box(StateModule):
    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value
        self.register_state("value")


def save(session: JSONSession, *ids: str, **modules: StateModule) -> None:
    asyncio.run(session.save_session_state(*ids, **modules))


def load(session: JSONSession, *ids: Any, **modules: Any) -> None:
    asyncio.run(session.load_session_state(*ids, **modules))


def test_both_shapes(tmp_path: Path) -> None:
    """Ids with each call, or one session for the whole object; each reads the files of the other."""
    save(JSONSession(save_dir=str(tmp_path)), "s1", box=Box(1))
    old = JSONSession(session_id="s1", save_dir=str(tmp_path))
    box = Box()
    load(old, box=box)
    assert box.value == 1
    assert json.loads(Path(old.save_path).read_text()) == {"box": {"value": 1}}
    save(JSONSession("s2", str(tmp_path)), box=Box(2))  # type: ignore[arg-type]
    load(JSONSession(tmp_path), "s2", False, box=box)  # as in older programs, before there were users
    assert box.value == 2
    with pytest.raises(TypeError, match="session_id"):
        save(JSONSession(tmp_path), box=box)
    with pytest.raises(TypeError):
        JSONSession(tmp_path, nonsense=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="path_of"):
        _ = JSONSession(tmp_path).save_path
    assert issubclass(JSONSession, SessionBase)


def test_files_that_others_wrote(tmp_path: Path) -> None:
    """Plain ids have plain file names, so files of AgentScope are found; NaN and lone surrogates survive."""
    (tmp_path / "bob_s1.json").write_text('{"box": {"value": NaN}, "more": {}}')
    box = Box()
    load(JSONSession(tmp_path), "s1", "bob", box=box)
    assert box.value != box.value
    save(JSONSession(tmp_path), "s2", box=Box("\ud800"))
    load(JSONSession(tmp_path), "s2", box=box)
    assert box.value == "\ud800"
    (tmp_path / "Bob_S1.json").write_text('{"box": {"value": "capitals"}, "more": {"value": 1}}')
    load(JSONSession(tmp_path), "S1", "Bob", box=box)
    assert box.value == "capitals"
    save(JSONSession(tmp_path), "S1", "Bob", box=Box("newer"))
    more = Box()
    load(JSONSession(tmp_path), "S1", "Bob", False, box=box, more=more)
    assert (box.value, more.value) == ("newer", 1)
    with pytest.raises(InvalidInput):  # also where the file system ignores case
        load(JSONSession(tmp_path), "S1", "bob", False, box=box)
    (tmp_path / "A.json").write_text('{"box": ')
    with pytest.raises(CorruptStore):
        load(JSONSession(tmp_path), "A", box=box)


@pytest.mark.slow
def test_no_ids_share_a_file_or_leave_the_directory(tmp_path: Path) -> None:
    """Each pair of ids has its own file, directly in the directory, under a valid name."""
    session = JSONSession(tmp_path / "sessions")
    paths = {}
    for user in ["", *NAMES[::4]]:
        for name in NAMES:
            save(session, name, user, box=Box(f"{user}|{name}"))
            paths[user, name] = Path(session.path_of(name, user))
    # also where the file system ignores case
    assert len({path.name.casefold() for path in paths.values()}) == len(paths)
    assert max(len(path.name) for path in paths.values()) < 255
    assert {path.parent for path in paths.values()} == {tmp_path / "sessions"}
    assert sorted(item.name for item in tmp_path.iterdir()) == ["sessions"]
    box = Box()
    for user, name in paths:
        load(session, name, user, box=box)
        assert box.value == f"{user}|{name}"
    for wrong in ("", None, 3):
        with pytest.raises((InvalidInput, TypeError)):
            save(session, wrong, box=box)  # type: ignore[arg-type]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    """Neither a value that JSON cannot hold nor a full disk changes it, and no other file is left."""
    session, box = JSONSession(tmp_path), Box(["good"])
    save(session, "s", box=box)
    box.value.append(object())
    with pytest.raises(TypeError, match=r"box\.value"):
        save(session, "s", box=box)
    box.value = {1: "a", "1": "b"}
    with pytest.raises(InvalidInput, match="two keys"):
        save(session, "s", box=box)
    box.value = "x"
    (tmp_path / "d.json").mkdir()  # a rename cannot replace it
    with pytest.raises(OSError):
        save(session, "d", box=box)
    load(session, "s", box=box)
    assert box.value == ["good"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "d.json", "s.json"]


def test_a_full_disk(tmp_path: Path) -> None:
    """A write that fails half way leaves the old file whole."""
    session = JSONSession(tmp_path)
    save(session, "s", box=Box("good"))

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError):
            save(session, "s", box=Box("x" * 10_000))

    run_forked(fill)
    assert json.loads((tmp_path / "s.json").read_text()) == {"box": {"value": "good"}}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "s.json"]


def test_a_missing_or_damaged_file(tmp_path: Path) -> None:
    """The argument decides; a file that holds no session, or is cut off, always raises."""
    session, box = JSONSession(tmp_path / "none"), Box("as it was")
    load(session, "s", box=box)
    with pytest.raises(ValueError, match=r"s\.json"):
        load(session, "s", allow_not_exist=False, box=box)
    assert not (tmp_path / "none").exists()
    for text in ("", '{"box": ', "[1]", "\udc80", '{"box":' + "[" * 100_000):
        (tmp_path / "s.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(CorruptStore):
            load(JSONSession(tmp_path), "s", box=box)
        with pytest.raises(CorruptStore):
            save(JSONSession(tmp_path), "s", box=box)
    assert box.value == "as it was"


def test_loading_is_all_or_nothing(tmp_path: Path) -> None:
    """If the second module cannot be loaded, the first stays as it was."""
    (tmp_path / "s.json").write_text('{"a": {"value": 1}, "b": {}}')
    a, b = Box(0), Box(0)
    with pytest.raises(KeyError, match=r"b\.value"):
        load(JSONSession(tmp_path), "s", a=a, b=b)
    assert (a.value, b.value) == (0, 0)
    for call in (save, load):
        with pytest.raises(TypeError, match="a is a dict, not a StateModule"):
            call(JSONSession(tmp_path), "s", a={"no": "module"})  # type: ignore[arg-type]


def test_saves_at_once(tmp_path: Path) -> None:
    """Sessions of several programs save and load at once: no module is lost, and no half file is read."""

    async def use(name: str) -> None:
        session = JSONSession(tmp_path)
        for n in range(10):
            await asyncio.gather(
                session.save_session_state("s", **{f"{name}{n}": Box(n)}),
                session.save_session_state("s", shared=Box("x" * 10_000 * (n % 3))),
                session.load_session_state("s", shared=Box(0)),
            )

    async def all_of_them() -> None:
        await asyncio.gather(*map(use, "abcd"))

    asyncio.run(all_of_them())
    found = json.loads((tmp_path / "s.json").read_text())
    assert set(found) == {f"{name}{n}" for name in "abcd" for n in range(10)} | {"shared"}


AGENTSCOPE_IDS = [
    ("session_2025-08-08", ""),
    ("user_1", ""),
    ("s_2", "user_1"),
    ("Größe 1", "Ann-Marie O'Hara"),
    ("a%5Fb", ""),
    ("..s", "x"),
]


@pytest.mark.parametrize(("session_id", "user_id"), AGENTSCOPE_IDS)
def test_a_file_of_agentscope_is_read_whatever_its_ids_have(
    tmp_path: Path, session_id: str, user_id: str
) -> None:
    """The load finds it, a save keeps its other modules, and the file of AgentScope stays as it was."""
    name = (f"{user_id}_" if user_id else "") + f"{session_id}.json"
    (tmp_path / name).write_text('{"box": {"value": "theirs"}, "more": {"value": 1}}')
    session, box, more = JSONSession(save_dir=tmp_path), Box(), Box()
    load(session, session_id, user_id, False, box=box)
    assert box.value == "theirs"
    save(session, session_id, user_id, box=Box("ours"))
    load(JSONSession(tmp_path), session_id, user_id, False, box=box, more=more)
    assert (box.value, more.value) == ("ours", 1)
    assert json.loads((tmp_path / name).read_text())["box"] == {"value": "theirs"}


def test_a_new_file_has_the_name_of_agentscope(tmp_path: Path) -> None:
    """Ids with a "_" too: the file says whose it is, and a session whose name is taken gets another file."""
    session = JSONSession(tmp_path)
    same_name = [("a_b_c", ""), ("b_c", "a"), ("c", "a_b")]
    for count in range(3):  # each order of the first saves
        session = JSONSession(tmp_path / str(count))
        ids = same_name[count:] + same_name[:count]
        for session_id, user_id in ids:
            with pytest.raises(InvalidInput):
                load(session, session_id, user_id, False, box=Box())
            for value in ("old", f"{user_id}|{session_id}"):
                save(session, session_id, user_id, box=Box(value))
        assert Path(session.path_of(*ids[0])).name == "a_b_c.json"
        box = Box()
        for session_id, user_id in ids:
            load(session, session_id, user_id, False, box=box)
            assert box.value == f"{user_id}|{session_id}"
        assert len({session.path_of(*pair) for pair in ids}) == 3
    save(session, "session_2025-08-08", box=Box(1))
    path = tmp_path / "2" / "session_2025-08-08.json"
    assert json.loads(path.read_text())["box"] == {"value": 1}
    assert session.path_of("session_2025-08-08") == str(path)
    with pytest.raises(InvalidInput, match=r"\$session"):
        save(session, "s", **{"$session": Box(1)})


def test_absent_sessions_and_modules_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mistyped id of a session, or name of a module, does not pass in silence; a right one does."""
    session = JSONSession(save_dir=tmp_path)
    for session_id in ("nope", "../user", "a\0b", "x" * 300, "x" * 5000 + "_", "\ud800_"):
        caplog.clear()
        load(session, session_id, box=Box())
        assert caplog.messages == [
            f"there is no session in {session.path_of(session_id)!r}; the modules stay as they are"
        ]
    save(session, "s", agent=Box(1), box=Box(2))
    caplog.clear()
    load(session, "s", agnt=Box(), box=Box())
    assert caplog.messages == [
        "the session 's' has no module 'agnt', which stays as it is; its modules are: agent, box"
    ]
    caplog.clear()
    load(session, "s", agent=Box(), box=Box())
    assert caplog.messages == []


def test_a_wrong_state_is_named_by_its_file(tmp_path: Path) -> None:
    """A list in place of the state of a module, at any depth, also in a file of the older name."""
    session = JSONSession(save_dir=tmp_path)
    outer = Box(1)
    outer.inner = Box(2)
    for name, id, kept, path in (
        ("s.json", "s", [1], "outer"),
        ("S1.json", "S1", {"inner": "no", "value": 1}, "outer.inner"),
    ):
        (tmp_path / name).write_text(json.dumps({"outer": kept}))
        told = f"the store at {tmp_path / name} is damaged: the state of {path} is a dict, not "
        with pytest.raises(CorruptStore, match=re.escape(told)):
            load(session, id, outer=outer)
        assert (outer.value, outer.inner.value) == (1, 2)
