"""Draws docs/charts/certificate.svg: `python docs/charts/certificate.py` (another path: as the argument).

A small dense protocol on the oracle that is worst for it, played: 1 % of the devices attack, the others' gradients are
-c sum(theta) in every coordinate. The bounds come from `sparsefed.theory`, the attack from this file's own loop.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, TypedDict

import altair as alt
import vl_convert

from sparsefed.reports.lines import CONFIG, LEGEND
from sparsefed.theory.radius import capped, closed_form, paper_closed_form, recursion
from sparsefed.theory.threat_schedule import ThreatSchedule, uniform

D, RATE, CLIP_NORM, SHARE, SLOPE, ROUNDS = 100, 0.02, 1.0, 0.01, 0.5, 24  # w c = 50
LINES = {  # name: colour, dash
    "sound closed form": ("#d55e00", (8, 3)),
    "recursion": ("#0072b2", (1, 0)),
    "recursion, capped by the clip norm": ("#009e73", (1, 0)),
    "the paper's closed form: not a bound": ("#c0444c", (3, 3)),
}
ATTACK = "an attack"
POWERS = {-2: "0.01", 0: "1", 2: "100", 4: "10 000", 6: "1 million", 8: "100 million", 10: "10 billion"}
OPTIONS: dict[str, Any] = LEGEND | {"columns": 2, "labelLimit": 320}


class Row(TypedDict):
    """A point of the chart."""

    what: str
    round: int
    log10: float


def attack() -> list[float]:
    """The l1 distance after each round. In both runs all coordinates are alike, so one number stands for all d.

    The replaced devices would have pushed one way with all their might, the attackers push the other way.
    """
    models, distances = [0.0, 0.0], []
    for _ in range(ROUNDS):
        for run, sign in enumerate((1, -1)):
            limit = CLIP_NORM / math.sqrt(D)
            honest = -SLOPE / (1 - SHARE) * D * models[run]  # so that SLOPE is the mean over all devices
            clipped = max(-limit, min(limit, honest))
            models[run] -= RATE * ((1 - SHARE) * clipped + SHARE * sign * limit)
        distances.append(D * abs(models[0] - models[1]))
    return distances


def rows() -> list[Row]:
    """All points."""
    found = [Row(what=ATTACK, round=t, log10=math.log10(far)) for t, far in enumerate(attack(), 1)]
    for t in range(1, ROUNDS + 1):
        protocol: ThreatSchedule = uniform(D, None, [RATE] * t, CLIP_NORM, SHARE, SLOPE)
        radii = (bound(protocol) for bound in (closed_form, recursion, capped, paper_closed_form))
        found += [Row(what=name, round=t, log10=radius.log10) for name, radius in zip(LINES, radii, strict=True)]
    return found


def chart() -> Any:
    """Bounds as lines, the attack as points."""
    names, colours, dashes = [*LINES, ATTACK], [c for c, _ in LINES.values()], [list(d) for _, d in LINES.values()]
    legend = alt.Legend(**OPTIONS)
    power = alt.Axis(values=list(POWERS), labelExpr=f"{json.dumps(POWERS)}['' + datum.value]")
    x = alt.X("round:Q", title="Rounds", axis=alt.Axis(grid=False))
    y = alt.Y("log10:Q", title="l1 distance from the benign model", axis=power)
    colour = alt.Color("what:N", scale=alt.Scale(domain=names, range=[*colours, "#222222"]), legend=legend)
    dash = alt.StrokeDash("what:N", scale=alt.Scale(domain=names, range=[*dashes, [2, 4]]), legend=legend)
    every = rows()
    lines, points = (
        alt.Chart(alt.InlineData(values=[row for row in every if (row["what"] == ATTACK) == played]))
        for played in (False, True)
    )
    layers = (
        lines.mark_line(strokeWidth=2).encode(x, y, colour, dash),
        points.mark_point(filled=True, size=26, opacity=1).encode(x, y, colour),
    )
    title = alt.Title(
        "The attack keeps to the recursion until clipping holds it",
        subtitle=f"d = {D}, dense, rate {RATE}, w c = {D * SLOPE:.0f}, clip norm 1, 1 % attackers. "
        "No attack gets above a sound bound.",
    )
    return alt.layer(*layers).properties(width=640, height=340, title=title).configure(**CONFIG)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    drawn = chart().to_dict()
    if path.suffix == ".png":
        path.write_bytes(vl_convert.vegalite_to_png(drawn, scale=2))
    else:
        path.write_text(vl_convert.vegalite_to_svg(drawn), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
