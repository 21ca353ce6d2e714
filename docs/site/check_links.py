"""Check every internal link of the built site: the file is there, and so is the anchor. Ends with 1 if one is dead.

    python docs/site/check_links.py build/site

Links to other sites are counted, not followed: a build must not depend on a network.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class Links(HTMLParser):
    """The links of a page, and the anchors that others may link to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if target := given.get(LINKS.get(tag, "")):
            self.links.append(target)


def read(page: Path) -> Links:
    """Return the links and anchors of a page."""
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def dead_links(site: Path) -> tuple[list[str], int, int]:
    """Return a sentence for each dead internal link, and how many links are internal and how many external."""
    pages = {page.resolve(): read(page) for page in sorted(site.rglob("*.html"))}
    dead, internal, external = [], 0, 0
    for page, own in pages.items():
        for link in own.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                external += parts.scheme in ("http", "https")
                continue
            internal += 1
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            wanted = unquote(parts.fragment)
            if not file.is_file():
                dead.append(f"{page.relative_to(site.resolve())}: {link}: there is no such file")
            elif wanted and file in pages and wanted not in pages[file].anchors:
                dead.append(f"{page.relative_to(site.resolve())}: {link}: the page has no such anchor")
    return dead, internal, external


def main(site: Path) -> int:
    dead, internal, external = dead_links(site)
    for sentence in dead:
        print(sentence, file=sys.stderr)
    print(f"{internal} internal links checked, {len(dead)} dead; {external} external ones not followed")
    return 1 if dead or not internal else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
