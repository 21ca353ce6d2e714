"""The smoothness of a device's gradient: given, exact for one softmax layer, or else only estimated.

c is coordinatewise: |g(theta) - g(theta')|_inf <= c |theta - theta'|_1 for every device and all models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparsefed.commands.certify.assumptions import Assumption
from sparsefed.commands.certify.subject import CertificateSource
from sparsefed.core.federation import Federation
from sparsefed.core.rng import rng
from sparsefed.core.task import differentiator
from sparsefed.core.types import Batch
from sparsefed.data.augment import none
from sparsefed.theory.lipschitz import (
    SoftmaxLayer,
    clip_free,
    estimate_c,
    is_softmax_layer,
    softmax_growth,
    softmax_layer,
)
from sparsefed.theory.threat_schedule import growth

ABOUT = "c"
DEVICES, STARTS, CLIMBS = 2, 2, 2  # of the search for c: half a minute for a ResNet9, a second for small models


@dataclass(frozen=True)
class Smoothness:
    """The smoothness of every device's gradient, weight decay included."""

    c: float
    layer: SoftmaxLayer | None = None  # of one softmax layer, where more is known than c
    uncut: float = float("inf")  # a clip norm that never cuts an honest gradient; inf: there is none

    def growth(self, d: int, k: int | None, scale: float, budget: float) -> float:
        """Return the growth of the mean of `scale` times the gradients, each then clipped to `budget`."""
        cut = scale * self.uncut > budget
        if self.layer is None:
            return scale * growth(d, k, self.c, clipped=cut)
        return scale * softmax_growth(self.layer, d, k, clipped=cut)


def smoothness(source: CertificateSource, c: float | None, estimate: bool) -> tuple[Smoothness, list[Assumption]]:
    """Return the constants, and how they are known; with `estimate`, by a search even if they are known better."""
    decay = source.experiment.setup.weight_decay
    if c is not None:
        text = (
            f"Given: each coordinate of a device's gradient changes by at most {c:g} a unit of l1 change of the model."
        )
        return Smoothness(c + decay), [Assumption(ABOUT, text + _decay(decay), "assumed", binding=True), _cutting()]
    if is_linear(source) and not estimate:
        return _exact(source, decay)
    return _estimated(source, decay)


def is_linear(source: CertificateSource) -> bool:
    """Return whether the model is one softmax layer that is trained on cross-entropy."""
    task = source.experiment.task
    learned = len(task.slots) == len(list(task.template.parameters()))  # a frozen bias or weight is not in the formulas
    return is_softmax_layer(task.template) and task.loss is None and learned and not source.arrays.is_text


def _decay(decay: float) -> str:
    return f" Weight decay adds {decay:.3g}." if decay else ""


def _cutting() -> Assumption:
    text = (
        "Clipping may cut honest updates, too: then c is no longer the constant of a coordinate, and sqrt(w d) c "
        "stands in the place of w c."
    )
    return Assumption("clipping", text, "by construction")


# --- one softmax layer -----------------------------------------------------------------------------------------------


def _exact(source: CertificateSource, decay: float) -> tuple[Smoothness, list[Assumption]]:
    bare = layer_of(source)
    layer = replace(
        bare,
        c=bare.c + decay,
        column_l1=bare.column_l1 + decay,
        column_l2=bare.column_l2 + decay,
        smooth=bare.smooth + decay,
    )
    data = "from the devices' training data" if _plain(source) else "for any bytes that augmentation may give"
    text = f"{layer.c:.4g}, exact for one softmax layer, {data}; the largest of any device.{_decay(decay)}"
    smooth = Smoothness(layer.c, layer, float("inf") if decay else clip_free(bare))
    return smooth, [Assumption(ABOUT, text, "by construction"), _cut(source, smooth, decay)]


def _cut(source: CertificateSource, smooth: Smoothness, decay: float) -> Assumption:
    if decay:
        why = "with weight decay an honest gradient has no largest length"
    elif all(local_scale(source, each.lr) * smooth.uncut <= each.budget for each in source.rounds):
        text = f"It never cuts an honest update: no honest gradient is longer than {smooth.uncut:.4g}."
        return Assumption("clipping", text, "by construction")
    else:
        why = f"an honest gradient can be {smooth.uncut:.4g} long, longer than the clip norm"
    text = f"It may cut honest updates ({why}), so only what survives a projection in l2 is used."
    return Assumption("clipping", text, "by construction")


def local_scale(source: CertificateSource, lr: float) -> float:
    """Return the factor that a device applies to its gradient."""
    train = source.config.train
    return 1.0 if train.mode != "fedavg" else lr if train.local_lr is None else train.local_lr


def layer_of(source: CertificateSource) -> SoftmaxLayer:
    """Return the constants of the source's softmax layer, without weight decay."""
    task, federation = source.experiment.task, source.experiment.setup.federation
    bias = len(task.slots) > 1
    if _plain(source):
        partition = federation.partition
        return softmax_layer(
            federation.x, partition.offsets, examples=partition.examples, prepare=task.prepare, bias=bias
        )
    return softmax_layer(_brightest(source), np.array([0, 1]), prepare=task.prepare, bias=bias)


def _plain(source: CertificateSource) -> bool:
    return source.experiment.setup.federation.augment is none


def _brightest(source: CertificateSource) -> Tensor:
    """Return the example of bytes that is largest everywhere once normalised: every constant grows with |x_j|."""
    x, prepare = source.experiment.setup.federation.x[:1], source.experiment.task.prepare
    dark, light = torch.zeros_like(x), torch.full_like(x, 255)
    # [1, C, H, W] as the model gets it, [1, H, W, C] as it is stored.
    return torch.where((prepare(light).abs() > prepare(dark).abs()).permute(0, 2, 3, 1), light, dark)


# --- anything else ---------------------------------------------------------------------------------------------------


def _estimated(source: CertificateSource, decay: float) -> tuple[Smoothness, list[Assumption]]:
    models = [source.experiment.theta, *([] if source.final is None else [source.final])]
    gradient = differentiator(source.experiment.task, torch.float32)
    batches = _some_devices(source.experiment.setup.federation, source.config.seed)
    estimates = [
        estimate_c(_on(gradient, batch), models, seed=source.config.seed, starts=STARTS, climbs=CLIMBS)
        for batch in batches
    ]
    c = max(each.c for each in estimates) + decay
    text = (
        f"{c:.4g}, the steepest change that a search found ({sum(each.samples for each in estimates):,} second "
        f"derivatives looked at, on {len(batches)} devices). The true one is no smaller, and a network with ReLU or "
        f"max-pooling has none at all: nothing here that needs c is a bound.{_decay(decay)}"
    )
    return Smoothness(c), [Assumption(ABOUT, text, "estimate"), _cutting()]


def _on(gradient: Callable[[Tensor, Tensor, Tensor], Tensor], batch: Batch) -> Callable[[Tensor], Tensor]:
    return lambda theta: gradient(theta, batch.x, batch.y)


def _some_devices(federation: Federation, seed: int) -> list[Batch]:
    sized = np.flatnonzero(np.diff(federation.partition.offsets))
    chosen = rng(seed, "devices to estimate c on").choice(sized, min(DEVICES, len(sized)), replace=False)
    return [federation.gather(chosen[i : i + 1]) for i in range(len(chosen))]
