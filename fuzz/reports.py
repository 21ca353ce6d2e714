"""Forged and honest reports to secure aggregation, thousands of them: python -m fuzz.reports --forged 10000.

No forged report may be accepted, no honest one refused, and nothing may raise. Honest ones are at the bound exactly as
often as not; forged ones take every kind of forgery in turn, with norms from just above the bound to far beyond it.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sparsefed.core.threat import FORGERIES, Forgery
from sparsefed.secure import two_servers
from sparsefed.secure.circuit import Circuit, circuit_for, largest_bound
from sparsefed.secure.field import FIELDS, Integers
from sparsefed.secure.forgery import forged
from sparsefed.secure.sealing import new_key, public_key

COHORT = 50
D = 64
SPARE = 14  # coordinates of a vector that make its norm exact: the largest squares that fit, one after the other


@dataclass
class Reports:
    """The servers of a run of many rounds, and what they decided."""

    circuit: Circuit
    seed: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._leader, helper = new_key(), new_key()
        self._helper = two_servers.Helper(helper)
        self._keys, self._run, self._round = (public_key(self._leader), public_key(helper)), secrets.token_bytes(16), 0
        self._nonces: set[bytes] = set()
        self._draw = np.random.default_rng(self.seed)

    def forge(self, count: int) -> None:
        """Send forged reports among a few honest ones, whose sum must not change."""
        kinds = [FORGERIES[number % len(FORGERIES)] for number in range(count)]
        for cohort in _cut(kinds):
            self._play([*cohort, None, None])

    def honest(self, count: int) -> None:
        """Send honest reports; every other one has exactly the largest norm."""
        for cohort in _cut([None] * count):
            self._play(cohort)

    def _play(self, kinds: list[Forgery | None]) -> None:
        self._round += 1
        task = two_servers.RoundTask(self.circuit, self._run, self._round, *self._keys, least=1)
        leader, expected, earlier = two_servers.Leader(task, self._leader, self._nonces), [], b""
        total = np.zeros(self.circuit.d, np.int64)
        for sender, kind in sorted(enumerate(kinds), key=lambda pair: pair[1] is not None):
            if kind is None:
                values = self.vector(at_the_bound=bool(sender % 2))
                earlier = two_servers.upload(task, sender, values)
                expected.append(sender)
                total += values
                leader.receive(sender, earlier)
            elif kind == "replay":
                leader.receive(sender, earlier)
            else:
                leader.receive(sender, forged(kind, task, sender, self.too_long(), self._draw))
        outcome = leader.finish(self._helper.answer(task, leader.request()))
        self._judge(kinds, expected, outcome, outcome.total is not None and np.array_equal(outcome.total, total))

    def _judge(
        self, kinds: list[Forgery | None], expected: list[int], outcome: two_servers.Outcome, exact: bool
    ) -> None:
        for sender, kind in enumerate(kinds):
            verdict = "accepted" if sender in outcome.accepted else "refused"
            self.counts[kind or "honest", verdict] += 1
            if (sender in outcome.accepted) != (sender in expected):
                why = outcome.rejected.get(sender, outcome.problem)
                self.wrong.append(f"round {self._round}: {kind or 'honest'} report {verdict} {why}")
        if not exact:
            self.wrong.append(f"round {self._round}: the sum is not that of the honest reports {outcome.problem}")

    def vector(self, at_the_bound: bool) -> Integers:
        """Return a vector with a norm of at most the bound, or of exactly the bound."""
        left, values = self.circuit.square, np.zeros(self.circuit.d, np.int64)
        if not at_the_bound:
            drawn = self._draw.normal(size=self.circuit.d)
            return np.trunc(drawn * (self.circuit.bound / np.linalg.norm(drawn))).astype(np.int64)
        for place in range(self.circuit.d):
            most = math.isqrt(left)
            values[place] = most if place >= self.circuit.d - SPARE else int(self._draw.integers(most + 1))
            left -= int(values[place]) ** 2
        assert left == 0
        signed: Integers = values * self._draw.choice([-1, 1], self.circuit.d)
        return signed

    def too_long(self) -> Integers:
        """Return a vector beyond the bound: by a squared norm of 1, by a little, or by far."""
        values = self.vector(at_the_bound=True)
        if self._draw.random() < 0.5:
            place = int(np.argmin(np.abs(values)))
            values[place] += 1 if values[place] >= 0 else -1
            return values
        return np.rint(values * float(self._draw.choice([1.01, 2.0, 10.0, 100.0]))).astype(np.int64)


def _cut(kinds: list[Forgery] | list[None]) -> Iterator[list[Forgery | None]]:
    for start in range(0, len(kinds), COHORT):
        yield list(kinds[start : start + COHORT])


def main() -> int:
    """Send the reports and print what became of them; return 1 if one verdict was wrong."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.reports", description=__doc__)
    parser.add_argument("--forged", type=int, default=10_000)
    parser.add_argument("--honest", type=int, default=10_000)
    parser.add_argument("--field", choices=sorted(FIELDS), default="field32")
    parser.add_argument("--d", type=int, default=D)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen, started = FIELDS[options.field], time.process_time()
    reports = Reports(circuit_for(chosen, options.d, largest_bound(chosen)), options.seed)
    reports.forge(options.forged)
    reports.honest(options.honest)
    for kind in sorted({kind for kind, _ in reports.counts}):
        print(f"{kind:12} accepted {reports.counts[kind, 'accepted']:6}  refused {reports.counts[kind, 'refused']:6}")
    print("\n".join(reports.wrong[:20]) or f"no wrong verdict, in {time.process_time() - started:.0f} s of cpu")
    return 1 if reports.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
