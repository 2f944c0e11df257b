"""Engine: one loaded checkpoint, trunk in memory and experts in slots, ready to run turns."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np

from .chat.template import ChatTemplate
from .checkpoint.drop import require_experts
from .checkpoint.index import TensorIndex
from .checkpoint.load import build_model, load_trunk
from .checkpoint.mtp_extract import find_head
from .checkpoint.spec import ModelSpec
from .checkpoint.tokenizer import load_tokenizer
from .config import EngineConfig
from .experts.memory import ExpertMemory
from .experts.plan import Plan, apply_limits, plan_here
from .experts.profile import by_usage, from_file
from .experts.source import ExpertSource, InPlaceSource
from .experts.usage import add_usage, hottest, load_usage
from .generation.depth import DepthControl
from .generation.mtp import MTPHead
from .generation.mtp_load import load_head
from .request import Status
from .state.fingerprint import fingerprint
from .state.rotated_kv import install, parse_bits
from .state.session import Session
from .state.store import StateStore


@dataclass
class Engine:
    """Everything that a turn needs.

    `identity` names the weights and where the experts come from, `weights` the checkpoint alone.
    """

    spec: ModelSpec
    config: EngineConfig
    plan: Plan
    model: Any
    tokenizer: Any
    template: ChatTemplate
    memory: ExpertMemory
    session: Session
    identity: str
    weights: str
    head: MTPHead | None = None
    load_s: float = 0.0
    tokens_run: int = 0
    _depths: dict[str, DepthControl] = field(default_factory=dict)
    _counted: dict[int, np.ndarray] = field(default_factory=dict)
    _tokens_counted: int = 0

    @property
    def context(self) -> int:
        """Tokens that a conversation may have."""
        return self.plan.context

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends a turn."""
        return frozenset(self.spec.eos_ids) | frozenset(self.tokenizer.eos_token_ids)

    def depth(self, mode: str) -> DepthControl:
        """How deep to draft, with what was learned in earlier turns; `mode` is "auto", "1", "2" or "3"."""
        if mode not in self._depths:
            self._depths[mode] = DepthControl(mode)
        return self._depths[mode]

    def settle(self) -> None:
        """After the answer is on the screen: finish writing snapshots, keep the routing counts."""
        self.session.flush()
        path = self.config.usage_path(self.identity)
        if path is not None:
            counts = self.memory.counts()
            new = {n: c - self._counted.get(n, 0) for n, c in counts.items()}
            add_usage(path, new, self.tokens_run - self._tokens_counted)
            self._counted, self._tokens_counted = counts, self.tokens_run

    def close(self) -> None:
        """Finish writing, end the reads, let go of files."""
        try:
            self.settle()
        finally:
            self.session.close()
            if self.head is not None:
                self.head.close()
            self.memory.close()


def load_engine(
    path: Path,
    config: EngineConfig,
    on_status: Callable[[Status], None] | None = None,
    force_streamed: bool = False,
) -> Engine:
    """Load the checkpoint directory `path`: the trunk whole, of the experts only what fits the slots.

    `force_streamed` streams also layers with a slot for every expert (to measure what streaming costs).

    Raises:
        CheckpointError: the checkpoint is damaged, of an unsupported kind, or lacks tokenizer or template.
        CapacityError: it cannot fit into the memory allowed.
    """
    started = time.perf_counter()
    report = on_status or (lambda status: None)
    index = TensorIndex.open(path)
    spec = ModelSpec.read(path, index)
    report(Status("load", 0, spec.trunk_bytes))
    tokenizer = load_tokenizer(path)
    template = ChatTemplate(tokenizer)
    source = open_source(spec, index, config)
    identity = _identity(index, source)
    usage_path = config.usage_path(identity)
    usage = load_usage(usage_path) if usage_path else {}
    plan = plan_here(spec, config)
    apply_limits(plan)
    model = build_model(spec)
    slots = shape_slots(plan, spec, usage, config)
    memory = ExpertMemory.install(model, spec, source, config, slots, force_streamed)
    with ExitStack() as undo:
        undo.callback(memory.close)
        if config.warm:
            memory.warm(hottest(usage, memory.slots))
        load_trunk(model)
        memory.pin(usage, config.pin)
        head = open_head(model, spec, config)
        if head is not None:
            undo.callback(head.close)
        session = open_session(model, spec, config, plan, identity, template)
        undo.pop_all()
    report(Status("load", spec.trunk_bytes, spec.trunk_bytes))
    engine = Engine(
        spec, config, plan, model, tokenizer, template, memory, session, identity, index.digest(), head
    )
    engine.load_s = time.perf_counter() - started
    return engine


