"""How much a federated language model knows beyond how frequent each word is.

    python -m benchmarks.perplexity [CONFIG.toml] [key=value ...]

runs a config on text (the packaged `reddit.toml` if none is given) and prints its test perplexity beside that of a
unigram model on the same test tokens.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

import numpy as np

from sparsefed import config as configs
from sparsefed import data
from sparsefed.core.types import IGNORED, Arrays


def unigram(arrays: Arrays) -> float:
    """exp(mean of -log p(token)) over the test targets, p the frequency among the training targets, one added to each
    count so that a token that no training text has is possible too."""
    train, test = (y[y != IGNORED] for y in (arrays.y_train, arrays.y_test))
    counts = np.bincount(train, minlength=len(arrays.classes)) + 1.0
    return float(np.exp(-np.log(counts[test] / counts.sum()).mean()))


def main(arguments: list[str]) -> None:
    """Run, and print a line an evaluation."""
    named = [argument for argument in arguments if "=" not in argument]
    packaged = resources.files("sparsefed").joinpath("config/files/reddit.toml")
    with resources.as_file(packaged) as usual:
        config = configs.read(Path(named[0]) if named else usual, [a for a in arguments if "=" in a])
    experiment = configs.build(config)
    print(f"unigram: perplexity {unigram(data.load(configs.dataset(config))):.1f}", flush=True)
    for report in experiment.reports(experiment.begin()):
        if "test_perplexity" in report.metrics:
            found = report.metrics
            print(
                f"round {found['round']}: perplexity {found['test_perplexity']:.1f}, "
                f"accuracy {found['test_accuracy']:.3f}, {report.seconds:.2f} s for the round",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
