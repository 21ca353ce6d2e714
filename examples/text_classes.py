"""Is a review kind? Texts of different lengths as token numbers, one class each, every device one author.

The reviews are made on the spot; words become numbers by a vocabulary of one's own, and 0 fills up what is short. Run
by itself, it trains with three defenses; `sparsefed.audit(CONFIG)` tries all of them.
"""

import numpy as np
import torch
from torch import Tensor, nn

from sparsefed import Simulation
from sparsefed.data.own import from_arrays

WORDS = {
    "bad": "awful cold dull late rude slow stale weak",
    "good": "bright fresh friendly great kind quick tasty warm",
    "plain": "and at for here room soup table the there today was we",
}
VOCABULARY = ["", "not", *(word for words in WORDS.values() for word in words.split())]
NUMBER = {word: number for number, word in enumerate(VOCABULARY)}


def review(rng: np.random.Generator, author: int, length: int = 12) -> tuple[list[int], str]:
    """Return the token numbers of a review, and what it is: each author prefers words of their own."""
    opinion, text = str(rng.choice(["bad", "good"])), []
    for _ in range(int(rng.integers(4, length // 2))):
        kind = str(rng.choice(["plain", opinion, "good" if opinion == "bad" else "bad"], p=[0.5, 0.4, 0.1]))
        words = WORDS[kind].split()
        denied = ["not"] if kind not in ("plain", opinion) else []  # "not bad" is kind
        text += [*denied, words[int(rng.integers(len(words)) + author) % len(words)]]
    return [NUMBER[word] for word in text] + [0] * (length - len(text)), opinion


rng = np.random.default_rng(0)
authors = np.arange(4000) % 100
texts, opinions = zip(*(review(rng, int(author)) for author in authors), strict=True)
DATA = from_arrays(np.array(texts), list(opinions), users=authors, name="reviews")


class Reader(nn.Module):
    """The mean over a text of what each word, seen with the one before it, contributes."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.words, self.pairs = nn.Embedding(len(VOCABULARY), width), nn.Linear(2 * width, 32)
        self.scores = nn.Linear(32, classes)

    def forward(self, tokens: Tensor) -> Tensor:  # [M, T]
        words = self.words(tokens)
        pairs = torch.cat([words[:, :-1], words[:, 1:]], dim=2)
        return self.scores(self.pairs(pairs).relu().mean(1))  # type: ignore[no-any-return]


def build(shape: tuple[int, ...], classes: int) -> nn.Module:  # noqa: ARG001 - any length will do
    return Reader(classes)


CONFIG = {
    "name": "text-classes",
    "rounds": 60,
    "evaluate_every": 15,
    "data": {"name": "text_classes:DATA", "partition": "by_user"},
    "model": {"name": "text_classes:build"},
    "train": {"cohort": 20, "schedule": "constant", "lr": 1.0},
    "attack": {"name": "pgd", "auxiliary": 20},
    "threat": {"share": 0.1},
}

if __name__ == "__main__":
    for defense in ({"name": "undefended"}, {"name": "clipping"}, {"name": "sparsefed", "k": 40, "clip_norm": 0.2}):
        scores = Simulation.from_config({**CONFIG, "defense": defense}).run().evaluate()
        test, attack = scores["test_accuracy"], scores["attack_accuracy"]
        print(f"{defense['name']:10}  test accuracy {test:.1%}  attack accuracy {attack:.1%}")
