"""`vstate key`, `vstate verify`, and encrypted stores."""

import json
import os
from dataclasses import replace

import pytest

from vstate import Disk, Encrypted, Versioned
from vstate.kv.encrypted import fingerprint, load_key
from vstate.repo.repository import Repository
from vstate.repo.rules.signing import SigningKey


@pytest.fixture
def keys(vstate, tmp_path):
    """Two signing keys, by name."""
    found = {}
    for name in ("alice", "bob"):
        vstate("key", "new", str(tmp_path / name))
        found[name] = SigningKey.load(tmp_path / name)
    return found


@pytest.fixture
def signed(store, keys):
    """Three more commits in the store: by alice, by bob, and one with a bad signature. Their ids."""
    ids = []
    with Disk(store) as disk:
        repo = Repository(disk)
        for name in ("alice", "bob", "nobody"):
            head = repo.branch("main")
            commit = repo.build_commit(head.root, (head,), message=f"by {name}")
            if name == "nobody":
                commit = replace(keys["bob"].sign(commit), message="changed")
            else:
                commit = keys[name].sign(commit)
            assert repo.publish("main", [commit], {}, [], expected=head.oid, action="test")
            ids.append(commit.id)
    return ids


@pytest.mark.parametrize("kind", ["signing", "encryption"])
def test_a_new_key(vstate, tmp_path, kind):
    """Only its owner can read the file, and the command prints the public key or a fingerprint, no secret."""
    vstate = type(vstate)(tmp_path / "no store")
    path = tmp_path / "agent\x1b[2J.key"
    output = vstate("key", "new", str(path), "--kind", kind)
    assert path.stat().st_mode & 0o777 == 0o600
    if kind == "signing":
        public, of_key = str(SigningKey.load(path).public), None
        assert vstate("key", "show", str(path)) == f"{public}\n"
        assert public in output
    else:
        public, of_key = None, fingerprint(load_key(path))
        assert vstate("key", "show", str(path)) == f"encryption key, fingerprint {of_key}\n"
        assert of_key in output
        assert "Keep a copy" in output
        assert load_key(path).hex() not in output + vstate("key", "show", str(path), "--json")
    expected = {"file": str(path), "kind": kind, "public_key": public, "fingerprint": of_key}
    assert vstate.json("key", "show", str(path)) == expected
    assert "\x1b" not in output
    assert not vstate.store.exists(), "a key needs no store"
    before = path.read_bytes()
    assert "is there already" in vstate.fails("key", "new", str(path), "--kind", kind)
    assert path.read_bytes() == before


def test_key_errors(vstate, tmp_path):
    """A file that is missing or cannot be made is an error in one line; wrong use has its own exit code."""
    path = str(tmp_path / "absent" / "key")
    assert "no key file" in vstate.fails("key", "show", path)
    assert "cannot be made" in vstate.fails("key", "new", path)
    assert vstate.run("key", "show", path, "--kind", "signing").exit_code == 2
    assert vstate.run("key", "burn", path).exit_code == 2


# verify


def test_who_signed_what(vstate, signed, keys):
    """verify prints a line for each commit, newest first, and the number of commits of each key."""
    result = vstate.run("verify")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["bad", "good", "good", "unsigned"]
    assert keys["bob"].public.short in lines[1]
    assert keys["alice"].public.short in lines[2]
    assert [line.split()[-2:] for line in lines[1:3]] == [["by", "bob"], ["by", "alice"]]
    assert f"     1 signed by {keys['alice'].public}" in lines
    assert "     4 not signed" in lines
    assert "     1 with a bad signature" in lines


def test_a_bad_signature_fails(vstate, signed):
    """A bad signature fails the command and is named; without bad signatures and --trust, it succeeds."""
    assert f"commit {signed[2]} is not trusted: its signature is not valid" in vstate.fails("verify")
    assert "bad" not in vstate("verify", "HEAD~1").split()  # a word: the digits of an id may spell it
    assert [line.split()[:2] for line in vstate("verify", "v1").splitlines()[1:]] == [[], ["1", "not"]]


def test_trust_is_about_the_revision_itself(vstate, signed, keys, tmp_path):
    """--trust takes keys as text or in files. The exit code is 1 unless one of them signed REV."""
    alice, bob = str(keys["alice"].public), tmp_path / "bob.pub"
    bob.write_text(vstate("key", "show", str(tmp_path / "bob")))
    assert "trusted " in vstate("verify", signed[0], "--trust", alice)
    assert "trusted " in vstate("verify", signed[1], "--trust", str(bob))
    assert vstate("verify", signed[1], "--trust", alice, "--trust", str(bob)).count("(trusted)") == 2
    assert str(keys["bob"].public) in vstate.fails("verify", signed[1], "--trust", alice)
    assert "it is not signed" in vstate.fails("verify", "v1", "--trust", alice)
    assert "its signature is not valid" in vstate.fails("verify", "HEAD", "--trust", str(bob))
    # The signer of REV vouches for its history too.
    vstate("verify", signed[1], "-n", "1", "--trust", str(bob))
    assert "is no public key" in vstate.fails("verify", "--trust", "ed25519:12")
    assert "no file" in vstate.fails("verify", "--trust", str(tmp_path / "absent"))
    assert "holds a secret key" in vstate.fails("verify", "--trust", str(tmp_path / "alice"))


def test_verify_as_json(vstate, signed, keys):
    """The output is one document, even if the command fails."""
    document = vstate.json("verify", "HEAD~1", "-n", "2")
    assert document == {
        "id": signed[1],
        "trusted": None,
        "commits": [
            {"id": signed[1], "signature": "good", "signer": str(keys["bob"].public), "trusted": None},
            {"id": signed[0], "signature": "good", "signer": str(keys["alice"].public), "trusted": None},
        ],
        "signers": {str(keys["bob"].public): 1, str(keys["alice"].public): 1},
        "unsigned": 0,
        "bad": 0,
    }
    result = vstate.run("verify", "--json", "--trust", str(keys["alice"].public))
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["trusted"], document["unsigned"], document["bad"]) == (False, 4, 1)
    assert [commit["trusted"] for commit in document["commits"]] == [False, False, True, *[False] * 4]


# Encrypted stores


def test_an_encrypted_store(vstate, tmp_path):
    """All commands work on an encrypted store by its URL.

    Without the key, the error says that the store is encrypted.
    """
    place, key = tmp_path / "secret", tmp_path / "store.key"
    vstate("key", "new", str(key), "--kind", "encryption")
    with Versioned(Encrypted(Disk(place), key)) as state:
        state["plan"] = {"goal": "win"}
        commit = state.commit("start")
    url = f"encrypted:{place}?key_file={key}"
    assert f"{commit.short} " in vstate("-s", url, "log", "--oneline") + " "
    assert "win" in vstate("-s", url, "show", "plan")
    assert commit.short in vstate("-s", url, "show", commit.id[:6])
    assert vstate("-s", url, "status")
    assert "is encrypted: open it through" in vstate.fails("-s", str(place), "log")
    other = tmp_path / "other.key"
    vstate("key", "new", str(other), "--kind", "encryption")
    assert "another key" in vstate.fails("-s", f"encrypted:{place}?key_file={other}", "log")
    os.chmod(key, 0o644)
    assert "chmod 600" in vstate.fails("-s", url, "log")