def identity_of(path: Path, config: EngineConfig) -> str:
    """What `Engine.identity` would be, without loading anything.

    Raises:
        CheckpointError: the checkpoint or its packed experts cannot be read.
    """
    index = TensorIndex.open(path)
    source = open_source(ModelSpec.read(path, index), index, config)
    try:
        return _identity(index, source)
    finally:
        source.close()


def _identity(index: TensorIndex, source: ExpertSource) -> str:
    return hashlib.sha256(f"{index.digest()}|{source.identity()}".encode()).hexdigest()


def open_source(spec: ModelSpec, index: TensorIndex, config: EngineConfig) -> ExpertSource:
    """The packed experts that `config.packed` names, else the checkpoint's own shards.

    Raises:
        CheckpointError: the packed experts are missing, damaged or another checkpoint's, or the checkpoint's
            own were dropped.
    """
    if config.packed:
        from .experts.packed_source import PackedSource

        return PackedSource(Path(config.packed), spec, index)
    require_experts(spec, index)
    return InPlaceSource(spec, index)


def open_head(model: nn.Module, spec: ModelSpec, config: EngineConfig) -> MTPHead | None:
    """The checkpoint's MTP head, or None when it has none or speculation is off."""
    if config.mtp == "off" or find_head(spec.path) is None:
        return None
    return load_head(model, spec.path, config, cache_dir=Path(config.mtp_dir) if config.mtp_dir else None)


def open_session(
    model: nn.Module,
    spec: ModelSpec,
    config: EngineConfig,
    plan: Plan,
    identity: str,
    template: ChatTemplate,
) -> Session:
    """The snapshots of `model`, under the fingerprint of all that they depend on."""
    mark = fingerprint(
        identity,
        (spec.path / "config.json").read_bytes(),
        kv_format=config.kv_bits,
        template=template.digest(),
        chunk=plan.chunk,
    )
    bits = parse_bits(config.kv_bits)
    directory = Path(config.cache_dir) if config.cache_dir else None
    store = StateStore(directory, plan.snapshot_bytes, config.cache_quota, mark, spec.path.name)
    return Session(store, model, install(model, bits) if bits else None)


def shape_slots(
    plan: Plan, spec: ModelSpec, usage: Mapping[int, np.ndarray], config: EngineConfig
) -> dict[int, int]:
    """Slots per layer: the plan's, shared out among its streamed layers by `config.profile`.

    "auto" follows the usage of past runs once there is any, "off" keeps the plan's even shares, a file gives
    {"slots": {layer: count}}. But for a file the total stays the plan's, and so does the memory.

    Raises:
        EngineError: the profile file cannot be used.
    """
    if config.profile not in ("auto", "off"):
        return from_file(Path(config.profile), plan.slots, plan.experts)
    streamed = {n: e for n, e in plan.experts.items() if n not in plan.resident}
    if config.profile == "off" or not streamed or not any(n in usage for n in streamed):
        return dict(plan.slots)
    spare = config.lookahead_budget if config.lookahead else 0
    least = {n: min(plan.slots[n], spec.experts[n].top_k + spare) for n in streamed}
    # A streamed layer keeps at least one expert outside: with all of them inside it would become resident.
    room = {n: e - 1 for n, e in streamed.items()}
    budget = sum(plan.slots[n] for n in streamed)
    shares = by_usage(budget, {n: usage[n] for n in streamed if n in usage}, streamed, least, room)
    return dict(plan.slots) | shares
