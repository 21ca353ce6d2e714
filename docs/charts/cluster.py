"""Draw docs/charts/cluster.svg: the predicted seconds of a round on 1 to 1000 workers, and the measured ones.

    python docs/charts/cluster.py [FILE]

`docs/charts/cluster.json` holds what `python -m benchmarks.cluster --json FILE` measured; given FILE, it is taken anew.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from sparsefed.reports.lines import INK, colours, dashes, dressed, log_scale, stroke
from sparsefed.results.numbers import significant

HERE = Path(__file__).parent
CORES = 32  # of a machine of the predicted clusters
WORKERS = sorted({round(10 ** (i / 20)) for i in range(61)})  # 1 to 1000
MARKED = (10, 100, 1000)
LINES = {  # name: devices of a round, devices of a part
    "16 devices, parts of 4": (16, 4),
    "1600 devices, parts of 16": (1600, 16),
    "16 000 devices, parts of 16": (16_000, 16),
    "16 000 devices, parts of 160": (16_000, 160),
}


class Cost(NamedTuple):
    """Seconds, of a model of d parameters on one kind of machine."""

    device: float  # that a worker computes for a device
    sum: float  # that the driver needs to receive and add one sum from its own machine
    sum_afar: float  # from another machine
    server: float  # of the server's step


def predicted(cost: Cost, devices: int, part: int, workers: int, cores: int = CORES) -> float:
    """Return the seconds of a round on machines of so many cores, the driver on one of them.

    >>> round(predicted(Cost(1.0, 0.1, 0.5, 0.2), devices=16, part=4, workers=2), 6)
    8.4
    """
    parts, machines = math.ceil(devices / part), math.ceil(workers / cores)
    a_sum = cost.sum if machines == 1 else cost.sum_afar
    computed = math.ceil(parts / workers) * part * cost.device + a_sum  # the last sum has nothing to hide behind
    return max(computed, parts * a_sum) + machines * a_sum + cost.server  # the model goes to every machine


def taken(benchmark: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that the chart needs, of what the benchmark wrote."""
    one, two = (benchmark["details"][f"{raylets} raylets"] for raylets in (1, 2))
    return {
        "measured": benchmark["created"],
        "machine": benchmark["machine"]["processor"],
        "d": one["d"],
        "devices": 16,
        "part": 4,
        "cost": Cost(
            one["busiest worker"]["1 worker"]["median"] / 16,
            one["a sum, seconds"]["median"],
            two["a sum, seconds"]["median"],
            one["server's step, seconds"]["median"],
        )._asdict(),
        "rounds": {count: one["seconds"][f"{count} worker{'s' * (count > 1)}"]["median"] for count in (1, 2, 4)},
        "round, 2 workers on 2 raylets": two["seconds"]["2 workers, 2 raylets"]["median"],
    }


def chart(figures: dict[str, Any]) -> alt.LayerChart:
    """Draw the predictions as lines, their values at 10, 100 and 1000 workers, and what was measured as diamonds."""
    cost, looks = Cost(**figures["cost"]), {name: stroke(i) for i, name in enumerate(LINES)}
    rows = [
        {"line": name, "workers": w, "seconds": significant(predicted(cost, *sizes, w), 4)}
        for name, sizes in LINES.items()
        for w in WORKERS
    ]
    measured = [{"line": next(iter(LINES)), "workers": int(w), "seconds": s} for w, s in figures["rounds"].items()]
    known = [row["seconds"] for row in (*rows, *measured)]
    x = alt.X("workers:Q", **log_scale([1, 1000], "Workers of one core", "d", grid=False))
    y = alt.Y("seconds:Q", **log_scale(known, "Seconds of a round", "~g"))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colours(looks))
    marked = alt.Chart(alt.InlineData(values=[row for row in rows if row["workers"] in MARKED]))
    label = marked.mark_text(align="left", dx=5, dy=-7, fontSize=11, color=INK)
    text = label.encode(x=x, y=y, text=alt.Text("seconds:Q", format=".2~r"))
    dots = marked.mark_point(filled=True, size=30, opacity=1).encode(x=x, y=y, color=colours(looks))
    points = alt.Chart(alt.InlineData(values=measured)).mark_point(
        shape="diamond", size=110, filled=True, opacity=1, color="#000000"
    )
    title = alt.Title(
        "A round of ResNet9 on a cluster: predicted, and measured at 1, 2 and 4 workers",
        subtitle=[
            "Lines: predicted, for machines of 32 cores. Black diamonds: measured, 16 devices,",
            "on one machine of two cores, which four workers share.",
        ],
    )
    layers = [base.mark_line(strokeWidth=2).encode(strokeDash=dashes(looks)), dots, text, points.encode(x=x, y=y)]
    return dressed(alt.LayerChart(layer=layers), title, list(looks))


def main() -> None:
    """Take the figures from a benchmark's file if one is given, and draw the chart."""
    kept = HERE / "cluster.json"
    if len(sys.argv) > 1:
        figures = taken(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        kept.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    chart(json.loads(kept.read_text(encoding="utf-8"))).save(HERE / "cluster.svg")


if __name__ == "__main__":
    main()
