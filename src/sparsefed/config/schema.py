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
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Named(BaseModel):
    """A choice by name, with its parameters beside the name."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    name: str = Field(description='a listed name, or "module:function" of your own; its parameters stand beside it')

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelTable(Named):
    """The [model] table: a model by name with its parameters, and the file of its initial weights."""

    weights: str | None = Field(None, description="a safetensors file of initial weights; none: drawn from the seed")
    weights_sha256: str | None = Field(None, description="checksum of that file; filled in, and checked ever after")


class DataTable(BaseModel):
    """The [data] table: the examples and their owners, with the partition's parameters beside its name."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    name: str = Field("fmnist", description='a listed data set, or "module:DATA" of your own')
    partition: str = Field("one_class", description="how examples are dealt to devices; its parameters stand beside it")
    devices: Devices | None = Field(None, description="the population; by_user: none, one device a user")
    per_device: Count | None = Field(None, description="examples of each device; none: all are dealt")
    root: Count | None = Field(None, description="examples that the server itself holds; none: what the rule needs")
    augment: str = Field("none", description="transformation of honest devices' images before training")
    vocabulary: Annotated[int, Field(strict=True, ge=5, le=MOST)] | None = Field(
        None, description="tokens of text that are told apart; none: the data set's default"
    )
    length: Count | None = Field(None, description="tokens of a sequence of text; none: the data set's default")

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

    mode: Literal["uncompressed", "fedavg"] = Field(
        "uncompressed", description="devices send gradients, or train by themselves and send what changed"
    )
    preset: Literal["paper", "authors-2021-05", "authors-2021-08"] = Field(
        "paper", description="where learning rate and clip are applied"
    )
    cohort: Count = Field(100, description="devices that take part in a round")
    sampling: str = Field("epoch", description="how a round's devices are drawn")
    lr: Number = Field(0.2, gt=0, description="learning rate at its peak")
    schedule: str = Field("triangular", description="how the learning rate changes over the rounds")
    peak_at: Number | None = Field(None, description="where its peak is, as a share of the rounds")
    peak_epoch: Number | None = Field(None, ge=0, description="where its peak is, in epochs, instead of peak_at")
    weight_decay: Number = Field(5e-4, ge=0, description="of a round's sum; each device applies its share")
    local_epochs: Count = Field(1, description="passes of a device over its examples (fedavg)")
    local_batch: Count | None = Field(None, description="examples of a local step; none: all at once")
    local_steps: Count | None = Field(None, description="instead of epochs: steps on local_batch examples drawn anew")
    local_lr: Number | None = Field(None, gt=0, description="rate of a device's own steps; none: the schedule's")
    local_decay: Number = Field(
        1.0, gt=0, description="factor on the local rate from one local epoch (authors-*: step) to the next"
    )
    prox: Number = Field(0.0, ge=0, description="FedProx's mu: pull towards the global model")
    local_momentum: Number | None = Field(None, ge=0, lt=1, description="of a device's own steps, from 0 every round")
    local_optimizer: Literal["sgd", "adam"] | None = Field(None, description="of a device's own steps; none: sgd")
    worker_momentum: Number | None = Field(None, ge=0, lt=1, description="beta of the average that a device sends")
    weights: Literal["examples"] | None = Field(None, description="of updates in the rule; none: all alike")
    weight_cap: Number | None = Field(None, ge=1, description="the largest weight, in medians of the cohort")
    loss: str | None = Field(None, description="a function of your own (outputs, targets) -> the loss of each example")
    metric: str | None = Field(None, description="what runs are judged by, e.g. balanced_accuracy, auc, f1")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="what models are computed in")
    engine: str = Field("fused", description="how a cohort's updates are computed")
    memory_mb: Count = Field(MEMORY_BUDGET // 2**20, description="memory for the updates that are computed at once")
    block: Count | None = Field(None, description="devices computed together; none: as many as fit into memory_mb")
    device: str | None = Field(None, description='"cuda", "cuda:1", "mps", or "auto": a GPU if there is one; none: cpu')

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str | None) -> str | None:
        if name is not None and not is_device_name(name):
            raise ValueError(CHOICES)
        return None if name == "cpu" else name


class ThreatTable(_Table):
    """The [threat] table: which devices are compromised and when they act; by default none are."""

    share: Number | None = Field(None, description="share of all devices that is compromised")
    count: Whole | None = Field(None, description="number of compromised devices, instead of share")
    ids: tuple[Whole, ...] | None = Field(None, description="the compromised devices themselves, instead of share")
    per_round: Whole | None = Field(None, description="attackers in every round, instead of share")
    start: Whole = Field(1, description="the first round in which they attack")
    stop: Whole | None = Field(None, description="the last one; none: to the end")
    every: Whole = Field(1, description="they attack in every so many rounds")
    knowledge: tuple[Need, ...] = Field(
        ("own data",), description="what attackers know beyond public facts: own data, honest updates, defense, ..."
    )


class SecureTable(_Table):
    """The [secure] table: secure aggregation, by which the server sees no update but the sum; absent by default."""

    scheme: Literal["pine", "secagg"] = Field("pine", description="sums with proven norms, or without proofs")
    verify: bool = Field(False, strict=True, description="run the proofs; the numbers are the same without")
    field: Literal["auto", "field32", "field64"] = Field(
        "auto", description="of the arithmetic; auto: field64 if rounding would cost more than 5 % of the norm"
    )
    bits: Count | None = Field(None, description="of the rounded norm bound; none: as many as fit")


class Config(_Table):
    """The config of a whole run."""

    name: str = Field("", description="of the run and its folder; none: the file's")
    seed: Whole = Field(0, ge=0, description="every random choice follows from it")
    base: str = Field("", exclude=True, description="a config of the paper's to start from: `sparsefed list bases`")
    rounds: Rounds = Field(2400, description="rounds of training")
    epochs: Number | None = Field(
        None, gt=0, le=MOST, description="instead of rounds: how often every device takes part"
    )
    evaluate_every: Rounds = Field(25, description="rounds between evaluations on test data")
    checkpoint_every: Rounds = Field(50, description="rounds between checkpoints")
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
