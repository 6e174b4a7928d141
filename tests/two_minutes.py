"""Run the first program of the README, twice, with another Python: `python two_minutes.py PYTHON`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def main() -> None:
    match = re.search(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None
    python = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):
            subprocess.run([python, "-I", "-c", match[1]], cwd=directory, check=True)
        command = [python.parent / "vstate", "-s", "agent-state", "log", "--oneline", "-n", "3"]
        subprocess.run(command, cwd=directory, check=True)


if __name__ == "__main__":
    main()
