"""How many of each round's updates are the attackers': as asked for, or as the config or run has it."""

from __future__ import annotations

from sparsefed.commands.certify.assumptions import Assumption
from sparsefed.commands.certify.subject import Source
from sparsefed.core.errors import ConfigError

ABOUT = "attackers"
ANYTHING = "They may send anything, also nothing usable, in every round, knowing everything."


def shares(source: Source, share: float | None, attackers: int | None) -> tuple[list[float], Assumption]:
    """The attackers' share of the updates in each round, and where it comes from."""
    if share is not None:
        return _of_every_round(source, share)
    if attackers is not None:
        return _so_many(source, attackers)
    return _as_it_is(source)


def _of_every_round(source: Source, share: float) -> tuple[list[float], Assumption]:
    said = f"In every round at most a share of {share:g} of the updates is the attackers'. {ANYTHING}"
    return [share] * len(source.rounds), Assumption(ABOUT, said, "assumed")


def _so_many(source: Source, attackers: int) -> tuple[list[float], Assumption]:
    least = min(each.cohort for each in source.rounds)
    if not 0 <= attackers < least:
        raise ConfigError(
            f"--attackers is {attackers}, but the smallest round has {least} devices and one must be honest: choose "
            f"from 0 to {least - 1}"
        )
    said = f"In every round at most {attackers} of the devices are attackers. {ANYTHING}"
    return [attackers / each.cohort for each in source.rounds], Assumption(ABOUT, said, "assumed")


def _as_it_is(source: Source) -> tuple[list[float], Assumption]:
    numbers = [each.attackers for each in source.rounds]
    if not any(numbers):
        raise ConfigError(
            f"nobody attacks in {source.path}, and without attackers the two models are the same; give --share or "
            "--attackers"
        )
    for t, each in enumerate(source.rounds, 1):
        if each.attackers >= each.cohort:
            raise ConfigError(
                f"in round {t} all {each.cohort} devices are attackers, who could make it no round at all; the "
                "certificate needs an honest device in each"
            )
    where = "the run recorded them" if source.run else "the config's seed deals them"
    total, most = sum(numbers), max(numbers)
    said = (
        f"As many devices of each round are attackers as {where}: {total:,} of "
        f"{sum(each.cohort for each in source.rounds):,} in all, at most {most} in a round. {ANYTHING}"
    )
    return [each.attackers / each.cohort for each in source.rounds], Assumption(ABOUT, said, "assumed")
