"""Any rule as an aggregator of NVFlare: a job in its own simulator ends in the server's bits, without the liar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed here; `make nvflare-test` runs these in an environment")

import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from sparsefed import Server, defenses
from sparsefed.core.errors import ConfigError
from sparsefed.nvflare import RobustAggregator, shapes_of

D, ROUNDS, SITES = 40, 3, 4
LIAR = "site-3"
RULE: dict[str, Any] = {"k": 10, "clip_norm": 1.0}
CLIENT = f'''
import numpy as np
import nvflare.client as flare

flare.init()
site = flare.get_site_name()
while flare.is_running():
    model = flare.receive()
    draw = np.random.default_rng([int(site[-1]), model.current_round])
    change = draw.normal(size={D}).astype(np.float32)
    if site == "{LIAR}":
        change[:] = np.nan
    flare.send(flare.FLModel(params={{"numpy_key": change}}, params_type=flare.ParamsType.DIFF))
'''


def change(site: int, round: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([site, round]).normal(size=D).astype(np.float32)


def sent(params: Any, site: str = "site-1", kind: Any = ParamsType.DIFF) -> FLModel:
    return FLModel(params_type=kind, params=params, meta={"client_name": site})


def aggregator(**options: Any) -> RobustAggregator:
    return RobustAggregator("sparsefed", RULE, shapes={"w": [4, 10]}, **options)


def expected() -> torch.Tensor:
    server = Server(defenses.sparsefed(**RULE), like=torch.zeros(D), mode="fedavg")
    honest = [i for i in range(1, SITES + 1) if f"site-{i}" != LIAR]
    for round in range(ROUNDS):
        server.step(np.stack([-change(i, round) for i in honest]))
    return server.theta


def test_the_order_of_arrival_does_not_matter_and_liars_are_named() -> None:
    made, theta = aggregator(), np.zeros((4, 10), np.float32)
    for round in range(ROUNDS):
        made.reset_stats()
        for i in (4, 2, 1):
            made.accept_model(sent({"w": change(i, round).reshape(4, 10)}, f"site-{i}"))
        made.accept_model(sent({"w": np.full((4, 10), np.nan, np.float32)}, LIAR))
        theta += made.aggregate_model().params["w"]
    assert theta.reshape(-1).tobytes() == expected().numpy().tobytes()
    assert [(round, client, why.reason) for round, client, why in made.refused] == [
        (round, LIAR, "not finite") for round in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("params", "kind", "reason"),
    [
        ({"v": np.zeros((4, 10), np.float32)}, ParamsType.DIFF, "keys"),
        ({"w": np.zeros((4, 11), np.float32)}, ParamsType.DIFF, "shape"),
        ({"w": np.zeros((4, 10))}, ParamsType.DIFF, "dtype"),
        ({"w": [[0.0] * 10] * 4}, ParamsType.DIFF, "dtype"),
        ({"w": np.full((4, 10), 3e38, np.float32)}, ParamsType.DIFF, "too long"),
        ({"w": np.zeros((4, 10), np.float32)}, ParamsType.FULL, "records"),
        ("nonsense", ParamsType.DIFF, "records"),
    ],
)
def test_what_is_wrong_is_refused_by_name(params: Any, kind: Any, reason: str) -> None:
    made = aggregator()
    made.accept_model(sent(params, kind=kind))
    ((_, client, why),) = made.refused
    assert (client, why.reason) == ("site-1", reason)
    assert not made.aggregate_model().params["w"].any()


def test_one_client_has_one_vote() -> None:
    made = aggregator()
    for _ in range(2):
        made.accept_model(sent({"w": np.ones((4, 10), np.float32)}))
    assert [why.reason for _, _, why in made.refused] == ["duplicate"]


def test_the_memory_is_kept_in_a_file(tmp_path: Path) -> None:
    theta = np.zeros(D, np.float32)
    for round in range(ROUNDS):
        made = aggregator(path=str(tmp_path / "memory.safetensors"))  # a new process every round
        for i in (1, 2, 4):
            made.accept_model(sent({"w": change(i, round).reshape(4, 10)}, f"site-{i}"))
        theta += made.aggregate_model().params["w"].reshape(-1)
    assert theta.tobytes() == expected().numpy().tobytes()


def test_rules_that_need_the_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose another rule"):
        RobustAggregator("fltrust", {}, shapes={"w": [3]})
    assert shapes_of({"w": np.zeros((4, 10))}) == {"w": [4, 10]}


@pytest.mark.slow
@pytest.mark.process
def test_a_job_in_nvflares_simulator_ends_in_the_servers_bits(tmp_path: Path) -> None:
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe.sim_env import SimEnv

    (tmp_path / "client.py").write_text(CLIENT)
    recipe = NumpyFedAvgRecipe(
        name="robust",
        model=np.zeros(D, np.float32).tolist(),
        min_clients=SITES,
        num_rounds=ROUNDS,
        train_script=str(tmp_path / "client.py"),
        aggregator=RobustAggregator("sparsefed", RULE, shapes={"numpy_key": [D]}),
    )
    recipe.execute(SimEnv(num_clients=SITES, workspace_root=str(tmp_path / "work")))
    (saved,) = (tmp_path / "work").rglob("server.npy")
    ours = np.load(saved).astype(np.float32)
    assert ours.tobytes() == expected().numpy().tobytes()
