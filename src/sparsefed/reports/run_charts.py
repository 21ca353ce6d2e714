"""The charts of runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

import altair as alt

from sparsefed.core.errors import RunError
from sparsefed.core.types import RunRecord
from sparsefed.reports.lines import GREY, MOST_LINES, PALETTE, Band, Stroke, crowd, drawn, log_axis, points_each, stroke
from sparsefed.reports.pareto import fronts
from sparsefed.reports.tradeoff import tradeoffs
from sparsefed.results.groups import facts, frozen, grouped, told_apart
from sparsefed.results.matrix import matrices
from sparsefed.results.numbers import Curve, binned, curve, percent, perplexity, picked, times
from sparsefed.results.summary import labels, measured_key

WHO = {  # the norms that are drawn, by the key of a row
    "attackers": ("attacker_norm", Stroke("#c2357a", (1, 0))),
    "honest devices": ("honest_norm", Stroke(GREY, (1, 0))),
    "server's limit": ("budget", Stroke(PALETTE[0], (4, 5))),
}
MOST_NORMS = 6  # up to so many runs have a chart of norms each; more share one of the ratios


def charts(runs: Sequence[RunRecord]) -> dict[str, alt.LayerChart]:
    """Return the charts that these runs have numbers for, by names that can be part of a file name.

    `test-accuracy`, `test-perplexity` (text), `attack-accuracy`; `pareto-1`, ... (one per setting); `k-1`,
    `clip-norm-1`, ... (runs that differ in these alone); `attack-landed`; `norms-1`, `norms-2`, ... (one per run, on
    one scale) or `norm-ratio` (many runs); `clipped`.
    """
    check(runs)
    every = {
        "test-accuracy": _shares(runs, "test_accuracy", "Test accuracy", "How often the model is right on test data"),
        "test-perplexity": _perplexity(runs),
        "attack-accuracy": _shares(runs, "attack_accuracy", "Attack accuracy", "How often the attackers get their way"),
        **{f"pareto-{i}": chart for i, chart in enumerate(fronts(matrices(runs)), start=1)},
        **tradeoffs(runs),
        "attack-landed": _shares(runs, "attack_landed", "Landed", "How much of what attackers sent reached the model"),
        **({"norm-ratio": _norm_ratios(runs)} if len(runs) > MOST_NORMS else _norms(runs)),
        "clipped": _shares(runs, "clipped", "Updates clipped", "How many updates were longer than the server allows"),
    }
    return {name: chart for name, chart in every.items() if chart is not None}


def check(runs: Sequence[RunRecord]) -> None:
    """Raise a `RunError` if there is nothing to report on."""
    if not runs:
        raise RunError("there is nothing to report on: no run was given; name at least one run folder")
    if empty := [run.name for run in runs if not run.rows]:
        raise RunError(f"no finished round yet in: {', '.join(empty)}; report on it after its first round")


def _shares(runs: Sequence[RunRecord], key: str, what: str, title: str) -> alt.LayerChart | None:
    """Draw a share between 0 and 1 against the round, one line per run."""
    # Accuracies are shown as measured; shares of a small cohort jitter, so neighbours are binned.
    thin = picked if key.endswith("accuracy") else binned
    curves = [thin(curve(run.rows, measured_key(run, key)), points_each(len(runs))) for run in runs]
    below = any(value < 0 for line in curves for _, value in line)  # a model that explains less than nothing
    scale = alt.Scale(domain=[0, 1], clamp=True) if below else alt.Scale(domain=[0, 1])
    y = alt.Y("value:Q", title=what, axis=alt.Axis(format=".0%"), scale=scale)
    return _curves(runs, curves, y, percent, what, title)


def _perplexity(runs: Sequence[RunRecord]) -> alt.LayerChart | None:
    """Draw the perplexity of runs on text, one line per run."""
    curves = [picked(curve(run.rows, "test_perplexity"), points_each(len(runs))) for run in runs]
    y, title = _log_axis(curves, "Perplexity (log)", "~s"), "How sure the model is of the next token"
    return _curves(runs, curves, y, perplexity, "Test perplexity", title)


def _norm_ratios(runs: Sequence[RunRecord]) -> alt.LayerChart | None:
    """Draw the ratio of attackers' to honest update norms, one line per run."""
    curves = []
    for run in runs:
        honest = {t: norm for t, norm in curve(run.rows, "honest_norm") if norm}
        sent = [(t, norm) for t, norm in curve(run.rows, "attacker_norm") if norm > 0 and t in honest]
        curves.append(binned([(t, norm / honest[t]) for t, norm in sent], points_each(len(runs))))
    y, title = _log_axis(curves, "Attacker norm / honest norm (log)", "~g"), "How long the attackers' updates are"
    return _curves(runs, curves, y, times, "Attacker norm over honest norm", title)


