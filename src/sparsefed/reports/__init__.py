"""Documents, charts and pages: the presentation of results. This package judges nothing and trains nothing.

Importing this package is cheap: the drawing modules, and Altair with them, are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsefed.results.summary import SummaryRow, summary
from sparsefed.results.verdict import verdict

if TYPE_CHECKING:
    from sparsefed.reports.run_charts import charts
    from sparsefed.reports.run_report import RunsReport, html, save

__all__ = ["RunsReport", "SummaryRow", "charts", "html", "save", "summary", "verdict"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'run_charts' if name == 'charts' else 'run_report'}"), name)
