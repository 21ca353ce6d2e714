"""Any rule of this project as an aggregator of NVFlare, with the same door for what clients send.

    aggregator = RobustAggregator("sparsefed", {"k": 1000, "clip_norm": 5.0}, shapes=shapes_of(model), lr=0.1)
    recipe = FedAvgRecipe(..., aggregator=aggregator, params_transfer_type=TransferType.DIFF)

Clients send differences of models, after - before. One that is refused (`sparsefed.flower.door`) is left out and named
in the log; the round goes on. NVFlare is an extra with an environment of its own: constraints-nvflare.txt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsefed.core.errors import ConfigError, printable
from sparsefed.defenses import as_rule, rule_info
from sparsefed.flower.door import Admitted, Refusal, ReplyFormat, admit_arrays
from sparsefed.kernels.blocks import RowsBlock
from sparsefed.server import NamedBlocks, Server

try:
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
except ImportError as error:
    raise ImportError(
        "sparsefed.nvflare needs NVFlare, which is not installed; install it in an environment of its own: "
        "pip install -c constraints-nvflare.txt 'sparsefed[nvflare]'"
    ) from error

log = logging.getLogger("sparsefed.nvflare")
Shapes = Mapping[str, Sequence[int]]


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the names and shapes of a model's arrays or tensors, as a job's config can hold them."""
    return {name: list(array.shape) for name, array in arrays.items()}


class RobustAggregator(ModelAggregator):
    """An aggregator of NVFlare with a rule of this project, its memory, and an account of what was refused."""

    def __init__(
        self,
        rule: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        shapes: Shapes,
        lr: float = 1.0,
        seed: int = 0,
        path: str = "",
    ) -> None:
        """Prepare an aggregator; NVFlare keeps its arguments in the job's config, so they are plain values.

        Args:
            rule: the name of a rule; one that compares with the server's own update or model is refused.
            parameters: of the rule.
            shapes: the arrays of the model, which are float32, by name: `shapes_of(model.state_dict())`.
            lr: the clients' rate, for rules whose clip norm follows it; differences of models include it already.
            seed: of randomised rules.
            path: a file in which the rule's memory is kept; a run that was ended goes on from it.

        Raises:
            ConfigError: if the rule cannot be used.
        """
        super().__init__()
        self.rule, self.parameters, self.shapes = rule, dict(parameters or {}), {k: list(v) for k, v in shapes.items()}
        self.lr, self.seed, self.path = lr, seed, path
        chosen = as_rule(rule, **self.parameters)
        if "root" in rule_info(chosen.function).needs or chosen.name == "crfl":
            raise ConfigError(f"{chosen} needs the model, which NVFlare's aggregators do not see; choose another rule")
        like = {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        self._server = Server(chosen, like=like, mode="fedavg", seed=seed)
        if path and Path(path).exists():
            self._server = Server.load(path, chosen, like, mode="fedavg", seed=seed)
        self._format = ReplyFormat.of({name: tensor.numpy() for name, tensor in like.items()}, self._server.layout)
        self._numbers: dict[str, int] = {}  # of clients, for rules that remember them
        self._arrived: dict[str, Admitted] = {}
        self.refused: list[tuple[int, str, Refusal]] = []  # round, client, why

    def accept_model(self, model: FLModel) -> None:
        """Take what one client sent; the name under which the server knows it counts, once a round."""
        client = str(model.meta.get("client_name", ""))
        verdict = self._judged(client, model)
        if isinstance(verdict, Admitted):
            self._arrived[client] = verdict
            return
        self.refused.append((self._server.round + 1, client, verdict))
        log.warning("round %d: refused client %s: %s", self._server.round + 1, printable(client, 80), verdict)

    def _judged(self, client: str, model: FLModel) -> Admitted | Refusal:
        if client in self._arrived:
            return Refusal("duplicate")
        if model.params_type != ParamsType.DIFF or not isinstance(model.params, Mapping):
            return Refusal("records", "a model, where a difference of models is expected (params_type DIFF)")
        return admit_arrays(model.params, self._format)

    def aggregate_model(self) -> FLModel:
        """Return what is added to the model: the rule's step over the differences, in the order of names."""
        names = sorted(self._arrived)
        for name in names:
            self._numbers.setdefault(name, len(self._numbers))
        if not names:
            return self._changed(torch.zeros(self._format.d))
        rows = (RowsBlock(-self._arrived[n].row[None], np.array([self._numbers[n]])) for n in names)
        step = self._server.step(NamedBlocks(rows), self.lr)
        if self.path:
            self._server.save(self.path)
        return self._changed(-step.delta)

    def _changed(self, difference: torch.Tensor) -> FLModel:
        slots = self._server.layout.slots
        params = {s.name: difference[s.start : s.stop].reshape(s.shape).numpy() for s in slots}
        return FLModel(params_type=ParamsType.DIFF, params=params)

    def reset_stats(self) -> None:
        """Forget what arrived; the rule's memory stays."""
        self._arrived.clear()
