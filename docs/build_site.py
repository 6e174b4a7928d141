"""Make the site of the docs: `make site`. It needs the extra site.

The pages are those of docs/, the README, the change log and the map for contributors. Each public module gets
a page with all of its public names, from their docstrings. A broken link fails.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
BUILD = TOP / "build"
PAGES = BUILD / "site-pages"
SITE = BUILD / "site"

NAVIGATION: dict[str, list[str]] = {
    "First steps": ["tutorial", "concepts", "state"],
    "To do one thing": [
        *("web-service", "side-effects", "files", "resolve-a-conflict", "keep-it-small", "erase-a-person"),
        *("backup", "share-a-store", "changing-classes", "moving-in", "fsspec", "custom-store"),
        "troubleshooting",
    ],
    "For agents": ["integrations", "agents", "agentscope", "agentscope-runtime", "agenticaiframework"],
    "To look things up": ["stores", "sync", "viewer", "cli", "security", "reliability", "benchmarks"],
    "Inside": ["architecture", "modules", "format", "releasing", "contributing", "changelog"],
}

MODULES = [
    *("vstate", "vstate.aio", "vstate.patterns", "vstate.sessions", "vstate.managers", "vstate.viewer"),
    *("vstate.testing", "vstate.errors", "vstate.integrations"),
]
"""The public modules. A page of the reference has the names of `__all__`, or of the modules of a package."""

TOP_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def public_names(module: str) -> list[str]:
    """The public names of a module, with the path that they are imported by.

    The adapters are read and not imported: each would need its framework.
    """
    if module == "vstate.integrations":
        return sorted(adapters(TOP / "vstate" / "integrations"))
    loaded = importlib.import_module(module)
    return [f"{module}.{name}" for name in loaded.__all__]


def adapters(folder: Path) -> Iterator[str]:
    """The public classes of the adapters: Vstate is in their names."""
    for file in folder.rglob("*.py"):
        # A package gives the names of its modules.
        place = file.parent if file.parent != folder else file.with_suffix("")
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and re.match("(Async)?Vstate", node.name):
                yield f"vstate.integrations.{place.name}.{node.name}"


def with_new_links(text: str, *, from_top: bool) -> str:
    """The text of a page with its links as they lead in the site."""

    def new(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        name = path.removeprefix("docs/") if from_top else path.removeprefix("../")
        return f"]({TOP_PAGES.get(name, name)}{anchor})"

    return LINK.sub(new, text)


def write_pages() -> None:
    """All pages, in one folder."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for folder in ("images", "examples"):
        shutil.copytree(TOP / "docs" / folder, PAGES / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (PAGES / "style.css").write_text("td:first-child code { white-space: nowrap; }\n")
    for file in (TOP / "docs").glob("*.md"):
        (PAGES / file.name).write_text(with_new_links(file.read_text("utf-8"), from_top=False), "utf-8")
    for name, page in TOP_PAGES.items():
        text = with_new_links((TOP / name).read_text("utf-8"), from_top=True)
        (PAGES / page).write_text(text, "utf-8")
    (PAGES / "reference").mkdir()
    for module in MODULES:
        options = ["    options:", "      members: false", "      show_root_heading: false"]
        lines = [f"# {module}", "", f"::: {module}", *options, ""]
        for name in public_names(module):
            lines += [f"::: {name}", ""]
        (PAGES / "reference" / f"{module}.md").write_text("\n".join(lines), "utf-8")


def write_configuration() -> Path:
    """The configuration of mkdocs; JSON is YAML too."""
    navigation: list[object] = [{"vstate": "index.md"}]
    navigation += [{title: [f"{page}.md" for page in pages]} for title, pages in NAVIGATION.items()]
    navigation.append({"Reference": [f"reference/{module}.md" for module in MODULES]})
    handler = {
        "paths": [str(TOP)],
        "options": {
            "show_source": False,
            "show_root_heading": True,
            "show_root_full_path": False,
            "show_if_no_docstring": False,
            "inherited_members": False,
            "separate_signature": True,
            "heading_level": 2,
            "docstring_style": "google",
            "docstring_section_style": "list",
        },
    }
    configuration = {
        "site_name": "vstate",
        "docs_dir": str(PAGES),
        "site_dir": str(SITE),
        "use_directory_urls": False,
        "strict": True,
        "nav": navigation,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.indexes", "navigation.top", "content.code.copy", "search.suggest"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "indigo"},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "indigo"},
            ],
        },
        "extra_css": ["style.css"],
        "plugins": ["search", {"mkdocstrings": {"handlers": {"python": handler}}}],
        "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": True}}, "pymdownx.highlight"],
        "validation": {"links": {"anchors": "warn", "not_found": "warn", "unrecognized_links": "warn"}},
    }
    BUILD.mkdir(exist_ok=True)
    file = BUILD / "mkdocs.yml"
    file.write_text(json.dumps(configuration, indent=1), "utf-8")
    return file


def main() -> int:
    """Build the site; the exit status of mkdocs."""
    write_pages()
    file = write_configuration()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(file)]
    # mkdocs-material speaks of its own future at each build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # With --quiet, mkdocs counts no warnings, and a broken link would pass.
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    print(f"Open {SITE / 'index.html'}" if done.returncode == 0 else done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
