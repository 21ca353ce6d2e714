"""The command line of the fuzzing targets; see `fuzz`."""

from __future__ import annotations

import argparse
import sys
import time

from fuzz import driver


def main() -> int:
    """Run a group of targets; return 1 if anything was found."""
    options = _parser().parse_args()
    if options.case is not None:
        return _repeat(options.group, options.seed, options.case)
    if options.guided:
        from fuzz import guided

        return guided.run(options.group, options.seed, options.seconds or 60.0)
    started = time.monotonic()
    kept = len(driver.Group(options.group).kept)
    seconds = 60.0 if options.seconds is None and options.cases is None else options.seconds
    tally = driver.run(options.group, options.seed, driver.numbers(kept, options.cases, seconds), _show)
    _print(tally, time.monotonic() - started)
    return 1 if tally.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Feed damaged and hostile inputs to SparseFed.")
    parser.add_argument("group", choices=sorted(driver.GROUPS))
    parser.add_argument("--seconds", type=float, help="how long to go on (60 without --cases)")
    parser.add_argument("--cases", type=int, help="how many cases to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat the case of this number, in this process")
    parser.add_argument("--guided", action="store_true", help="let atheris choose inputs by what they cover")
    return parser


def _repeat(group: str, seed: int, number: int) -> int:
    case = driver.Group(group).case(seed, number)
    print(f"{case.target}: {case.description}", flush=True)
    outcome = driver.judged(case)
    print(outcome.verdict, outcome.detail)
    return 1 if outcome.verdict == "failed" else 0


def _show(outcome: driver.Outcome) -> None:
    print(f"case {outcome.number}, {outcome.target}: {outcome.description}\n{outcome.detail}\n", flush=True)


def _print(tally: driver.Tally, seconds: float) -> None:
    print(f"{'target':24} accepted  refused   failed")
    for target in sorted({target for target, _ in tally.counts}):
        counts = [tally.counts[target, verdict] for verdict in ("accepted", "refused", "failed")]
        print(f"{target:24} " + " ".join(f"{count:8}" for count in counts))
    print(
        f"{sum(tally.counts.values())} cases in {seconds:.0f} s, {len(tally.findings)} findings; "
        f"at most {tally.memory / 1e6:.0f} MB and {tally.slowest:.1f} s ({tally.slow})"
    )


if __name__ == "__main__":
    sys.exit(main())
