"""Your own attack: the honest mean turned round, and what two of the listed defenses make of it.

In a config beside this file, `attack.name = "own_attack:turned"` is this attack.
"""

from typing import Annotated

from torch import Tensor

from sparsefed.attacks import Knowledge, attack
from sparsefed.attacks.base import granted


@attack(needs={"honest updates"}, search={"strength": "1:1000"})
def turned(knowledge: Knowledge, *, strength: Annotated[float, "times the honest mean"] = 30.0) -> Tensor:
    """Minus the mean of what the others send, made longer."""
    return -strength * granted(knowledge.honest, "honest updates").mean(0)


if __name__ == "__main__":
    from sparsefed.config import build, parse

    for defense in ({"name": "undefended"}, {"name": "trimmed_mean", "f": 3}):
        experiment = build(
            parse(
                {
                    "rounds": 60,
                    "evaluate_every": 60,
                    "data": {"name": "digits", "devices": 100, "partition": "iid"},
                    "model": {"name": "softmax"},
                    "train": {"cohort": 20, "lr": 0.1, "schedule": "constant"},
                    "defense": defense,
                    "threat": {"per_round": 2, "knowledge": ["honest updates"]},
                    "attack": {"name": "own_attack:turned"},
                }
            )
        )
        *_, last = experiment.reports(experiment.begin())
        print(f"{defense['name']}: test accuracy {last.metrics['test_accuracy']:.1%} under attack")
