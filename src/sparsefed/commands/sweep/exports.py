"""The results of a sweep for a paper of one's own: records as CSV, numbers as a LaTeX table, figures without titles.

A figure in print has its title in the caption and a size that fits the column, so figures are drawn without a title, as
large as requested with everything around the axes, and with a font of that size.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from sparsefed.commands.reproduce.document import body, columns
from sparsefed.commands.reproduce.exhibit_charts import charts
from sparsefed.commands.reproduce.run import ExhibitResult
from sparsefed.core.errors import ConfigError, unknown
from sparsefed.reports.pictures import PICTURES, picture

PER_INCH = 72  # of a chart's units, which are points in a PDF
TEX = {"\\": r"\textbackslash{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}"}
TEX |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--", "−": "$-$", "ω": r"$\omega$"}


class FigureSize(NamedTuple):
    """The size of a figure in inches, and of its text in points."""

    width: float = 3.3  # a column of a paper with two
    height: float = 2.2
    font: float = 8.0

    @staticmethod
    def parse(text: str) -> FigureSize:
        """Return the size that a text such as '3.3x2.2' or '6x3,9' gives; the last number is the font's.

        >>> FigureSize.parse("6x3,9")
        FigureSize(width=6.0, height=3.0, font=9.0)
        """
        written = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?", text.strip())
        size = FigureSize(*(float(each) for each in written.groups() if each)) if written else None
        if size is None or not (0.5 <= size.width <= 40 and 0.5 <= size.height <= 40 and 3 <= size.font <= 40):
            raise ConfigError(f"--size is '{text}'; say width x height in inches, for instance 3.3x2.2, or 6x3,9")
        return size


def exports(
    result: ExhibitResult,
    *,
    csv: bool = False,
    latex: bool = False,
    figures: Sequence[str] = (),
    size: FigureSize | None = None,
) -> dict[str, bytes]:
    """Return the wanted files by name: NAME.csv, NAME.tex, and a figure per metric in each of these formats."""
    for kind in figures:
        if kind not in PICTURES:
            raise ConfigError(unknown("format of a figure", kind, PICTURES))
    name = result.name
    files = {f"{name}.csv": to_csv(result.records())} if csv else {}
    files |= {f"{name}.tex": to_latex(result)} if latex else {}
    drawn = charts(result.exhibit, result.rows, result.paper) if figures else {}
    for metric, chart in drawn.items():
        plain = figure(chart, size or FigureSize())
        files |= {f"{name}-{metric}.{kind}": picture(plain, kind) for kind in figures}
    return files


def to_csv(records: Sequence[dict[str, Any]]) -> bytes:
    """Return records as CSV, with a column for everything that any of them has.

    >>> to_csv([{"k": 1, "test_accuracy": 0.5}, {"k": 2, "lost": 0.1}]).decode().splitlines()
    ['k,test_accuracy,lost', '1,0.5,', '2,,0.1']
    """
    names = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def to_latex(result: ExhibitResult) -> bytes:
    """Return the table of numbers as a `tabular` with the rules of booktabs, to be put into a table of one's own."""
    heads, lines = columns(result), body(result)
    spec = "".join("l" if head.left else "r" for head in heads)
    rows = [" & ".join(map(tex, line)) + r" \\" for line in lines]
    head = " & ".join(tex(each.title) for each in heads) + r" \\"
    parts = [
        f"% {result.exhibit.title}: mean and standard deviation over the seeds; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        head,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return ("\n".join(parts) + "\n").encode()


def tex(text: str) -> str:
    """Return text as LaTeX that prints it.

    >>> print(tex("60.0% ± 14.1"), tex("a_b"))
    60.0\\% $\\pm$ 14.1 a\\_b
    """
    return "".join(TEX.get(sign, sign) for sign in text)


def figure(chart: alt.LayerChart, size: FigureSize) -> alt.LayerChart:
    """Return a chart without its title, as large in all as the size says, on a transparent ground."""
    spec = chart.to_dict()
    spec.pop("title", None)
    column = spec.pop("usermeta", {}).get("legendColumn", 200.0) * size.font / 12
    spec |= {"width": size.width * PER_INCH, "height": size.height * PER_INCH, "padding": 2}
    spec["autosize"] = {"type": "fit", "contains": "padding"}
    config, font = spec["config"], {"labelFontSize": size.font, "titleFontSize": size.font}
    config["background"] = "transparent"
    config["font"] = "Helvetica, Arial, sans-serif"
    config["axis"] |= font | {"labelColor": "black", "titleColor": "black"}
    few = max(1, int(size.width * PER_INCH // column))
    config["legend"] |= font | {"labelColor": "black", "columns": few, "offset": 4, "symbolSize": 150}
    drawn: alt.LayerChart = alt.LayerChart.from_dict(spec)
    return drawn
