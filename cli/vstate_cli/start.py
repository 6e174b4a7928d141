"""The entry point of the command, which is there before the rest of it has been imported."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command; Ctrl-C, whenever it comes, is no traceback."""
    try:
        from vstate_cli.app import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)  # 128 + SIGINT, as a shell reports it
