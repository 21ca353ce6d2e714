"""Charts and the report that people send each other: one HTML file, or pictures. Reads run records; trains nothing.

Importing this package is light: Altair is loaded when a chart is drawn.
"""

from __future__ import annotations

from sparsefed.reports.run_charts import charts
from sparsefed.reports.run_report import RunsReport, html, save
from sparsefed.results.summary import SummaryRow, summary
from sparsefed.results.verdict import verdict

__all__ = ["RunsReport", "SummaryRow", "charts", "html", "save", "summary", "verdict"]
