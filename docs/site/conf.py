"""The documentation site (`make docs`): README, docs/, the notebooks and the API reference, by Sphinx, MyST and Furo.

The source folder is the whole clone, so that a link that works on a code host is the same link here. A page that is not
listed in the navigation below is an error, as is any other warning.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from docstrings import as_rst  # noqa: E402  (neighbours of this file)
from notebook import as_markdown  # noqa: E402

project = "SparseFed"
author = "the authors of SparseFed"
project_copyright = "Apache-2.0"
release = version = installed("sparsefed")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**", "examples/*.ipynb"]
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "runs",
    "results",
    "src",
    "tests",
    "fuzz",
    "benchmarks",
    "tools",
    "docs/site/**",
]
templates_path = ["templates"]
default_role = "code"  # docstrings write `name` for code

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]

autodoc_mock_imports = ["flwr"]  # Flower has an environment of its own
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"SparseFed {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to_readme.html"}
html_copy_source = False

API = ("simulation", "commands", "defenses", "attacks", "data", "config", "flower", "secure")
DECISIONS = sorted(path.with_suffix("").relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "adr").glob("0*.md"))
NAVIGATION = {
    "Tutorials": ["examples/own_table", "examples/first_steps", "docs/own_data", "docs/own_defense", "docs/own_attack"],
    "Guides": [
        *("docs/audit", "docs/sweep", "docs/choosing_k", "docs/certificate", "docs/certified_accuracy"),
        *("docs/report", "docs/cluster", "docs/devices", "docs/flower", "docs/flower_operators", "docs/secure"),
    ],
    "Reference": ["docs/config", "docs/defenses", "docs/attacks", "docs/data", "docs/glossary"],
    "Python API": ["docs/api/index", *(f"docs/api/{page}" for page in API)],
    "Results": ["docs/RESULTS", "docs/paper_map", "docs/benchmarks"],
    "Project": ["docs/architecture", "docs/adr/README", *DECISIONS, "CONTRIBUTING", "SECURITY", "CHANGELOG"],
}


class NotebookParser(MystParser):
    """Parses a notebook by way of Markdown."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(inputstring), document)


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:  # noqa: ARG001
    """Add the table of contents to the README, which has none on a code host."""
    if docname == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{listed}\n```\n"


def lay_out(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Turn a docstring into reStructuredText, before napoleon reads its sections."""
    lines[:] = as_rst(lines)


def without_addresses(*event: Any) -> tuple[str | None, str | None]:
    """Show a function that is a default as `...`, so that a signature is readable and the same every time."""
    signature, returns = event[-2:]
    return (None if signature is None else re.sub(r"<function [^>]*>+", "...", signature)), returns


def skips_fields(*event: Any) -> bool | None:
    """Leave out the fields of named tuples, which their signature shows; None: as usual."""
    return True if str(getattr(event[3], "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-signature", without_addresses)
    app.connect("autodoc-skip-member", skips_fields)
    app.connect("autodoc-process-docstring", lay_out, priority=100)
