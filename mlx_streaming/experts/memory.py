"""ExpertMemory: the expert layers of one model, installed into the stock model in place of each SwitchGLU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..checkpoint.spec import TENSORS, ExpertLayer, ModelSpec
from ..config import EngineConfig
from ..errors import CheckpointError
from . import lookahead
from . import usage as usage_module
from .early import wrap_sibling
from .pool import Pool
from .reader import Reader
from .source import ExpertSource, Quantization
from .staging import Staging, find_staging
from .stats import Stats
from .streamed import StreamedExperts


class ExpertMemory:
    """Owns the pools, the reader and the counters of one model."""

    def __init__(self, source: ExpertSource, reader: Reader, policy: str, spare: int = 0):
        self.source = source
        self.reader = reader
        self.policy = policy
        self.spare = spare
        self.stats = Stats()
        self.streamed: dict[int, StreamedExperts] = {}
        self.resident: dict[int, Pool] = {}

    @classmethod
    def install(
        cls,
        model: nn.Module,
        spec: ModelSpec,
        source: ExpertSource,
        config: EngineConfig,
        slots: Mapping[int, int],
        force_streamed: bool = False,
    ) -> ExpertMemory:
        """Replace the experts of `model`; `slots` gives the slots of each layer of `spec.experts`.

        A layer with a slot for every expert stays the stock module, filled once (resident), unless
        `force_streamed`. No expert tensor of the checkpoint is ever loaded whole.

        Raises:
            CheckpointError: the model has no SwitchGLU where the weights say so, or reading failed.
        """
        resident = {n for n, e in spec.experts.items() if slots[n] >= e.num_experts and not force_streamed}
        top_k = max(e.top_k for e in spec.experts.values())
        lookahead.check(config, {n: s for n, s in slots.items() if n not in resident}, top_k)
        spare = config.lookahead_budget if config.lookahead else 0
        memory = cls(source, open_reader(config), config.policy, spare)
        try:
            for number, layer in spec.experts.items():
                memory.add_layer(model, layer, min(slots[number], layer.num_experts), number in resident)
        except BaseException:
            memory.close()
            raise
        if config.lookahead:
            lookahead.connect(model, memory.streamed, config)
        return memory

    def add_layer(self, root: nn.Module, layer: ExpertLayer, slots: int, resident: bool) -> None:
        """Stream (or fill, when `resident`) the SwitchGLU at `layer.prefix` below `root`."""
        parent, name = _parent(root, layer)
        inner = parent[name]
        spare = 0 if resident else self.spare
        staging = self.reader.staging
        pool = Pool(layer.layer, layer.num_experts, slots, self.source, self.policy, spare, staging)
        _bind(inner, pool, self.source.quantization(layer.layer))
        self.stats.layers[layer.layer] = pool.stats
        for read in self.source.reads(layer.layer, 0):
            self.reader.open(read.path)  # now, so that a file replaced later does not come in half way
        if resident:
            placements = [(e, e) for e in range(layer.num_experts)]
            self.reader.submit([pool.fill(e, s) for e, s in placements]).wait()
            pool.commit(placements)
            self.resident[layer.layer] = pool
            return
        streamed = StreamedExperts(inner, pool, self.reader, wrap_sibling(parent))
        setattr(parent, name, streamed)
        self.streamed[layer.layer] = streamed

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        pools = [*self.resident.values(), *(s.pool for s in self.streamed.values())]
        return sum(p.nbytes for p in pools)

    @property
    def slots(self) -> dict[int, int]:
        """Slots per layer, resident layers included."""
        found = {n: p.slots for n, p in self.resident.items()} | {
            n: s.pool.slots for n, s in self.streamed.items()
        }
        return dict(sorted(found.items()))

    def counts(self) -> dict[int, np.ndarray]:
        """Router choices per expert of the streamed layers, since they were made."""
        return {n: s.counts.copy() for n, s in self.streamed.items()}

    def hot(self, limit: int | None = None) -> dict[int, list[int]]:
        """The experts now in slots, by layer, the most valuable first (at most `limit` per layer)."""
        found = {}
        for number, streamed in self.streamed.items():
            held = streamed.pool.holds
            held = held[held >= 0]
            order = np.argsort(-streamed.counts[held], kind="stable")
            found[number] = held[order][:limit].tolist()
        return found

    def warm(self, experts: Mapping[int, Iterable[int]]) -> None:
        """Read these experts in the background into empty slots, as far as there are any."""
        for number, wanted in experts.items():
            streamed = self.streamed.get(number)
            if streamed is not None:
                valid = [int(e) for e in wanted if 0 <= int(e) < streamed.pool.num_experts]
                streamed.quiesce()
                streamed.pool.start(valid, self.reader)

    def pin(self, usage: Mapping[int, np.ndarray], fraction: float) -> None:
        """Keep the hottest `fraction` of every pool for the most used experts; they are read now."""
        if fraction <= 0:
            return
        chosen = usage_module.hottest(
            usage, {n: int(fraction * (s.pool.slots - s.pool.spare)) for n, s in self.streamed.items()}
        )
        self.warm(chosen)
        for number, experts in chosen.items():
            if number in self.streamed:
                pool = self.streamed[number].pool
                pool.finish(experts)
                pool.pin(experts)

    def use_staging(self, staging: Staging | None) -> Staging | None:
        """Write the slots of streamed layers through `staging`, or directly; returns what was used before."""
        before, self.reader.staging = self.reader.staging, staging
        for streamed in self.streamed.values():
            streamed.pool.staging = staging
        return before

    def settle(self) -> None:
        """Wait for every background read."""
        for streamed in self.streamed.values():
            streamed.pool.finish()

    def close(self) -> None:
        """Release threads and files; background reads that have not begun are dropped."""
        self.reader.close()
        self.source.close()


def open_reader(config: EngineConfig) -> Reader:
    """A reader as `config` asks, with the staging that MLX's default device needs."""
    return Reader(config.readers, config.uncached, find_staging())


