"""`vstate key`, `vstate verify`, and encrypted stores."""

import os
from dataclasses import replace

from vstate import Disk, Encrypted, Versioned
from vstate.kv.encrypted import fingerprint, load_key
from vstate.repo.repository import Repository
from vstate.repo.rules.signing import SigningKey


def test_keys(rows, vstate, tmp_path):
    """A new key is for its owner alone, and overwrites none. `key` shows the public part, and no secret."""
    rows(
        """
        key new TMP/alice -> Made the signing key TMP/alice, which only you can read. / ed25519:<ID>
        key show TMP/alice -> ed25519:<ID>
        key show TMP/alice ? @
            -> {"file": "TMP/alice", "kind": "signing", "public_key": "ed25519:<ID>", "fingerprint": null}
        key new TMP/code --kind encryption -> Made the encryption key TMP/code, which only you can read.
            / Keep a copy of it elsewhere: without the key, the encrypted data is lost.
            / encryption key, fingerprint ...
        key show TMP/code ? [kind, public_key] -> ["encryption", null]
        key new TMP/alice -> [1] vstate: TMP/alice is there already...
        key new TMP/code --kind encryption -> [1] vstate: TMP/code is there already...
        key show TMP/none -> [1] vstate: no key file TMP/none; ...
        key new TMP/none/key -> [1] vstate: the key file 'TMP/none/key' cannot be made...
        key show TMP/alice --kind signing -> [2] ...--kind is for `new`.
        key burn TMP/alice -> [2] ...
        """,
        type(vstate)(tmp_path / "no store"),
    )
    assert not (tmp_path / "no store").exists()
    secret = load_key(tmp_path / "code")
    shown = vstate("key", "show", str(tmp_path / "code"), "--json")
    assert fingerprint(secret) in shown
    assert secret.hex() not in shown
    assert str(SigningKey.load(tmp_path / "alice").public) in vstate("key", "show", str(tmp_path / "alice"))
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("alice", "code")} == {0o600}
    assert "\x1b" not in vstate("key", "new", str(tmp_path / "agent\x1b[2J.key"))


def test_who_signed_what(rows, vstate, store, tmp_path):
    """verify has a line for each commit, and one for each signer. It fails for a bad signature, and with
    --trust unless one of those keys signed REV itself, which vouches for the history too.
    """
    for name in ("alice", "bob"):
        vstate("key", "new", str(tmp_path / name))
    keys = {name: SigningKey.load(tmp_path / name) for name in ("alice", "bob")}
    (tmp_path / "bob.pub").write_text(str(keys["bob"].public))
    with Disk(store) as disk:
        repo = Repository(disk)
        for name in ("alice", "bob", "nobody"):
            head = repo.branch("main")
            commit = repo.build_commit(head.root, (head,), message=f"by {name}")
            signed = keys.get(name, keys["bob"]).sign(commit)
            signed = replace(signed, message="changed") if name == "nobody" else signed
            assert repo.publish("main", [signed], {}, [], expected=head.oid, action="test")
    rows(
        """
        verify -> [1] bad <id> changed / good BOBS <id> by bob / good ALICES <id> by alice
            / unsigned <id> more / unsigned <id> tidy up / unsigned <id> read / unsigned <id> start
            / 1 signed by BOB / 1 signed by ALICE / 4 not signed / 1 with a bad signature
            / vstate: commit <ID> is not trusted: its signature is not valid...
        verify HEAD~1 -> good BOBS <id> by bob / ... / 4 not signed
        verify v1 -> unsigned <id> start / 1 not signed
        verify HEAD~2 --trust ALICE -> trusted ALICES <id> by alice / ... / 1 signed by ALICE (trusted) / ...
        verify HEAD~1 -n 1 --trust TMP/bob.pub -> trusted BOBS <id> by bob / 1 signed by BOB (trusted)
        verify HEAD~1 --trust ALICE --trust TMP/bob.pub
            -> ... / 1 signed by BOB (trusted) / 1 signed by ALICE (trusted) / ...
        verify HEAD~1 --trust ALICE -> [1] ...commit <ID> is not trusted...
        verify v1 --trust ALICE -> [1] ...it is not signed...
        verify HEAD --trust TMP/bob.pub -> [1] ...its signature is not valid...
        verify --trust ed25519:12 -> [1] ...is no public key...
        verify --trust TMP/absent -> [1] ...no file...
        verify --trust TMP/alice -> [1] ...holds a secret key...
        verify HEAD~1 -n 1 ? commits
            -> [{"id": "<ID>", "signature": "good", "signer": "BOB", "trusted": null}]
        verify HEAD~1 ? [id == commits[0].id, trusted, signers, unsigned, bad]
            -> [true, null, {"BOB": 1, "ALICE": 1}, 4, 0]
        verify --trust ALICE ? [trusted, unsigned, bad, commits[:3].[signature, trusted]]
            -> [1] [false, 4, 1, [["bad", false], ["good", false], ["good", true]]] / vstate: ...
        """,
        ALICE=str(keys["alice"].public),
        BOB=str(keys["bob"].public),
        ALICES=keys["alice"].public.short,
        BOBS=keys["bob"].public.short,
    )


def test_an_encrypted_store(rows, vstate, tmp_path):
    """All commands work on an encrypted store by its URL, with its key and no other one."""
    vstate("key", "new", str(tmp_path / "key"), "--kind", "encryption")
    vstate("key", "new", str(tmp_path / "other"), "--kind", "encryption")
    with Versioned(Encrypted(Disk(tmp_path / "secret"), tmp_path / "key")) as state:
        state["plan"] = {"goal": "win"}
        state.commit("start")
    rows(
        """
        -s URL log --oneline -> <id> (HEAD -> main) start +1
        -s URL show plan -> {'goal': 'win'}
        -s URL status ? commits -> 1
        -s TMP/secret log -> [1] vstate: ...is encrypted: open it through...
        -s encrypted:TMP/secret?key_file=TMP/other log -> [1] vstate: ...another key...
        >>> os.chmod(tmp_path / "key", 0o644)
        -s URL log -> [1] vstate: ...chmod 600...
        """,
        URL=f"encrypted:{tmp_path}/secret?key_file={tmp_path}/key",
        os=os,
        tmp_path=tmp_path,
    )