def _log_axis(curves: Iterable[Curve], title: str, format: str) -> alt.Y:
    values = [value for points in curves for _, value in points]
    return log_axis(values or [1.0], title, format)  # without values nothing is drawn


def _curves(
    runs: Sequence[RunRecord], curves: Sequence[Curve], y: alt.Y, write: Callable[[float], str], what: str, title: str
) -> alt.LayerChart | None:
    """Draw one curve per run, if there are any; each is named, or coloured by family if there are many."""
    if seeds := _over_seeds(runs, curves):
        means, bands = seeds
        spread = "; of several seeds the mean, and a band from the lowest to the highest"
        heading = alt.Title(title, subtitle=textwrap.wrap(f"{what} by round{spread}: {_ends(means, write)}.", 100))
        return drawn(means, [stroke(i) for i in range(len(means))], y, write, heading, bands)
    names = labels(runs)
    lines = {label: points for label, points in zip(names, curves, strict=True) if points}
    if not lines:
        return None
    heading = alt.Title(title, subtitle=textwrap.wrap(f"{what} by round: {_ends(lines, write)}.", 100))
    if len(runs) > MOST_LINES:
        return crowd(lines, dict(zip(names, families(runs), strict=True)), y, heading)
    # A run looks the same in every chart, also where others are missing.
    strokes = [stroke(i) for i, label in enumerate(names) if label in lines]
    return drawn(lines, strokes, y, write, heading)


def _over_seeds(runs: Sequence[RunRecord], curves: Sequence[Curve]) -> tuple[dict[str, Curve], dict[str, Band]] | None:
    """Return the mean and the band of runs that differ in the seed alone, by name; None if there are no such runs."""
    known = [(run, points) for run, points in zip(runs, curves, strict=True) if points]
    alike = grouped((frozen(facts(run)) for run, _ in known), known)
    if not 0 < len(alike) < len(known) or len(alike) > MOST_LINES:
        return None
    if any(len({run.config.get("seed") for run, _ in members}) < len(members) for members in alike.values()):
        return None  # runs that differ in nothing that is known, such as copies
    firsts = [members[0][0] for members in alike.values()]
    names = told_apart([(labels([run])[0], facts(run)) for run in firsts])
    means: dict[str, Curve] = {}
    bands: dict[str, Band] = {}
    for name, members in zip(names, alike.values(), strict=True):
        at = [dict(points) for _, points in members]
        rounds = sorted(set.intersection(*map(set, at)))
        label = f"{name} ({len(members)} seeds)" if len(members) > 1 else name
        means[label] = [(t, fmean(each[t] for each in at)) for t in rounds]
        if len(members) > 1:
            bands[label] = [(t, min(each[t] for each in at), max(each[t] for each in at)) for t in rounds]
    return (means, bands) if all(means.values()) else None  # seeds that have no round in common: a line each


def _ends(lines: Mapping[str, Curve], write: Callable[[float], str]) -> str:
    if len(lines) <= MOST_LINES:
        return "; ".join(f"{label} ends at {write(points[-1][1])}" for label, points in lines.items())
    (low, least), *_, (high, most) = sorted((points[-1][1], label) for label, points in lines.items())
    return f"{len(lines)} runs end between {write(low)} ({least}) and {write(high)} ({most})"


def families(runs: Sequence[RunRecord]) -> list[str]:
    """Return what many runs are coloured by: the defense, or the attack if all have one defense."""
    for kind in ("defense", "attack"):
        named = [str((run.config.get(kind) or {}).get("name", "none")) for run in runs]
        if len(set(named)) > 1:
            return named
    return ["every run"] * len(runs)


def _norms(runs: Sequence[RunRecord]) -> dict[str, alt.LayerChart]:
    """Draw the norms of updates, one chart per run, all on one logarithmic scale."""
    most, every = points_each(len(WHO)), []
    for run in runs:
        positive = {who: [(t, v) for t, v in curve(run.rows, key) if v > 0] for who, (key, _) in WHO.items()}
        every.append({who: binned(points, most) for who, points in positive.items() if points})
    y = _log_axis((points for lines in every for points in lines.values()), "l2 norm of an update (log)", "~g")
    charts = {}
    for i, (name, lines) in enumerate(zip(labels(runs), every, strict=True), start=1):
        medians = ", ".join(f"{who} {median(value for _, value in points):.3g}" for who, points in lines.items())
        subtitle = f"l2 norms before the server clips, by round; medians: {medians}."
        title = alt.Title(f"How long the updates are: {name}", subtitle=subtitle)
        if lines:
            charts[f"norms-{i}"] = drawn(lines, [WHO[who][1] for who in lines], y, "{:.3g}".format, title)
    return charts
