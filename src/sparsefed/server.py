"""An aggregation server for any training loop: any rule, with its memory from round to round.

    server = Server(sparsefed.defenses.sparsefed(k=1000, clip_norm=5.0), like=model)
    step = server.step(updates, lr=0.1)       # an update is `before - after`: the server subtracts
    model = step.model

Selecting and training devices is up to the caller. Simulated rounds give the same numbers, bit for
bit, for the same updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsefed.core.device import CPU, initial_state, state_on
from sparsefed.core.errors import ConfigError, RunError
from sparsefed.core.metrics import unusable_notice
from sparsefed.core.rng import check_seed
from sparsefed.core.signatures import shown
from sparsefed.core.types import Block, Context, Defense, IntArray, State
from sparsefed.defenses import DEFENSES, Rule, as_rule, rule_info
from sparsefed.defenses.aggregate import BLOCK_BYTES, layer_sizes, require_finite, require_numbers
from sparsefed.defenses.modes import Mode, PresetName
from sparsefed.defenses.pipeline import CLIPPED_BEYOND, LARGEST_NORM
from sparsefed.kernels.blocks import RowsBlock, as_blocks
from sparsefed.models.layout import ModelLayout, layout
from sparsefed.runs import checkpoint
from sparsefed.runs.disk import write_atomically
from sparsefed.runs.folder import goes_on

Rows = Tensor | npt.NDArray[Any]  # [m, d], or [d]
Parts = Mapping[str, Any]  # a state dict
Model = nn.Module | Parts | Rows | int
Updates = Rows | Sequence[Parts | Rows] | Iterable[Parts | Rows | Sequence[Parts] | Block]

_HEADER = "sparsefed_server"


@dataclass(frozen=True)
class ServerStep:
    """The result of one round: the new model, and what happened to the updates."""

    round: int
    theta: Tensor  # float32 [d], the new model
    delta: Tensor  # float32 [d], subtracted from the old model
    received: int  # number of updates received
    dropped: tuple[int, ...]  # senders of discarded updates: not finite, or absurdly long
    clipped: tuple[int, ...]  # senders of updates clipped to the norm that the server enforces
    applied: int  # number of coordinates that changed
    stats: Mapping[str, float]  # the statistics that the rule reports
    _restore: Callable[[Tensor], Any] = field(repr=False)

    @property
    def model(self) -> Any:
        """The new model, of the same kind as `like`; a new object on every access."""
        return self._restore(self.theta)

    @property
    def notice(self) -> str:
        """A sentence if dropped updates reduced f (`stats["f_used"]`) or left the model as it was, else ''."""
        return unusable_notice(self.round, self.stats)


@dataclass(frozen=True)
class NamedBlocks:
    """A stream of blocks that name their senders, where these are not known before the updates have come."""

    blocks: Iterable[Block]

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)


class Server:
    """An aggregation rule with its memory, which turns the updates of a round into a new model.

    Args:
        rule: a rule such as `sparsefed.defenses.krum(f=2)`, the name of one, or a function that builds one.
        like: the model: an `nn.Module`, a `state_dict`, a vector, or its number of coordinates.
        mode: whether updates are gradients, which the server multiplies by lr ("uncompressed"), or differences of
            models, which already include the learning rate ("fedavg").
        preset: which interpretation of the paper to follow.
        local_steps: steps that a device takes in a round, each counted with its share of the first one's rate (fedavg
            only); the clip norm of preset "authors-2021-05" grows with it.
        seed: for randomised rules.
        layers: the number of coordinates of each parameter tensor; by default taken from a module or state dict.
        params: the parameters of a rule given by name or as a function.

    Raises:
        ConfigError: if the rule or its parameters cannot be used with a model of this size.
    """

    def __init__(
        self,
        rule: Rule | str | Callable[..., Any] | Defense,
        *,
        like: Model,
        mode: Mode = "uncompressed",
        preset: PresetName = "paper",
        local_steps: float = 1,
        seed: int = 0,
        layers: Sequence[int] = (),
        **params: Any,
    ) -> None:
        self.rule = as_rule(rule, **params)
        self._layout = layout(like)
        own = tuple(slot.stop - slot.start for slot in self._layout.slots)
        self._layers = layer_sizes(layers, self._layout.d, "model has") or own
        self._defense = self.rule.build(mode, preset, local_steps)
        self._seed, self._theta, self._round = check_seed(seed), self._layout.theta, 0
        self._memory = initial_state(self._defense, self._layout.d, self._theta.device)

    @property
    def theta(self) -> Tensor:
        """A copy of the model as a float32 vector [d]."""
        return self._theta.clone()

    @property
    def model(self) -> Any:
        """A copy of the model, of the same kind as `like`."""
        return self._layout.restore(self._theta)

    @property
    def round(self) -> int:
        """The number of rounds done."""
        return self._round

    @property
    def layout(self) -> ModelLayout:
        """The place of each part of the model in the flat vector."""
        return self._layout

    def budget(self, lr: float = 1.0) -> float:
        """Return the l2 norm to which the next round clips an update; infinite if it does not."""
        context = Context(self._round + 1, _rate(lr), self._seed, self._theta, self._layers)
        return self._defense.budget(self._memory, context)

    def check(self, n: int) -> None:
        """Raise ConfigError if the rule is not defined for n updates a round."""
        self._defense.check(n)

    def step(
        self,
        updates: Updates,
        lr: float = 1.0,
        *,
        weights: Sequence[float] | Rows | None = None,
        senders: Sequence[int] | IntArray | None = None,
        root: Rows | Parts | None = None,
    ) -> ServerStep:
        """Aggregate the updates of a round and update the model.

        Args:
            updates: an array or tensor [n, d], a list of state dicts (of updates), or an iterator of either, which is
                read a block at a time. An update is `before - after`.
            lr: the learning rate of the round; in mode "fedavg" updates already include it.
            weights: the weight of each update in a mean, for instance its number of examples.
            senders: an integer for each update, which identifies its device across rounds.
            root: the server's own update, for rules that compare with one.

        Raises:
            ConfigError: if updates, weights or senders do not fit; the server is then unchanged.
        """
        self._check(weights, senders is not None or isinstance(updates, NamedBlocks))
        own = None if root is None else _own(self._layout, root)
        context = Context(self._round + 1, _rate(lr), self._seed, self._theta, self._layers, own)
        tally = _Arrivals(self._defense.budget(self._memory, context), _weights(weights), _senders(senders))
        done = self._defense.step(self._memory, _watched(_blocks(self._layout, updates), tally), context)
        tally.check_all_used()
        theta = self._theta - done.delta
        require_finite(self.rule, theta)
        self._theta, self._memory, self._round = theta, done.state, context.round
        dropped, clipped, applied = tuple(tally.dropped), tuple(tally.clipped), int(torch.count_nonzero(done.delta))
        new = (context.round, self._theta, done.delta, tally.received, dropped, clipped, applied, done.stats)
        return ServerStep(*new, self._layout.restore)

    def _check(self, weights: object, named: bool) -> None:
        info = rule_info(self.rule.function)
        if weights is not None and (not info.weights or self.rule.parameters.get("pre")):
            taking = ", ".join(name for name, rule in DEFENSES.items() if rule_info(rule).weights)
            raise ConfigError(
                f"{self.rule} weighs updates by its own rule, so weights cannot be given; rules that take them, "
                f"without a pre-aggregation: {taking}"
            )
        if not named and "history" in info.needs:
            raise ConfigError(
                f"{self.rule} remembers devices from round to round: give senders, a number for each update that is "
                "the same for the same device"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that changes from round to round: model, the rule's memory, number of rounds."""
        return {**_tensors(self.theta, self._memory), "round": torch.tensor(self._round)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state that `state_dict` returned.

        Raises:
            ConfigError: if the state belongs to another rule or model.
        """
        begin = _tensors(self._layout.theta, self._defense.init(self._layout.d))
        saved = {name: tensor for name, tensor in state.items() if name != "round"}
        if "round" not in state or not goes_on(saved, begin):
            raise ConfigError(
                f"the state is not of this server: it holds {', '.join(sorted(saved)) or 'nothing'}, but {self.rule} "
                f"with {self._layout.d:,} coordinates has {', '.join(sorted(begin))}"
            )
        device = self._layout.theta.device
        self._theta, self._round = saved["theta"].to(device, copy=True), int(state["round"])
        memory = {name: tensor for name, tensor in saved.items() if name != "theta"}
        self._memory = {name.removeprefix("defense."): tensor.to(device, copy=True) for name, tensor in memory.items()}

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, completely or not at all.

        Raises:
            RunError: if the file cannot be written.
        """
        tensors = state_on(_tensors(self._theta, self._memory), CPU)
        content = checkpoint.dumps(tensors, {"round": self._round, "rule": repr(self.rule)}, _HEADER)
        try:
            write_atomically(Path(path), content)
        except OSError as error:
            raise RunError(f"cannot write {path} ({error.strerror}); choose another place, or make room") from error

    @classmethod
    def load(
        cls, path: str | Path, rule: Rule | str | Callable[..., Any] | Defense, like: Model, **options: Any
    ) -> Server:
        """Return a server that continues from a saved one.

        Args:
            path: a file that `save` wrote.
            rule: the rule, with the same parameters as when saved.
            like: the model, for its kind and shape.
            options: the other arguments of `Server`.

        Raises:
            RunError: if the file is missing or damaged.
            ConfigError: if it holds the state of another rule or model.
        """
        server = cls(rule, like=like, **options)
        try:
            state, header = checkpoint.loads(Path(path).read_bytes(), _HEADER, ("round", "rule"))
            state["round"] = torch.tensor(int(header["round"]))
        except (OSError, ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise RunError(f"{path} is no saved server, or is damaged ({error}); use another copy") from error
        server.load_state_dict(state)
        return server


# --- the updates of a round ------------------------------------------------------------------------------------------


@dataclass
class _Arrivals:
    """A tally of the received updates, filled while the blocks stream by; it holds numbers, never a block."""

    budget: float
    weights: Tensor | None
    senders: IntArray | None
    received: int = 0
    dropped: list[int] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)

    def take(self, block: Block) -> _Sent:
        """Return the block with its part of the weights and senders, its norms computed once."""
        span = slice(self.received, self.received + block.size)
        unnamed = isinstance(block, RowsBlock) and block.named is None
        own = np.arange(span.start, span.stop) if unnamed else block.senders
        senders = own if self.senders is None else self.senders[span]
        weights = getattr(block, "weights", None) if self.weights is None else self.weights[span]
        for kind, given in (("weights", weights), ("senders", senders)):
            if given is not None and len(given) != block.size:
                raise ConfigError(f"there are more updates than {kind}; give one for each update")
        sent = _Sent(block, senders, weights)
        self.received = span.stop
        norms = sent.norms().cpu().numpy()
        self.dropped += senders[~(norms <= LARGEST_NORM)].tolist()
        self.clipped += senders[(norms <= LARGEST_NORM) & (norms > self.budget * CLIPPED_BEYOND)].tolist()
        return sent

    def check_all_used(self) -> None:
        for kind, given in (("weights", self.weights), ("senders", self.senders)):
            if given is not None and len(given) != self.received:
                raise ConfigError(f"there are {len(given)} {kind} for {self.received} updates; give one for each")


class _Sent:
    """A block with its own weights and senders."""

    def __init__(self, block: Block, senders: IntArray, weights: Tensor | None) -> None:
        self._norms, self.size, self.senders, self.weights = block.norms(), block.size, senders, weights
        self.weighted_sum, self.rows = block.weighted_sum, block.rows

    def norms(self) -> Tensor:
        return self._norms


def _watched(blocks: Iterator[Block], tally: _Arrivals) -> Iterator[Block]:
    for block in blocks:
        yield tally.take(block)
        del block  # free its memory before the next one is made


def _blocks(layout: ModelLayout, updates: Updates) -> Iterator[Block]:
    """Yield updates of any accepted form one block at a time; a whole float32 array is one block."""
    if isinstance(updates, (Tensor, np.ndarray)):
        yield from _numbered(layout, _rows(layout, updates))
        return
    if isinstance(updates, Mapping) or not isinstance(updates, Iterable):
        raise ConfigError(
            f"updates is a {type(updates).__name__}, but must be an array [n, d], a list of state dicts, or an "
            "iterator of either"
        )
    for item in updates:
        if isinstance(item, (Tensor, np.ndarray, Mapping, list, tuple)):
            yield from _numbered(layout, _rows(layout, item))
        elif hasattr(item, "weighted_sum"):
            yield cast("Block", item)
        else:
            raise ConfigError(f"an update is a {type(item).__name__}, but must be an array, a tensor or a state dict")
        del item


def _own(layout: ModelLayout, root: Rows | Parts) -> Tensor:
    """Return the server's own update [d]."""
    rows = _rows(layout, root)
    if len(rows) != 1:
        raise ConfigError(f"root holds {len(rows)} updates, but it is the server's own: give one")
    (block,) = as_blocks(rows, 1)
    return block.tensor[0].to(layout.theta.device)


def _numbered(layout: ModelLayout, rows: Rows) -> Iterator[Block]:
    """Yield blocks without sender names, so that their senders are numbered consecutively."""
    whole = rows.dtype in (np.float32, torch.float32)
    for block in as_blocks(rows, max(1, len(rows) if whole else BLOCK_BYTES // (4 * layout.d))):
        yield RowsBlock(block.tensor.to(layout.theta.device))


def _rows(layout: ModelLayout, item: Any) -> Tensor | npt.NDArray[Any]:
    """Return one update, or several, as rows [m, d]."""
    if isinstance(item, Mapping):
        return layout.flat(item)[None]
    if isinstance(item, (list, tuple)) and item and all(isinstance(part, Mapping) for part in item):
        return torch.stack([layout.flat(part) for part in item])
    if not isinstance(item, (Tensor, np.ndarray)):
        raise ConfigError("several updates at once are a list of state dicts, or an array or tensor [n, d]")
    require_numbers("updates", item, f"[n, {layout.d}]")
    rows = item[None] if item.ndim == 1 else item
    if rows.ndim != 2 or rows.shape[1] != layout.d:
        raise ConfigError(f"updates have shape {list(item.shape)}, but must be [n, {layout.d}], a row for each client")
    return rows


def _rate(lr: object) -> float:
    try:
        rate = math.nan if isinstance(lr, (str, bytes)) else float(cast("float", lr))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise ConfigError(f"lr is {shown(lr)}, but a learning rate is a number, 0 or more")
    return rate


def _numbers(given: object, kinds: str) -> npt.NDArray[Any] | None:
    """Return a list, array or tensor as an array [n]; None if it does not hold numbers of these kinds."""
    try:
        array = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return array if array.ndim == 1 and (array.dtype.kind in kinds) else None


def _weights(weights: Sequence[float] | Rows | None) -> Tensor | None:
    """Return the weights as float64, scaled by a power of two, which changes no bit of a mean, to at most 1."""
    if weights is None:
        return None
    given = _numbers(weights, "fiub")
    if given is None or not (np.isfinite(given) & (given >= 0)).all() or not given.any():
        raise ConfigError(
            "weights must be finite numbers, one for each update, none of them negative and not all of them 0"
        )
    wide = given.astype(np.float64)
    return torch.from_numpy(np.ldexp(wide, -math.frexp(float(wide.max()))[1]))


def _senders(senders: Sequence[int] | IntArray | None) -> IntArray | None:
    if senders is None:
        return None
    given = _numbers(senders, "iu")
    if given is None:
        raise ConfigError("senders must be whole numbers, one for each update")
    names, counts = np.unique(given, return_counts=True)
    if len(names) < len(given):
        raise ConfigError(
            f"senders has {names[counts.argmax()]} more than once, but a device sends one update a round: give each "
            "device a number of its own"
        )
    return given.astype(np.int64)


# --- states ----------------------------------------------------------------------------------------------------------


def _tensors(theta: Tensor, memory: State) -> dict[str, Tensor]:
    return {"theta": theta, **{f"defense.{name}": tensor for name, tensor in memory.items()}}
