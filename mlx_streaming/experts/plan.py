"""plan: share a memory budget among trunk, state, workspace and expert slots, before loading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..checkpoint.packed import Manifest
from ..checkpoint.spec import ModelSpec
from ..config import EngineConfig
from ..errors import CapacityError
from ..footprint import Footprint, footprint, kv_bits
from ..machine import Machine
from .shares import LayerNeed, smallest_pools, spread
from .workspace import workspace

# Python, MLX, mlx-lm and libraries: 100 MB (measured); a tokenizer of 150,000 words takes as much again.
RUNTIME_BYTES = 250 * 10**6
# Share of the machine that is planned when no memory is given. While experts stream, the rest is the page
# cache that serves misses: peers on 32 GB got slower beyond 208 of 512 slots of Qwen3-Next, about 65 %.
STREAMING_SHARE = 0.65
# With every expert resident nothing is read any more, so only other programs need room.
RESIDENT_SHARE = 0.85
# MLX keeps freed buffers for reuse; with 256 MB of them and wired memory a peer went from 15.9 to 23.4 tok/s.
ALLOCATOR_CACHE = 256 * 2**20
USUAL_CONTEXT = 32768
_SMALLEST_CONTEXT = 256
_EASY_SHARE = 8
_SMALLEST_CHUNK = 128
_WORKSPACE_SHARE = 8  # the prefill chunk shrinks until its workspace is below memory / this


@dataclass(frozen=True)
class Plan:
    """Where the memory goes; sizes in bytes.

    memory: the budget. context: tokens that the state is sized for. chunk: tokens per prefill forward.
    slots: per layer; as many as `experts` says make the layer resident. cache_bytes: MLX's freed buffers.
    snapshot_bytes: limit of the snapshots kept in memory. pool_bytes: all slots.
    """

    memory: int
    machine_memory: int
    backend: str
    context: int
    chunk: int
    slots: dict[int, int]
    experts: dict[int, int]
    trunk_bytes: int
    kv_bytes: int
    recurrent_bytes: int
    snapshot_bytes: int
    workspace_bytes: int
    mtp_bytes: int
    cache_bytes: int
    runtime_bytes: int
    pool_bytes: int

    @property
    def resident(self) -> frozenset[int]:
        """Layers with all their experts in memory."""
        return frozenset(n for n, count in self.slots.items() if count == self.experts[n])

    @property
    def mlx_bytes(self) -> int:
        """Predicted peak of what MLX allocates (`mx.get_peak_memory`), freed buffers not counted."""
        state = self.kv_bytes + self.recurrent_bytes + self.snapshot_bytes
        return self.trunk_bytes + state + self.workspace_bytes + self.mtp_bytes + self.pool_bytes

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the process."""
        return self.mlx_bytes + self.cache_bytes + self.runtime_bytes

    @property
    def page_cache_bytes(self) -> int:
        """What the machine has left for its page cache and other programs."""
        return max(0, self.machine_memory - self.peak_bytes)

    def to_json(self) -> dict[str, Any]:
        """All fields and what follows from them, for `--json`."""
        derived = ("mlx_bytes", "peak_bytes", "page_cache_bytes")
        return (
            asdict(self)
            | {name: getattr(self, name) for name in derived}
            | {
                "resident_layers": sorted(self.resident),
                "streamed_layers": len(self.slots) - len(self.resident),
            }
        )


