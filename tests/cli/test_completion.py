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


def test_suggestions(store):
    """The shell suggests commands, and branches, tags and keys of the store that the line names."""
    assert complete("vstate l") == ["log", "ls"]
    assert complete(f"vstate -s {store} log ") == ["main", "what-if", "v1", "HEAD"]
    assert complete(f"vstate log -s {store} w") == ["what-if"]
    assert complete(f"vstate -s {store} show HEAD n") == ["notes/a", "notes/b"]
    assert complete(f"vstate -s {store} tag -d ") == ["v1"]
    assert complete(f"vstate -s {store} diff v1 HEAD pl") == ["plan"]
    assert complete(f"vstate -s {store} log v1..m") == ["v1..main"]
    for words in ("log main -- m", "checkout v1 -- m", "diff -- m"):
        assert complete(f"vstate -s {store} {words}") == ["messages"]
    assert complete(f"vstate -s {store} show v1 ") == ["messages", "old", "plan", "text"]
    assert complete(f"vstate -s {store} diff v1 HEAD n") == ["notes/a", "notes/b"]
    assert complete(f"vstate -s {store} log v1 -- n") == []
    assert complete(f"vstate -s {store} log v1..main -- n") == ["notes/a", "notes/b"]
    assert complete("vstate -s /nowhere log ") == []
