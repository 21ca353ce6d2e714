"""The documentation site: every page in its navigation, every public name in its reference, no dead internal link.

`make docs` builds it; here is what can be checked without Sphinx.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparsefed
from tests.support.scripts import loaded

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def navigation() -> set[str]:
    """The pages that the site lists, without a suffix."""
    text = (SITE / "conf.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"((?:docs|examples)/[\w/]+|[A-Z]+)"', text))
    api = next(re.findall(r'"(\w+)"', line) for line in text.splitlines() if line.startswith("API = "))
    return named | {f"docs/api/{page}" for page in api}


def text_of(page: Path) -> str:
    if page.suffix != ".ipynb":
        return page.read_text(encoding="utf-8")
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def anchors(page: Path) -> set[str]:
    """What headings are called on a code host."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_work_on_a_code_host_too(page: Path) -> None:
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", text_of(page))):
        if "://" in link or link.startswith("<"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_in_the_navigation() -> None:
    there = {page.relative_to(ROOT).with_suffix("").as_posix() for page in [*PAGES, *NOTEBOOKS]}
    decisions = {page for page in there if re.match(r"docs/adr/0", page)}  # listed by their folder
    assert there - decisions - {"README"} == navigation() - {"README", "CHANGELOG"}


def documented() -> dict[str, set[str]]:
    """What the reference lists: modules with all their public names, and single names."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    return {
        "modules": set(re.findall(r"^\.\. automodule:: ([\w.]+)", text, re.MULTILINE)),
        "names": set(re.findall(r"^\.\. auto(?:class|function|exception):: ([\w.]+)", text, re.MULTILINE)),
    }


@pytest.mark.parametrize("name", sorted({*sparsefed.__all__} - {"__version__"}))
def test_every_public_name_is_in_the_reference(name: str) -> None:
    listed = documented()
    thing = None if name == "flower" else getattr(sparsefed, name)
    if name == "flower" or isinstance(thing, ModuleType):
        assert (thing.__name__ if thing else "sparsefed.flower") in listed["modules"]
    else:
        assert name in listed["names"]


@pytest.mark.parametrize("module", sorted(documented()["modules"] - {"sparsefed.flower"}))
def test_what_the_reference_shows_has_a_docstring(module: str) -> None:
    shown = importlib.import_module(module)
    assert shown.__doc__
    for name in getattr(shown, "__all__", ()):
        thing = getattr(shown, name)
        assert not (inspect.isroutine(thing) or inspect.isclass(thing)) or thing.__doc__, f"{module}.{name}"


def test_formulas_and_tables_in_docstrings_stay_as_they_are() -> None:
    as_rst = loaded(SITE / "docstrings.py").as_rst
    docstring = ["A sum.", "", "    s = |a| + |b|", "", "one     1", "two     2", "", "Args:", "    a: One |a|."]
    made = as_rst(docstring)
    assert made[:5] == ["A sum.", "", "::", "", "    s = |a| + |b|"]
    assert made[6:10] == ["::", "", "    one     1", "    two     2"]
    assert made[-2:] == ["Args:", "    a: One |a|."]
    assert as_rst(["- one thing,", "  of |n|"]) == ["- one thing,", r"  of \|n\|"]


def test_a_notebook_becomes_a_page_with_what_needs_no_script() -> None:
    as_markdown = loaded(SITE / "notebook.py").as_markdown
    for notebook in NOTEBOOKS:
        page = as_markdown(notebook.read_text(encoding="utf-8"))
        assert "<script" not in page and page.startswith("# ") and "````python\n" in page


def page(body: str) -> str:
    return f"<!doctype html><html><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("link", "dead"),
    [
        ("other.html", ""),
        ("other.html#here", ""),
        ("#own", ""),
        ("https://example.org/nothing", ""),
        ("gone.html", "no such file"),
        ("other.html#gone", "no such anchor"),
        ("#gone", "no such anchor"),
    ],
)
def test_a_dead_internal_link_is_found(tmp_path: Path, link: str, dead: str) -> None:
    check: Any = loaded(SITE / "check_links.py")
    (tmp_path / "one.html").write_text(page(f'<h1 id="own">One</h1><a href="{link}">x</a>'), encoding="utf-8")
    (tmp_path / "other.html").write_text(page('<h2 id="here">Here</h2><a href="one.html">x</a>'), encoding="utf-8")
    (found, _, external) = check.dead_links(tmp_path)
    assert (dead in found[0] if dead else found == []) and external == link.startswith("https")
    assert check.main(tmp_path) == bool(dead)


def test_the_site_names_no_host_and_no_place_of_this_machine() -> None:
    for file in SITE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        ast.parse(text)
        assert "://" not in text and "/home/" not in text and "/work" not in text
