"""`vstate completion`, and the suggestions of the shell."""

import pytest
from click.testing import CliRunner
from vstate_cli.app import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script(vstate, shell):
    """The script is for the named shell, and names the line to add and the file."""
    text = vstate("completion", shell)
    assert text.startswith("# Add this line to ~/.")
    assert f"vstate completion {shell}" in text.splitlines()[1]
    assert "_VSTATE_COMPLETE" in text
    document = vstate.json("completion", shell)
    assert set(document) == {"shell", "file", "line", "script"}


def test_the_shell_is_guessed(vstate):
    """Without an argument, $SHELL counts; an unknown shell is a usage error."""
    assert "zshrc" in vstate.run("completion", SHELL="/usr/bin/zsh").stdout
    assert vstate.run("completion", SHELL="/bin/tcsh").exit_code == 2
    assert vstate.run("completion", "tcsh").exit_code == 2


def complete(words: str) -> list[str]:
    """The suggestions for the last word."""
    environment = {
        "_VSTATE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    result = CliRunner(env=environment).invoke(cli, [], prog_name="vstate")
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("l", "log ls"),
        ("-s STORE log ", "main what-if v1 HEAD"),
        ("log -s STORE w", "what-if"),
        ("-s STORE show HEAD n", "notes/a notes/b"),
        ("-s STORE tag -d ", "v1"),
        ("-s STORE diff v1 HEAD pl", "plan"),
        ("-s STORE log v1..m", "v1..main"),
        ("-s STORE log main -- m", "messages"),
        ("-s STORE checkout v1 -- m", "messages"),
        ("-s STORE diff -- m", "messages"),
        ("-s STORE diff --stat -- m", "messages"),
        ("-s STORE show v1 ", "messages old plan text"),
        ("-s STORE diff v1 HEAD n", "notes/a notes/b"),
        ("-s STORE log v1 -- n", ""),
        ("-s STORE log v1..main -- n", "notes/a notes/b"),
        ("-s STORE push o", "origin"),
        ("-s STORE show origin/w", "origin/what-if"),
        ("-s /nowhere log ", ""),
    ],
)
def test_suggestions(vstate, tmp_path, words, suggested):
    """The shell suggests commands, and refs, keys and remotes of the store that the line names."""
    vstate("clone", str(vstate.store), str(tmp_path / "copy"))
    found = complete("vstate " + words.replace("STORE", str(tmp_path / "copy")))
    assert [word for word in found if "origin" in suggested or "origin" not in word] == suggested.split()
