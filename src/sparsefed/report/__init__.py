"""Charts and the report that people send each other: one HTML file, or pictures. Reads run records; trains nothing.

Importing this package is light: Altair is loaded when a chart is drawn.
"""

from __future__ import annotations

from sparsefed.report.charts import charts
from sparsefed.report.files import save
from sparsefed.report.page import html
from sparsefed.report.summary import SummaryRow, summary
from sparsefed.report.verdict import verdict

__all__ = ["SummaryRow", "charts", "html", "save", "summary", "verdict"]
