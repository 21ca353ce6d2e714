"""`without_batchnorm`: every layer is replaced, weights are kept, and examples no longer depend on each other."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefed import Simulation
from sparsefed.core.engine import LocalStep
from sparsefed.core.errors import ConfigError
from sparsefed.core.task import make_task
from sparsefed.engines import fused, loop
from sparsefed.models import without_batchnorm
from sparsefed.models.batchnorm import groups_of
from tests.support.cohorts import by_client
from tests.unit.test_engine import examples


def block(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(width, 8, 3), nn.SyncBatchNorm(8), nn.Flatten()),
        nn.Linear(8 * 16, 12),
        nn.BatchNorm1d(12),
        nn.Linear(12, 4),
    )


def test_nothing_but_batch_norm_changes_and_the_module_given_stays() -> None:
    module = block(16)
    with torch.no_grad():
        module[1].weight.uniform_()  # type: ignore[index]
    before, names = copy.deepcopy(module.state_dict()), [name for name, _ in module.named_parameters()]
    plain = without_batchnorm(module)
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in plain.modules())
    assert [type(plain[i]) for i in (1, 5)] == [nn.GroupNorm] * 2  # type: ignore[index]
    assert isinstance(module[1], nn.BatchNorm2d)  # type: ignore[index]
    assert [name for name, _ in plain.named_parameters()] == names
    assert all(torch.equal(before[name], value) for name, value in plain.state_dict().items())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_an_example_gives_the_same_alone_and_among_others() -> None:
    plain = without_batchnorm(block(16)).train()
    x = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.cat([plain(row[None]) for row in x]), plain(x))
    assert plain(x).std(0).min() > 0  # and is not a constant


def test_the_engines_take_it_and_agree() -> None:
    task, cohort = make_task(without_batchnorm(block(8))), examples((3, 6, 6), [1, 3, 2], 4, 0)
    rows, _ = by_client(fused(task), task.initial(), cohort, LocalStep(1.0, 0.0))
    truth, _ = by_client(loop(task), task.initial(), cohort, LocalStep(1.0, 0.0))
    torch.testing.assert_close(rows, truth, rtol=1e-4, atol=1e-5)


def test_the_refusal_leads_to_a_simulation_that_runs() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    with pytest.raises(ConfigError, match=r"sparsefed\.models\.without_batchnorm"):
        Simulation(module, "digits", devices=20, cohort=5, rounds=2)
    done = Simulation(without_batchnorm(module), "digits", devices=20, cohort=5, rounds=2).run()
    assert done.round == 2


def test_layers_without_weights_frozen_shared_and_narrow_ones_stay_what_they_are() -> None:
    shared = nn.BatchNorm2d(6, eps=1e-3, dtype=torch.float64)
    shared.bias.requires_grad_(False)
    plain = without_batchnorm(nn.ModuleDict({"a": shared, "b": shared, "c": nn.BatchNorm3d(5, affine=False)}))
    assert plain["a"] is plain["b"]  # type: ignore[index]
    assert plain["a"].weight.dtype == torch.float64 and plain["a"].eps == 1e-3  # type: ignore[index]
    assert plain["a"].weight.requires_grad and not plain["a"].bias.requires_grad  # type: ignore[index]
    assert not list(plain["c"].parameters())  # type: ignore[index]
    assert isinstance(without_batchnorm(nn.BatchNorm1d(4).eval()), nn.GroupNorm)
    assert not without_batchnorm(nn.BatchNorm1d(4).eval()).training


@pytest.mark.parametrize(
    ("layer", "words"), [(nn.BatchNorm1d(1), "single feature"), (nn.LazyBatchNorm2d(), "has not seen an example")]
)
def test_what_no_group_norm_can_stand_in_for_is_refused_by_name(layer: nn.Module, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"'0\.1' is a .*{words}"):
        without_batchnorm(nn.Sequential(nn.Sequential(nn.ReLU(), layer)))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4096))
def test_groups_divide_the_channels(channels: int) -> None:
    groups = groups_of(channels)
    assert channels % groups == 0 and groups <= 32 and (groups == 1 or channels // groups >= 4)
    x: Tensor = torch.randn(3, channels, generator=torch.Generator().manual_seed(1))
    assert nn.GroupNorm(groups, channels)(x).abs().max() > 0.1
