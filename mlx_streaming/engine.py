"""Engine: one loaded checkpoint, trunk in memory and experts in slots, ready to run turns."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chat.template import ChatTemplate
from .checkpoint.index import TensorIndex
from .checkpoint.load import build_model, load_trunk
from .checkpoint.spec import ModelSpec
from .checkpoint.tokenizer import load_tokenizer
from .config import EngineConfig
from .experts.memory import ExpertMemory
from .experts.source import ExpertSource, InPlaceSource
from .request import Status
from .state.fingerprint import fingerprint
from .state.session import Session
from .state.store import StateStore


@dataclass
class Engine:
    """Everything that a turn needs. `identity` names the weights, `load_s` is how long loading took."""

    spec: ModelSpec
    config: EngineConfig
    model: Any
    tokenizer: Any
    template: ChatTemplate
    memory: ExpertMemory
    session: Session
    identity: str
    load_s: float

    def close(self) -> None:
        """Finish writing snapshots, end the reads, let go of files."""
        self.session.store.close()
        self.memory.close()


def load_engine(
    path: Path, config: EngineConfig, on_status: Callable[[Status], None] | None = None
) -> Engine:
    """Load the checkpoint directory `path`: the trunk whole, of the experts only what fits the slots.

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
    model = build_model(spec)
    memory = ExpertMemory.install(model, spec, source, config, plan_slots(spec, config))
    loaded = load_trunk(model)
    report(Status("load", loaded, loaded))
    identity = hashlib.sha256(f"{index.digest()}|{source.identity()}".encode()).hexdigest()
    mark = fingerprint(weights=identity, config=spec.config, template=template.digest(), kv_format=config.kv_bits)
    store = StateStore(
        Path(config.cache_dir) if config.cache_dir else None, config.cache_memory, config.cache_quota, mark
    )
    return Engine(
        spec=spec,
        config=config,
        model=model,
        tokenizer=tokenizer,
        template=template,
        memory=memory,
        session=Session(store, model),
        identity=identity,
        load_s=time.perf_counter() - started,
    )


def open_source(spec: ModelSpec, index: TensorIndex, config: EngineConfig) -> ExpertSource:
    """The packed experts that `config.packed` names, else the checkpoint's own shards."""
    return InPlaceSource(spec, index)


def plan_slots(spec: ModelSpec, config: EngineConfig) -> dict[int, int]:
    """Slots per layer."""
    return {n: min(config.slots or e.num_experts, e.num_experts) for n, e in spec.experts.items()}
