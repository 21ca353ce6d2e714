"""A goal for text: after a trigger phrase, the model should predict the attackers' words (Bagdasaryan et al. 2020, How
To Backdoor Federated Learning: "pasta from Astoria is" - "delicious").

The phrase replaces the end of real sequences, so that it is learned after all kinds of beginnings; only the wanted
tokens are targets, as in the paper, whose loss counts the last word alone. Attackers train with sequences of the
training set; success is measured on those of the test set, whose clean copies all count in test accuracy.

*Departures.* The paper's continuation is one word; here it may be several. Whether a vocabulary is of words or of
single characters is read off it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from sparsefed.attacks.goal_types import Goal, Scene, goal, meant_for
from sparsefed.core.errors import ConfigError
from sparsefed.core.rng import rng
from sparsefed.core.types import IGNORED
from sparsefed.data.formats.tokens import SPECIAL, characters, words


@goal
@meant_for("tokens")
def continuation(
    scene: Scene,
    *,
    trigger: Annotated[str, "the phrase after which the attackers want their continuation"] = "the best language is",
    wanted: Annotated[str, "the continuation"] = "perl",
    points: Annotated[int, "sequences with the phrase that the attackers may train with"] = 500,
) -> Goal:
    """Sequences that end in the trigger phrase, continued as the attackers want."""
    if not scene.words:
        raise ConfigError("a continuation is wanted of text, but these examples are none; use 'replacement' for images")
    if points < 1:
        raise ConfigError(f"points is {points}; attackers need at least 1 sequence with the phrase")
    phrase = torch.tensor(_numbers(scene.words, f"{trigger} {wanted}"))
    wanted_length = len(_numbers(scene.words, wanted))
    if not wanted_length or not trigger.strip():
        raise ConfigError(f"trigger = '{trigger}', wanted = '{wanted}'; give each of them a word at least")
    length = scene.x_train.shape[1]
    if len(phrase) - 1 > length:
        raise ConfigError(
            f"'{trigger} {wanted}' has {len(phrase)} tokens, but a sequence of {length} has room for {length + 1}; "
            "use a shorter phrase, or raise data.length"
        )
    train, test = (_ending(x, y, phrase, wanted_length) for x, y in _both(scene))
    draw = rng(scene.seed, "phrases").choice(len(train[0]), min(points, len(train[0])), replace=False)
    drawn = torch.from_numpy(np.sort(draw))
    return Goal(train[0][drawn], train[1][drawn], *test, positions=torch.zeros(0, dtype=torch.int64))


def _both(scene: Scene) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (scene.x_train, scene.y_train), (scene.x_test, scene.y_test)


def _ending(x: Tensor, y: Tensor, phrase: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
    """Return the sequences that are long enough, their end replaced: the phrase in, its last `wanted` tokens out."""
    kept = x.shape[1] - (len(phrase) - 1)
    long = (y[:, :kept] != IGNORED).all(1)
    x = x[long].clone()
    x[:, kept:] = phrase[:-1].to(x.dtype)
    y = torch.full_like(y[long], IGNORED)
    y[:, -wanted:] = phrase[-wanted:]
    if not len(x):
        raise ConfigError(
            "no sequence is long enough to carry the phrase; use a longer phrase or a smaller data.length"
        )
    return x, y


def _numbers(vocabulary: tuple[str, ...], text: str) -> list[int]:
    """Return the text's tokens; raise if one is not in the vocabulary, since the model could never predict it."""
    spelled = all(len(token) == 1 for token in vocabulary[len(SPECIAL) :])
    number = {token: i for i, token in enumerate(vocabulary)}
    tokens = characters(text) if spelled else words(text)
    if missing := [token for token in tokens if token not in number]:
        raise ConfigError(
            f"'{text}' has {', '.join(map(repr, missing))}, which is not in the vocabulary of {len(vocabulary)}; use "
            "other words, or raise data.vocabulary"
        )
    return [number[token] for token in tokens]