@dataclass(frozen=True)
class _Question:
    """What stays the same while contexts and chunks are tried."""

    spec: ModelSpec
    needs: dict[int, LayerNeed]
    shape: Footprint
    config: EngineConfig
    machine: Machine
    mtp_bytes: int

    def plan(self, memory: int, context: int, chunk: int, slots: dict[int, int]) -> Plan:
        kv = self.shape.kv_bytes(context, *kv_bits(self.config.kv_bits))
        state = kv + self.shape.recurrent_bytes
        work = workspace(self.spec, self.shape, chunk, context, self.machine.backend)
        return Plan(
            memory=memory,
            machine_memory=self.machine.total_memory,
            backend=self.machine.backend,
            context=context,
            chunk=chunk,
            slots=slots,
            experts={n: need.experts for n, need in self.needs.items()},
            trunk_bytes=self.spec.trunk_bytes,
            kv_bytes=kv,
            recurrent_bytes=self.shape.recurrent_bytes,
            snapshot_bytes=min(self.config.cache_memory, 2 * state),
            workspace_bytes=work,
            mtp_bytes=self.mtp_bytes,
            cache_bytes=min(ALLOCATOR_CACHE, work),
            runtime_bytes=RUNTIME_BYTES,
            pool_bytes=sum(slots[n] * need.expert_bytes for n, need in self.needs.items()),
        )

    def fixed(self, memory: int, context: int, smallest: bool = False) -> Plan:
        """A plan without slots, its chunk lowered until the workspace is a small part of `memory`."""
        none = dict.fromkeys(self.needs, 0)
        chunk = min(self.config.prefill_chunk, _SMALLEST_CHUNK) if smallest else self.config.prefill_chunk
        found = self.plan(memory, context, chunk, none)
        while found.workspace_bytes > memory // _WORKSPACE_SHARE and chunk > _SMALLEST_CHUNK:
            chunk = max(_SMALLEST_CHUNK, chunk // 2)
            found = self.plan(memory, context, chunk, none)
        return found

    def least(self, context: int, share: int | None = None) -> int:
        """The smallest memory for `context`, with 1 / `share` of the experts in slots if that is given."""
        slots = self.config.slots
        if slots is None and share:
            slots = max(max(n.least, n.experts // share) for n in self.needs.values())
        pools = smallest_pools(self.needs, slots, self.config.resident_layers)
        return self.fixed(0, context, smallest=True).peak_bytes + pools


def plan(
    spec: ModelSpec,
    *,
    config: EngineConfig,
    machine: Machine,
    shape: Footprint,
    expert_bytes: Mapping[int, int] | None = None,
    mtp_bytes: int = 0,
) -> Plan:
    """Divide `config.memory` (None: a share of the machine) for `config.context` tokens (None: what fits).

    `config.slots` and `config.resident_layers` are kept when given. `expert_bytes` per layer replaces the
    checkpoint's own (packed experts of other bits). `mtp_bytes` is what the MTP head takes with its pool.

    Raises:
        CapacityError: it cannot fit; the message names the smallest memory and the largest context that do.
    """
    sizes = {n: e.expert_bytes for n, e in spec.experts.items()} | dict(expert_bytes or {})
    needs = {n: LayerNeed(e.num_experts, sizes[n], e.top_k) for n, e in spec.experts.items()}
    ask = _Question(spec, needs, shape, config, machine, mtp_bytes)
    if config.context is not None and config.context > spec.max_context:
        raise CapacityError(
            f"{spec.name} was trained for {spec.max_context} tokens, so a context of {config.context}"
            f" is too long; set context to {spec.max_context} at most."
        )
    contexts = [config.context] if config.context else _contexts(spec.max_context)
    memory = config.memory or int(machine.usable * RESIDENT_SHARE)
    if config.memory is None and config.slots is None and config.resident_layers is None:
        whole = _whole(ask, memory, contexts[0])
        if whole is not None:
            return whole
        memory = min(int(machine.total_memory * STREAMING_SHARE), memory)
    # A long context is not worth pools that nearly always miss; when they must be that small, it is shortest.
    for context in contexts:
        if ask.least(context, share=_EASY_SHARE) <= memory:
            return _fill(ask, memory, context)
    for context in reversed(contexts):
        if ask.least(context) <= memory:
            return _fill(ask, memory, context)
    raise _refusal(ask, memory, contexts[-1])


def plan_checkpoint(spec: ModelSpec, config: EngineConfig) -> Plan:
    """`plan` on this machine, with the sizes of `config.packed` and of the MTP head that would be used.

    `config.memory` beyond the machine's plans for a larger one; see `plan_here`. Imports MLX; nothing is
    evaluated.

    Raises:
        CheckpointError: mlx-lm does not know the model type, or there is no sound pack.
        CapacityError: as `plan`.
    """
    packed = Manifest.read(config.packed).layers if config.packed else {}
    shape = footprint(spec.config)
    context = config.context or min(spec.max_context, USUAL_CONTEXT)
    return plan(
        spec,
        config=config,
        machine=Machine.detect(device=True),
        shape=shape,
        expert_bytes={n: layer.expert_bytes for n, layer in packed.items()},
        mtp_bytes=_head_bytes(spec, config, shape, context),
    )


def plan_here(spec: ModelSpec, config: EngineConfig) -> Plan:
    """`plan_checkpoint` for a model that is about to be loaded.

    Raises:
        CheckpointError: as `plan_checkpoint`.
        CapacityError: it cannot fit, or `config.memory` is more than this machine has.
    """
    most = Machine.detect(device=True).most
    if config.memory and config.memory > most:
        raise CapacityError(
            f"memory is set to {_shown(config.memory)}, but this machine has {most / 1e9:.2f} GB;"
            " leave it out to have it planned, or set it to less."
        )
    return plan_checkpoint(spec, config)


def apply_limits(made: Plan) -> None:
    """Tell MLX the plan: wired memory, from where on it frees before it allocates, and its buffer cache.

    Backends without such limits ignore them.
    """
    import mlx.core as mx

    mx.set_cache_limit(made.cache_bytes)
    if made.backend == "metal":
        limit = mx.device_info()["max_recommended_working_set_size"]
        mx.set_wired_limit(min(made.mlx_bytes + made.cache_bytes, limit))
    if made.backend in ("metal", "cuda"):
        mx.set_memory_limit(max(made.memory, made.peak_bytes))


def _head_bytes(spec: ModelSpec, config: EngineConfig, shape: Footprint, context: int) -> int:
    """The MTP head: its weights once quantised, its slots, and one more layer of keys and values."""
    from ..checkpoint.mtp_extract import EXPERTS, PREFIX, STACKED, HeadBits, find_head

    head = find_head(spec.path) if config.mtp != "off" and spec.path.is_dir() else None
    if head is None:
        return 0
    bits = HeadBits(trunk=config.mtp_bits)
    trunk = experts = 0.0
    counts = {e.num_experts for e in spec.experts.values()}
    for name, info in head.index.tensors.items():
        if not name.startswith(PREFIX):
            continue
        nbytes: float = info.nbytes
        if not head.packed and len(info.shape) == 2 and (kept := bits.of(name)):
            nbytes = math.prod(info.shape) * (kept + 32 / bits.group_size) / 8
        if name.startswith((EXPERTS, STACKED)):
            experts += nbytes
        else:
            trunk += nbytes
    share = min(1.0, (config.mtp_slots or max(counts)) / max(counts))
    keys = shape.kv_bytes(context) // max(1, len(shape.growing))
    return int(trunk + experts * share) + keys


def _contexts(longest: int) -> list[int]:
    """Contexts to try when none is asked for: the usual one, then halves of it."""
    context, found = min(longest, USUAL_CONTEXT), []
    while context >= min(longest, 2048):
        found.append(context)
        context //= 2
    return found


def _whole(ask: _Question, memory: int, context: int) -> Plan | None:
    """The plan with every expert in memory, if that fits."""
    slots = {n: need.experts for n, need in ask.needs.items()}
    made = ask.plan(memory, context, ask.fixed(memory, context).chunk, slots)
    return made if made.peak_bytes <= memory else None


def _fill(ask: _Question, memory: int, context: int) -> Plan:
    """Give what the fixed parts leave to the pools."""
    fixed = ask.fixed(memory, context)
    least = smallest_pools(ask.needs, ask.config.slots, ask.config.resident_layers)
    while memory - fixed.peak_bytes < least and fixed.chunk > _SMALLEST_CHUNK:
        fixed = ask.plan(memory, context, max(_SMALLEST_CHUNK, fixed.chunk // 2), fixed.slots)
    left = memory - fixed.peak_bytes
    slots = spread(ask.needs, left, ask.config.slots, ask.config.resident_layers)
    return ask.plan(memory, context, fixed.chunk, slots)


def _refusal(ask: _Question, memory: int, context: int) -> CapacityError:
    name, least = ask.spec.name, ask.least(context)
    have = "are given" if ask.config.memory else "can be planned on this machine"
    message = (
        f"{name} with a context of {context} tokens needs at least {_shown(least)}, but {_shown(memory)}"
        f" {have}; set memory to {_shown(least)}"
    )
    low, high = 0, context
    while high - low > _SMALLEST_CONTEXT:
        middle = (low + high) // 2
        low, high = (middle, high) if ask.least(middle) <= memory else (low, middle)
    low = low // _SMALLEST_CONTEXT * _SMALLEST_CONTEXT
    if low:
        return CapacityError(f"{message}, or context to {low}.")
    fewer = ", or take fewer slots" if ask.config.slots else ""
    return CapacityError(f"{message}{fewer} (no context fits otherwise).")


def _shown(size: int) -> str:
    """A size that can be typed back, rounded up."""
    if size < 10**9:
        return f"{-(-size // 10**6)}MB"
    return f"{-(-size // 10**7) / 100:g}GB"
