"""The schema of a config: one record for each of its tables, which refuses wrong keys and types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from sparsefed.attacks import Need
from sparsefed.core.device import CHOICES, is_device_name
from sparsefed.core.engine import MEMORY_BUDGET
from sparsefed.core.threat import WHO

DEVICES = 10_000  # the default population
MOST_DEVICES, MOST_ROUNDS, MOST = 10**7, 10**8, 10**6  # what fits into memory, and into a lifetime, with room to spare

# Strict, because TOML has types: "5" is not a number and true is not 1.
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Devices = Annotated[int, Field(strict=True, ge=1, le=MOST_DEVICES)]
Rounds = Annotated[int, Field(strict=True, ge=1, le=MOST_ROUNDS)]


def _fits_float32(value: float) -> float:
    if abs(value) > 1e38:
        raise ValueError("a number that a float32 can hold, at most 1e38")
    return value


Number = Annotated[float, Field(strict=True, allow_inf_nan=False), AfterValidator(_fits_float32)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A choice by name, with its parameters beside the name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelTable(Named):
    """The [model] table: a model by name with its parameters, and the file of its initial weights."""

    weights: str | None = None  # a safetensors file; None: drawn from the seed, or the given module's own
    weights_sha256: str | None = None  # of that file; filled in when the config is read, and checked ever after


class DataTable(BaseModel):
    """The [data] table: the examples and their owners, with the partition's parameters beside its name."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "fmnist"
    partition: str = "one_class"
    devices: Devices | None = None  # None: one per user, if the partition is by_user
    per_device: Count | None = None
    root: Count | None = None  # examples that the server itself holds; None: as many as the defense needs
    augment: str = "none"  # transformation of honest devices' images before training
    vocabulary: Annotated[int, Field(strict=True, ge=5, le=MOST)] | None = None  # of text; None: its default
    length: Count | None = None  # of a sequence of text, in tokens; None: its default

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _some_devices(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("devices") is None and given.get("partition") != "by_user":
            return {**given, "devices": DEVICES}
        return given


class TrainTable(_Table):
    """The [train] table: how a round is run."""

    mode: Literal["uncompressed", "fedavg"] = "uncompressed"
    preset: Literal["paper", "authors-2021-05", "authors-2021-08"] = "paper"
    cohort: Count = 100
    sampling: str = "epoch"
    lr: Number = Field(0.2, gt=0)
    schedule: str = "triangular"
    peak_at: Number | None = None  # as a share of the rounds; None: the schedule's default, or peak_epoch
    peak_epoch: Number | None = Field(None, ge=0)  # in epochs, instead of peak_at
    weight_decay: Number = Field(5e-4, ge=0)  # of the round's sum; each of the cohort's devices applies its share
    local_epochs: Count = 1
    local_batch: Count | None = None  # None: all of a device's examples at once
    local_steps: Count | None = None  # instead of epochs: steps, each on local_batch examples drawn anew
    local_lr: Number | None = Field(None, gt=0)  # None: the schedule's lambda(t)
    local_decay: Number = Field(1.0, gt=0)  # factor on the local rate from one epoch to the next
    prox: Number = Field(0.0, ge=0)  # FedProx's mu
    local_momentum: Number | None = Field(None, ge=0, lt=1)  # of a device's own steps, from 0 in every round
    local_optimizer: Literal["sgd", "adam"] | None = None  # None: sgd
    worker_momentum: Number | None = Field(None, ge=0, lt=1)  # beta of the average that a device sends; None: none
    weights: Literal["examples"] | None = None  # of the updates in the rule; None: all alike
    weight_cap: Number | None = Field(None, ge=1)  # of a weight, in medians of the cohort; None: DEFAULT_CAP
    loss: str | None = None  # None: the default of the targets; else (outputs, targets) -> the loss of each example
    metric: str | None = None  # by which runs are judged; None: the default of the targets, such as accuracy
    dtype: Literal["float32", "bfloat16"] = "float32"
    engine: str = "fused"
    memory_mb: Count = MEMORY_BUDGET // 2**20
    device: str | None = None  # None, or "cpu": the processor; "auto": a GPU if there is one

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str | None) -> str | None:
        if name is not None and not is_device_name(name):
            raise ValueError(CHOICES)
        return None if name == "cpu" else name


class ThreatTable(_Table):
    """The [threat] table: which devices are compromised and when they act; by default none are."""

    share: Number | None = None
    count: Whole | None = None
    ids: tuple[Whole, ...] | None = None
    per_round: Whole | None = None
    start: Whole = 1
    stop: Whole | None = None
    every: Whole = 1
    knowledge: tuple[Need, ...] = ("own data",)


class SecureTable(_Table):
    """The [secure] table: secure aggregation, by which the server sees no update but the sum; absent by default."""

    scheme: Literal["pine", "secagg"] = "pine"  # sums of updates with proven norms, or sums without proofs
    verify: bool = Field(False, strict=True)  # run the proofs; the numbers are the same without
    field: Literal["auto", "field32", "field64"] = "auto"  # auto: field64 if rounding would cost more than 5 % of L
    bits: Count | None = None  # of the rounded norm bound; None: as many as fit


class Config(_Table):
    """The config of a whole run."""

    name: str = ""
    seed: Whole = Field(0, ge=0)
    base: str = Field("", exclude=True)  # a config to start from; `parse` merges it in
    rounds: Rounds = 2400
    epochs: Number | None = Field(None, gt=0, le=MOST)  # instead of rounds: how often every device takes part
    evaluate_every: Rounds = 25
    checkpoint_every: Rounds = 50
    data: DataTable = DataTable()
    model: ModelTable = ModelTable(name="cnn")
    train: TrainTable = TrainTable()
    defense: Named = Named(name="undefended")
    threat: ThreatTable = ThreatTable()
    attack: Named | None = None
    secure: SecureTable | None = None

    @property
    def is_attacked(self) -> bool:
        """Whether there is an attack, and attackers to carry it out."""
        return self.attack is not None and any(getattr(self.threat, who) for who in WHO)

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if "/" in name or name in (".", "..") or not name.isprintable() or name != name.strip():
            raise ValueError("a plain name, for it names the run's folder; choose another place with --out")
        return name
