"""The base of every command's result: shown as a page, JSON, Markdown, a data frame, files, or in a notebook.

A result class names the module that describes it, which is loaded on first use:

    class ChooseKResult(Report, described_by="sparsefed.commands.choose_k.document"): ...

That module has `document(result) -> Document` and `records(result) -> list[dict]`, and may have `numbers(result)`, the
JSON for programs if that is more than the document, and `files(result)`, the files that `save` writes, by name
(None: an older one is removed).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast

from sparsefed.config import Config, score_title
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.reports.document import Document, scored_by
from sparsefed.reports.pictures import write
from sparsefed.results.summary import ACCURACY


class Report:
    """A result that can be shown; subclasses name the module that describes them."""

    _described_by: ClassVar[str]

    def __init_subclass__(cls, described_by: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        if described_by:
            cls._described_by = described_by

    def _describe(self, what: str) -> Any:
        described = getattr(import_module(self._described_by), what, None)
        return None if described is None else described(self)

    @property
    def score(self) -> str:
        """The name of the metric that the runs behind this result are judged by, usually test accuracy."""
        config = getattr(self, "config", None)
        return score_title(config) if isinstance(config, Config) else ACCURACY

    def document(self) -> Document:
        """Return the whole result as a document, for any of the renderers; it is made once."""
        return self._document

    @cached_property
    def _document(self) -> Document:
        return scored_by(cast("Document", self._describe("document")), self.score)

    def records(self) -> list[dict[str, Any]]:
        """Return the result's rows, in the form that `pandas.DataFrame` takes."""
        return cast("list[dict[str, Any]]", self._describe("records"))

    def to_html(self) -> str:
        """Return one page that works offline."""
        from sparsefed.reports.to_html import page

        return page(self.document())

    def to_json(self) -> str:
        """Return the numbers for programs."""
        from sparsefed.reports.to_json import as_values

        numbers = self._describe("numbers")
        values = as_values(self.document()) if numbers is None else scored_by(numbers, self.score)
        return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return the document as Markdown."""
        from sparsefed.reports.to_markdown import markdown

        return markdown(self.document())

    def to_dataframe(self) -> Any:
        """Return the records as a `pandas.DataFrame`.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError("to_dataframe needs pandas: pip install pandas; records() gives the same rows") from None
        return pd.DataFrame(self.records())

    def _repr_html_(self) -> str:
        from sparsefed.reports.to_html import framed

        return framed(self.document())

    def save(self, folder: str | Path) -> list[Path]:
        """Write the page, and the other files of the result, into a folder.

        Returns:
            The files that were written.

        Raises:
            RunError: The folder cannot be written to.
        """
        files: Mapping[str, str | bytes | None] | None = self._describe("files")
        files = files or {"report.html": self.to_html(), "report.json": self.to_json()}
        contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
        try:
            for name in [name for name, data in contents.items() if data is None]:
                (Path(folder) / name).unlink(missing_ok=True)  # of an earlier result, and no longer true
            return [write(Path(folder) / name, data) for name, data in contents.items() if data is not None]
        except OSError as error:
            reason = f"cannot write to {folder} ({error.strerror})"
            raise RunError(f"{reason}; free some space or make it writable, or choose another folder") from error
