"""pfl-research (PyPI `pfl`) on the same cohort and model, a round for each line that is asked.

Runs in the peers' environment, which has torch, NumPy and pfl but nothing of ours: model files, which need torch alone,
are run as files. pfl is given what suits it: the users' examples as float32 tensors that are normalised already, the
whole of a user's data as one batch, no evaluation, no callbacks, no metrics printed, all cores, and the same setting of
the C library's allocator as ours. It computes what ours computes: each user takes its SGD steps from the
same weights, the difference is clipped to the same norm, the mean is applied by SGD on the server.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from importlib import metadata
from typing import Any

import numpy as np
import pfl.model.pytorch as pfl_pytorch
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.privacy import NormClippingOnly
from torch import Tensor, nn

from benchmarks.workers import ROOT, serve

SOURCE = ROOT / "src" / "sparsefed"
NEVER = 10**9  # rounds between evaluations


class Trained(nn.Module):
    """A network with the two methods that pfl wants."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def make_model(asked: dict[str, Any], theta: Tensor) -> Any:
    """The network of the named model file, holding `theta`, as pfl's model."""
    build = runpy.run_path(str(SOURCE / "models" / f"{asked['model']}.py"))[asked["model"]]
    trained = Trained(build(tuple(asked["shape"]), asked["classes"], **asked["params"]))
    if asked["channels_last"]:
        trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _load(trained, theta)

    def local_optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, weight_decay=asked["weight_decay"])

    central = torch.optim.SGD(trained.parameters(), lr=asked["lr"])
    amp = torch.bfloat16 if asked["autocast"] else None
    return pfl_pytorch.PyTorchModel(trained, local_optimizer, central, amp_dtype=amp)


@torch.no_grad()
def _load(module: nn.Module, theta: Tensor) -> None:
    start = 0
    for parameter in module.parameters():
        parameter.copy_(theta[start : start + parameter.numel()].view(parameter.shape))
        start += parameter.numel()


def make_backend(x: Tensor, y: Tensor, sizes: list[int], clip_norm: float) -> Any:
    """All users of the cohort, in every round."""
    users = [
        PyTorchTensorDataset((mine, labels), user_id=str(i))
        for i, (mine, labels) in enumerate(zip(torch.split(x, sizes), torch.split(y, sizes), strict=True))
    ]
    data = FederatedDataset(lambda user: users[user], MinimizeReuseUserSampler(range(len(users))))
    return SimulatedBackend(data, data, postprocessors=[NormClippingOnly(2.0, clip_norm)])


def main() -> None:
    """Arguments: what is asked as JSON, the arrays of the cohort (.npz), where to leave the model after one round."""
    asked, (arrays, after) = json.loads(sys.argv[1]), sys.argv[2:4]
    runpy.run_path(str(SOURCE / "core" / "malloc.py"))["keep_freed_memory"]()
    torch.set_num_threads(asked["threads"])
    with np.load(arrays) as held:
        x, y, theta = (torch.from_numpy(held[name]) for name in ("x", "y", "theta"))
        sizes = held["sizes"].tolist()
    if asked["channels_last"]:
        x = x.contiguous(memory_format=torch.channels_last)
    model, backend = make_model(asked, theta), make_backend(x, y, sizes, asked["clip_norm"])
    algorithm: Any = FederatedAveraging()
    local = NNTrainHyperParams(
        local_num_epochs=asked["local_epochs"],
        local_learning_rate=asked["local_lr"],
        local_batch_size=None,
        local_max_grad_norm=None,
    )
    done = 0

    def run_round() -> float:
        nonlocal done
        done += 1
        upto = NNAlgorithmParams(done, NEVER, len(sizes), None)
        began = time.perf_counter()
        algorithm.run(upto, backend, model, local, send_metrics_to_platform=False)
        return time.perf_counter() - began

    run_round()  # pfl evaluates in round 0, whatever it is told: never timed
    np.save(after, torch.cat([p.detach().reshape(-1) for p in model.variable_map.values()]).numpy())
    facts = {"pfl": metadata.version("pfl"), "torch": torch.__version__, "threads": torch.get_num_threads()}
    serve(facts, {"round": run_round})


if __name__ == "__main__":
    main()
