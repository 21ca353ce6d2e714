"""Draw docs/charts/votes.svg: certified accuracy by votes and by one model's radius, from the numbers beside it.

    python docs/charts/votes.py

`docs/charts/votes.json` holds what `python -m benchmarks.votes --curves FILE "clipping inside, one round"` measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import altair as alt

from sparsefed.reports.lines import colours, dashes, dressed, stroke
from sparsefed.results.numbers import significant

HERE = Path(__file__).parent
LAST = 25  # compromised devices


def main() -> None:
    """Draw the chart."""
    curves: dict[str, list[float]] = json.loads((HERE / "votes.json").read_text(encoding="utf-8"))
    looks = {name: stroke(i) for i, name in enumerate(curves)}
    rows = [
        {"line": name, "m": m, "y": significant(value, 4)}
        for name, values in curves.items()
        for m, value in enumerate(values[: LAST + 1])
    ]
    x = alt.X("m:Q", title="Compromised devices of 1000, sending anything", axis=alt.Axis(format="d", grid=False))
    y = alt.Y("y:Q", title="Certified accuracy", axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colours(looks), strokeDash=dashes(looks))
    title = alt.Title(
        "Predictions that m compromised devices cannot change", subtitle="Fashion-MNIST, 1000 devices in 20 groups."
    )
    layers = alt.LayerChart(layer=[base.mark_line(strokeWidth=2, interpolate="step-after")])
    dressed(layers, title, list(looks)).save(HERE / "votes.svg")


if __name__ == "__main__":
    main()
