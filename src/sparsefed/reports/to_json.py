"""A document as plain values for programs: sections of blocks, tables with their numbers, charts as Vega-Lite."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sparsefed.reports.document import Block, Document, Figure, Fold, Side, Table


def as_values(document: Document) -> dict[str, Any]:
    """Return the document as values that `json.dumps` takes."""
    sections = [{"title": part.title, "blocks": [_block(each) for each in part.blocks]} for part in document.sections]
    return {"title": document.title, "lead": document.lead, "sections": sections}


def _block(block: Block) -> dict[str, Any]:
    kind = {"block": type(block).__name__.lower()}
    match block:
        case Table():
            shown = block.on_page()
            rows = [[cell.text if cell.value is None else cell.value for cell in row] for row in shown.rows]
            return {**kind, "caption": block.caption, "columns": [head.title for head in shown.head], "rows": rows}
        case Figure():
            title, alternative, spec = block.spec()
            return {**kind, "name": block.name, "title": title, "text": alternative, "vega_lite": spec}
        case Fold(title, blocks):
            return {**kind, "title": title, "blocks": [_block(each) for each in blocks]}
        case Side(blocks):
            return {**kind, "blocks": [_block(each) for each in blocks]}
        case _:
            return {**kind, **{name: value for name, value in asdict(block).items() if name != "page_only"}}
