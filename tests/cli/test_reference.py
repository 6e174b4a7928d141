"""The reference, docs/cli.md, is complete and up to date."""

import shlex
from itertools import takewhile
from pathlib import Path

import click
import pytest
from running import load_module
from vstate_cli.app import COMMANDS, cli

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator():
    """docs/generate_cli.py as a module."""
    return load_module(DOCS / "generate_cli.py")


def test_the_page_is_not_stale(generator):
    """The page equals the generated page."""
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == generator.page(), (
        "run `python docs/generate_cli.py`"
    )


def test_a_stale_page_fails_the_check(generator, tmp_path, monkeypatch, capsys):
    """--check exits with 1 and says how to update the page; without --check, the page is written."""
    page = tmp_path / "cli.md"
    page.write_text("old")
    monkeypatch.setattr(generator, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["generate_cli.py", "--check"])
    assert generator.main() == 1
    assert "python docs/generate_cli.py" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["generate_cli.py"])
    assert generator.main() == 0
    monkeypatch.setattr("sys.argv", ["generate_cli.py", "--check"])
    assert generator.main() == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name):
    """A command has a text, help for each option, a description of its JSON, and examples that it accepts."""
    command = cli.get_command(click.Context(cli), name)
    assert command.help
    assert command.epilog
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert all(option.help for option in options)
    assert {"--json", "--store"} <= {name for option in options for name in option.opts}
    assert "With --json: " in command.epilog
    examples = [line.strip() for line in command.epilog.splitlines() if line.strip().startswith("$ ")]
    assert examples
    for example in examples:
        words = [*takewhile(lambda word: word not in ("|", ">"), shlex.split(example))][1:]
        assert words[0] == "vstate"
        command.make_context(name, words[words.index(name) + 1 :])
