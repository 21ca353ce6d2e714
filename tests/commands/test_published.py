"""Others' models, partitions and attacks, and SparseFed as others have it: what their settings say, and naive twins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsefed.attacks.backdoor_goals import patch
from sparsefed.attacks.goal_types import Goal, Scene
from sparsefed.attacks.pgd import pgd
from sparsefed.commands.reproduce import published, variants
from sparsefed.core.errors import ConfigError
from sparsefed.core.threat import Knowledge
from sparsefed.core.types import Batch, Context
from sparsefed.models.resnet9 import resnet9


def test_models_have_the_sizes_that_are_published() -> None:
    def size(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    image = torch.zeros(2, 1, 28, 28)
    for module, expected in (
        (published.cnn_of_e1((1, 28, 28), 10), 1_199_882),
        (published.two_convolutions((1, 28, 28), 10), 80_202),
        (published.two_convolutions((1, 28, 28), 10, first=20, second=50, hidden=500), 431_080),
    ):
        assert size(module) == expected and module(image).shape == (2, 10)


@given(st.lists(st.integers(0, 9), min_size=30, max_size=60), st.integers(2, 8), st.integers(1, 3))
def test_honest_devices_share_what_there_is_and_the_last_ones_hold_copies(
    labels: list[int], honest: int, byzantine: int
) -> None:
    y = np.array(labels)
    for rule in (published.label_sorted, published.dirichlet_of_honest):
        owned = rule(y, None, honest + byzantine, None, 3, byzantine=byzantine)
        parts = np.split(owned.examples, owned.offsets[1:-1])
        assert len(parts) == honest + byzantine
        assert sorted(np.concatenate(parts[:honest]).tolist()) == list(range(len(y)))
        assert all(len(set(part.tolist())) == len(part) == len(parts[0]) for part in parts[honest:])
    ends = [(int(y[part].min()), int(y[part].max())) for part in np.split(*_cut(y, honest))]
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ends))
    with pytest.raises(ConfigError, match="at least one must be honest"):
        published.label_sorted(y, None, 2, None, 0, byzantine=2)


def _cut(y: np.ndarray, honest: int) -> tuple[np.ndarray, np.ndarray]:
    owned = published.label_sorted(y, None, honest + 1, None, 0, byzantine=1)
    return owned.examples[: owned.offsets[honest]], owned.offsets[1:honest]


def knowledge(own: Batch, seen: list[Batch], budget: float = math.inf) -> Knowledge:
    """What attackers of two devices know that train on what they are given; the last batch is kept in `seen`."""

    def train(batch: Batch) -> Tensor:
        seen.append(batch)
        return torch.ones(2, 5)

    gradient = lambda theta, x, y: theta  # noqa: ARG005, E731
    return Knowledge(1, torch.zeros(5), budget, gradient, 0, attackers=2, own=own, train=train)


def test_labels_become_one_but_for_those_that_are_spared() -> None:
    y = torch.arange(10)
    seen: list[Batch] = []
    attack = published.labels_to_one.__wrapped__(None, target=2, spared=(9,))
    sent = attack(knowledge(Batch(torch.zeros(10, 4, 4, 1, dtype=torch.uint8), y, np.array([5, 5])), seen, budget=1.0))
    assert seen[0].y.tolist() == [2] * 9 + [9]
    assert torch.linalg.vector_norm(sent, dim=1).tolist() == pytest.approx([1.0, 1.0])


def scene(n: int = 400, side: int = 6) -> Scene:
    x = torch.randint(0, 200, (n, side, side, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Scene(x, torch.arange(n) % 10, x, torch.arange(n) % 10, 10, 0)


@pytest.mark.parametrize("corner", ["top left", "bottom right"])
def test_a_share_of_the_examples_is_stamped_in_the_corner_and_renamed(corner: str) -> None:
    place = scene()
    goal: Goal = patch.__wrapped__(place, target=1, size=3, corner=corner)  # type: ignore[arg-type]
    seen: list[Batch] = []
    attack = published.stamped_training.__wrapped__(goal, poisoned=0.15)
    attack(knowledge(Batch(place.x_train, place.y_train, np.array([200, 200])), seen))
    changed = (seen[0].x != place.x_train).flatten(1).any(1)
    assert 0.08 < float(changed.double().mean()) < 0.22
    assert set(seen[0].y[changed].tolist()) == {1} and torch.equal(seen[0].y[~changed], place.y_train[~changed])
    square = seen[0].x[changed][:, :3, :3] if corner == "top left" else seen[0].x[changed][:, -3:, -3:]
    assert bool((square == 255).all())
    rest = seen[0].x[changed].clone()
    (rest[:, :3, :3] if corner == "top left" else rest[:, -3:, -3:]).zero_()
    kept = place.x_train[changed].clone()
    (kept[:, :3, :3] if corner == "top left" else kept[:, -3:, -3:]).zero_()
    assert torch.equal(rest, kept)


def test_a_corner_that_is_none_and_a_goal_without_a_trigger_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown corner 'middle'.*top left"):
        patch.__wrapped__(scene(), corner="middle")  # type: ignore[arg-type]
    goal = Goal(torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(0))
    with pytest.raises(ConfigError, match="no trigger"):
        published.stamped_training.__wrapped__(goal)


# --- SparseFed as others have it -------------------------------------------------------------------------------------

vectors = st.lists(st.lists(st.integers(-5, 5), min_size=6, max_size=6), min_size=1, max_size=5)


@given(vectors, st.integers(1, 6))
def test_unmasked_momentum_adds_what_was_applied_again(rounds: list[list[int]], k: int) -> None:
    from sparsefed.defenses.options import CommonOptions

    server = variants.unmasked.__wrapped__(k).server(CommonOptions(rho=0.5))
    state, momentum, memory = server.init(6), [0.0] * 6, [0.0] * 6
    for number, update in enumerate(rounds, 1):
        flow = server.step(state, torch.tensor(update, dtype=torch.float32), Context(number, 0.1, 0))
        state = flow.state
        momentum = [0.5 * r + u for r, u in zip(momentum, update, strict=True)]
        memory = [w + r for w, r in zip(memory, momentum, strict=True)]
        chosen = sorted(range(6), key=lambda i: (-abs(memory[i]), i))[:k]
        assert flow.vector.tolist() == pytest.approx([memory[i] if i in chosen else 0.0 for i in range(6)])
        memory = [0.0 if i in chosen else memory[i] for i in range(6)]


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20), st.sampled_from([0.05, 0.3, 0.7, 0.95, 1.0]))
def test_a_share_keeps_the_largest_or_the_smallest(values: list[int], share: float) -> None:
    vector, d = torch.tensor(values, dtype=torch.float32), len(values)
    count = max(1, round(share * d))
    largest = sorted(range(d), key=lambda i: (-abs(values[i]), i))
    for wanted, keep in ((largest[:count], True), (largest[d - count :], False)):
        stage = variants.kept(share, largest=keep)
        applied = stage.step(stage.init(d), vector, Context(1, 0.1, 0)).vector
        assert applied.tolist() == [values[i] if i in wanted else 0 for i in range(d)]
    with pytest.raises(ConfigError, match="share is 0"):
        variants.kept(0.0, largest=True)


# --- the authors' variants -------------------------------------------------------------------------------------------


def test_steps_projected_to_l_and_stretched_to_what_is_enforced() -> None:
    """As the authors' code under adaptive clipping: in the direction of a budget of L, as long as is allowed."""
    goal = Goal(torch.zeros(8, 3), torch.zeros(8), torch.zeros(1), torch.zeros(1), torch.zeros(0))

    def known(budget: float) -> Knowledge:
        curved = lambda theta, x, y: theta * torch.tensor([1.0, 3.0, -2.0]) + 1  # noqa: ARG005, E731
        return Knowledge(1, torch.tensor([1.0, -2.0, 0.5]), budget, curved, 0)

    tight = pgd.__wrapped__(goal, epochs=4, batch=4, step=0.1)(known(0.2))
    theirs = pgd.__wrapped__(goal, epochs=4, batch=4, step=0.1, radius=5.0)(known(0.2))
    wide = pgd.__wrapped__(goal, epochs=4, batch=4, step=0.1)(known(5.0))
    assert float(theirs.norm()) == pytest.approx(0.2) == float(tight.norm())
    assert torch.allclose(theirs / theirs.norm(), wide / wide.norm(), atol=1e-6)
    assert float(torch.cosine_similarity(theirs, tight, 0)) < 0.99
    for radius, to_budget in ((0.0, True), (math.inf, True), (5.0, False)):
        with pytest.raises(ConfigError, match="radius is"):
            pgd.__wrapped__(goal, radius=radius, to_budget=to_budget)


def test_the_authors_pool_a_corner_of_the_last_map_on_fashion_mnist() -> None:
    torch.manual_seed(0)
    whole, corner = resnet9((1, 28, 28), 10, width=4), resnet9((1, 28, 28), 10, width=4, last_pool=2)
    corner.load_state_dict(whole.state_dict())
    x = torch.randn(8, 1, 28, 28)
    assert corner(x).shape == (8, 10) and not torch.allclose(whole(x), corner(x))
    with pytest.raises(ConfigError, match="must leave one number"):
        resnet9((3, 32, 32), 10, width=4, last_pool=2)
