"""`vstate completion`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from vstate_cli.session import Session, command

_LINES = {
    "bash": ("~/.bashrc", 'eval "$(vstate completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(vstate completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "vstate completion fish | source"),
}


@command(
    "completion",
    examples=[
        "vstate completion bash",
        "vstate completion zsh > ~/.vstate-completion.zsh",
        "vstate completion fish | source",
    ],
    json="{shell, file, line, script}. Add `line` to `file`.",
)
@click.argument("shell", type=click.Choice([*_LINES]), required=False)
def completion(session: Session, shell: str | None) -> None:
    """Print the completion script for a shell.

    The script completes commands, options, revisions and keys. A comment at its top says which line to add
    to which file. SHELL defaults to the shell that $SHELL names.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell)
    if shell not in _LINES or kind is None:
        raise click.UsageError(f"Which shell: {', '.join(_LINES)}?")
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "vstate", "_VSTATE_COMPLETE").source().strip()
    file, line = _LINES[shell]
    if session.json:
        session.out.json({"shell": shell, "file": file, "line": line, "script": script})
    else:
        session.out.raw(f"# Add this line to {file}:\n#   {line}\n\n{script}\n")
