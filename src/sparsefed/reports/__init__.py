"""Documents, charts and pages: how results are shown. Judges nothing and trains nothing.

Importing this package is light: what draws (and Altair with it) is loaded when it is needed.
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
