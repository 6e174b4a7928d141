"""Fetch the vendored files of the viewer's page anew from npm, and compare or replace them.

`python docs/fetch_vendored.py` needs npm. It fails if a file differs from the package of its version. With
`--update NAME VERSION` it takes another version of a package, and writes the new hash.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "vstate" / "viewer" / "static" / "vendor"
LIST = VENDOR / "VENDORED.json"


def fetch(package: str, version: str, member: str) -> bytes:
    """The bytes of a file in a package of npm."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
        name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
        with tarfile.open(Path(folder) / name) as archive:
            file = archive.extractfile(member)
            assert file is not None
            return file.read()


def main(words: list[str]) -> int:
    """Compare all files, or update those of one package; the exit status."""
    listed = json.loads(LIST.read_text())
    update = dict([words[1:3]]) if words[:1] == ["--update"] else {}
    differ = 0
    for name, entry in listed.items():
        entry["version"] = update.get(entry["package"], entry["version"])
        data = fetch(entry["package"], entry["version"], entry["member"])
        found = hashlib.sha256(data).hexdigest()
        print(f"{name}: {entry['package']} {entry['version']}, {found}")
        if entry["package"] in update:
            (VENDOR / name).write_bytes(data)
            entry["sha256"] = found
        elif found != entry["sha256"] or data != (VENDOR / name).read_bytes():
            print(f"{name} differs from its package", file=sys.stderr)
            differ = 1
    LIST.write_text(json.dumps(listed, indent=2) + "\n")
    return differ


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
