"""How long an audit will take, before it starts: its runs times a measured round; and how to fit it into a time budget.

A few rounds of the config under its own attack are timed in this process with one thread, as a worker has. Rules that
compare all pairs of updates take longer than that, so the estimate is a rough one.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from sparsefed import config as configs
from sparsefed.commands.audit.attack_specs import attack_specs
from sparsefed.commands.audit.defense_specs import Facts, defense_specs
from sparsefed.commands.audit.options import DEMO_DEFENSES, AuditOptions
from sparsefed.commands.audit.plan import matrix_plan, turned
from sparsefed.config import BuiltSimulation
from sparsefed.config.foreign import located
from sparsefed.core.errors import ConfigError, RunError, SparseFedError
from sparsefed.results.numbers import duration
from sparsefed.results.verdict import listed
from sparsefed.runs import write_all

TIMED, LONGEST = 5, 10.0  # rounds that are timed at most, and seconds
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BUDGET = "budget.json"  # what an audit was cut to, so that the same command goes on with the same runs


@dataclass(frozen=True)
class AuditEstimate:
    """What an audit consists of, and how long it will take."""

    runs: int
    rounds: int  # of each
    seconds: float  # of all of it, with so many runs at a time; infinite if a round failed
    jobs: int
    defenses: tuple[str, ...]
    attacks: tuple[str, ...]
    failure: str = ""  # of the round that was to be timed

    @property
    def sentence(self) -> str:
        took = f"about {duration(self.seconds)}, roughly" if math.isfinite(self.seconds) else ""
        took = took or f"how long is not known, because {self.failure}"
        return f"Up to {self.runs} runs of {self.rounds} rounds, {self.jobs} at a time: {took}."


def estimate(options: AuditOptions, jobs: int) -> AuditEstimate:
    """Return what the audit consists of, and how long it will take on this machine."""
    built = configs.build(options.config)
    try:
        return _estimate(options, jobs, len(built.theta), seconds_a_round(built))
    except RunError as error:  # the audit says which runs failed, and goes on with the others
        failed = _estimate(options, jobs, len(built.theta), math.inf)
        return replace(failed, failure=str(error).rstrip("."))


def seconds_a_round(built: BuiltSimulation) -> float:
    """Return the time of a round, after a first one that pays for compiling.

    Raises:
        RunError: The round fails, as the run itself will; the message has the reason.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reports = built.reports(built.begin())
        next(reports)
        began, done = time.monotonic(), 0
        for _ in islice(reports, TIMED):
            done += 1
            if time.monotonic() - began > LONGEST:
                break
        return (time.monotonic() - began) / max(done, 1)
    except Exception as error:  # a rule or model of the user's
        reason = str(error) if isinstance(error, SparseFedError) else located(error)
        raise RunError(f"a round of this config fails: {reason}") from error
    finally:
        torch.set_num_threads(threads)


def _estimate(options: AuditOptions, jobs: int, d: int, seconds: float) -> AuditEstimate:
    attacks = attack_specs(options).chosen
    defenses = defense_specs(options, Facts(d, 1.0, 1.0)).chosen
    plan = matrix_plan("audit", options, defenses, attacks)
    runs = sum(len(group.trials) + group.coming for group in plan.groups)
    if options.sensitivity:
        dials = sorted((len(list(turned(spec.table, d))) for spec in defenses), reverse=True)
        runs += 2 * sum(dials[:3])  # of SparseFed, clipping and the recommended one, with and without attackers
    runs += options.budget
    rounds = options.config.rounds
    took = runs * rounds * seconds / min(jobs, max(runs, 1))
    names = tuple(spec.name for spec in defenses), tuple(spec.name for spec in attacks)
    return AuditEstimate(runs, rounds, took, jobs, *names)


# --- a time budget ---------------------------------------------------------------------------------------------------


def seconds_of(text: str) -> float:
    """Return a time such as 30m, 1.5h or 90s in seconds.

    >>> seconds_of("30m"), seconds_of("1.5h")
    (1800.0, 5400.0)
    """
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", text)
    if parts is None or not float(parts[1]):
        raise ConfigError(f"--time-budget is '{text}', but takes a number with a unit, such as 90s, 30m, 2h or 1d")
    return float(parts[1]) * UNITS[parts[2]]


def fitted(options: AuditOptions, jobs: int, budget: str, out: Path) -> tuple[AuditOptions, str]:
    """Return an audit that fits into a time budget, and a sentence on what was cut; the same for the same folder.

    Left out are, one after the other: the variation of k and clip_norm, seeds, the tuning of a defense, variants of
    attacks, further attacks, further defenses, until the estimate fits.

    Raises:
        ConfigError: Not even the smallest audit fits, or a round fails, so that nothing is known about the time.
    """
    limit = seconds_of(budget)
    if (known := _decided(out, options, budget)) is not None:
        return known
    built = configs.build(options.config)
    try:
        d, seconds = len(built.theta), seconds_a_round(built)
    except RunError as error:
        raise ConfigError(f"--time-budget is {budget}, but how long an audit takes is not known: {error}") from error
    cuts: list[str] = []
    for cut, smaller in _smaller(options):
        cuts += [cut] if cut else []
        took = _estimate(smaller, jobs, d, seconds).seconds
        if took <= limit:
            words = f"To fit into {budget}: {listed(cuts)}." if cuts else f"All of it fits into {budget}."
            _decide(out, options, budget, smaller, words)
            return smaller, words
    raise ConfigError(
        f"--time-budget is {budget}, but the smallest audit of this config takes about {duration(took)}; give more "
        "time, or fewer rounds or a smaller cohort"
    )


def _smaller(options: AuditOptions) -> Iterator[tuple[str, AuditOptions]]:
    """Yield the audit, then ever smaller ones, each with what was cut last."""
    yield "", options
    if options.sensitivity:
        yield "k and clip_norm are not varied", (options := replace(options, sensitivity=False))
    if options.seeds > 1:
        yield "one seed", (options := replace(options, seeds=1))
    if options.budget:
        yield "no defense is tuned", (options := replace(options, budget=0))
    while options.trials > 1:
        options = replace(options, trials=options.trials - 1)
        yield f"{options.trials} variant{'s' * (options.trials > 1)} of each attack", options
    if options.attack_names == () and not options.suite:
        assert options.config.attack is not None  # checked by AuditOptions
        yield "the config's attack alone", (options := replace(options, attacks=[options.config.attack.name]))
    if options.defense_names == ():
        yield f"{len(DEMO_DEFENSES)} defenses", replace(options, defenses=DEMO_DEFENSES)


def _decided(out: Path, options: AuditOptions, budget: str) -> tuple[AuditOptions, str] | None:
    """Return what an earlier call with the same options decided, if there was one."""
    try:
        kept = json.loads((out / BUDGET).read_text(encoding="utf-8"))
        if kept["asked"] == _asked(options, budget):
            return replace(options, **{key: kept["options"][key] for key in CUT}), str(kept["words"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


CUT = ("defenses", "attacks", "trials", "seeds", "sensitivity", "budget")


def _decide(out: Path, options: AuditOptions, budget: str, smaller: AuditOptions, words: str) -> None:
    kept = {key: getattr(smaller, key) for key in CUT}
    text = json.dumps({"asked": _asked(options, budget), "options": kept, "words": words}, indent=2)
    write_all({out / BUDGET: text + "\n"})


def _asked(options: AuditOptions, budget: str) -> dict[str, Any]:
    given = {key: getattr(options, key) for key in CUT}
    request = {"budget": budget, "config": configs.dump(options.config), **given}
    return dict(json.loads(json.dumps(request)))
