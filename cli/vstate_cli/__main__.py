"""The entry point. It imports the rest of the command, and so handles Ctrl-C during the imports."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command. Ctrl-C prints no traceback, whenever it comes."""
    try:
        from vstate_cli.app import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)  # 128 + SIGINT, as a shell reports it


if __name__ == "__main__":
    main()