def _parent(root: nn.Module, layer: ExpertLayer) -> tuple[nn.Module, str]:
    """The module that holds the experts of `layer`, and their name in it.

    A file may lack the outer part of a module's path (or have more of it) where mlx-lm renames while loading.
    """
    from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

    prefix = layer.prefix
    if not isinstance(_at(root, prefix), SwitchGLU | SwitchMLP):
        dotted = f".{prefix}"
        paths = [
            path
            for path, module in root.named_modules()
            if isinstance(module, SwitchGLU | SwitchMLP)
            and (dotted.endswith(f".{path}") or f".{path}".endswith(dotted))
        ]
        if len(paths) != 1:
            raise CheckpointError(
                f"The experts at {prefix} are not a SwitchGLU in mlx-lm's model;"
                " this type cannot be streamed, use the llm-mlx plugin."
            )
        prefix = paths[0]
    outer, _, name = prefix.rpartition(".")
    return _at(root, outer), name


def _at(root: nn.Module, path: str) -> nn.Module | None:
    """The module at the dotted `path` below `root`, or None."""
    node = root
    try:
        for part in path.split("."):
            node = node[int(part)] if isinstance(node, list) else node[part]
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return node


def _bind(inner: nn.Module, pool: Pool, quantization: dict[str, Quantization | None] | None) -> None:
    """Give the projections of `inner` the pool's arrays (and their bits, where the source knows better)."""
    for proj in dict.fromkeys(s.proj for s in pool.segments):
        wanted = {s.tensor: a for s, a in zip(pool.segments, pool.arrays, strict=True) if s.proj == proj}
        if quantization is not None:
            inner[proj] = _projection(inner[proj], quantization[proj])
        module = inner[proj]
        have = {n for n in TENSORS if isinstance(module.get(n), mx.array)}
        if have != set(wanted):
            raise CheckpointError(
                f"Layer {pool.layer} {proj} has {sorted(wanted)} on disk but its config asks for"
                f" {sorted(have)}; config.json and weights do not belong together."
            )
        for tensor, array in wanted.items():
            if quantization is None and module[tensor].shape[1:] != array.shape[1:]:
                raise CheckpointError(
                    f"Layer {pool.layer} {proj}.{tensor} has shape {array.shape[1:]} on disk but the model"
                    f" expects {module[tensor].shape[1:]}; config.json and weights do not belong together."
                )
            setattr(module, tensor, array)


def _projection(module: nn.Module, wanted: Quantization | None) -> nn.Module:
    """A stock switch layer with the source's quantisation; its (lazy) weights are replaced by the caller."""
    from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

    outputs = module.output_dims
    inputs = module.input_dims
    bias = "bias" in module
    if wanted is None:
        return SwitchLinear(inputs, outputs, 1, bias=bias)
    return QuantizedSwitchLinear(
        inputs, outputs, 1, bias=bias, group_size=wanted.group_size, bits=wanted.bits, mode=wanted.mode
    )
