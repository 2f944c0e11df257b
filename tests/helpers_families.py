"""Running one checkpoint stock and streamed, and comparing every logit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.source import InPlaceSource
from mlx_streaming.state.snapshot import capture


def prompt_of(length: int) -> list[int]:
    """A prompt without repetition, away from the special tokens."""
    return [int(t) for t in np.random.default_rng(length).integers(100, 8000, length)]


@dataclass
class Run:
    """What one greedy run gave: the logits of every prompt position and of each step, and the tokens."""

    logits: list[np.ndarray] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def take(self, logits: mx.array) -> int:
        self.logits.append(np.array(logits.astype(mx.float32))[0])
        self.tokens.append(int(self.logits[-1][-1].argmax()))
        return self.tokens[-1]

    def compare(self, other: Run) -> int:
        """The number of logits found identical, bit for bit; differing ones fail."""
        assert self.tokens == other.tokens
        count = 0
        assert len(self.logits) == len(other.logits) > 1
        for mine, theirs in zip(self.logits, other.logits, strict=True):
            assert mine.shape == theirs.shape and np.isfinite(mine).all()
            differing = int((mine.view(np.uint32) != theirs.view(np.uint32)).sum())
            assert not differing, f"{differing} of {mine.size} logits differ, by {abs(mine - theirs).max()}"
            count += mine.size
        return count


def generate(model, prompt: list[int], steps: int, cache=None) -> Run:
    """Greedy: the whole prompt in one forward, then `steps` tokens one by one."""
    cache = cache if cache is not None else make_prompt_cache(model)
    run = Run()
    token = run.take(model(mx.array(prompt)[None], cache=cache))
    for _ in range(steps):
        token = run.take(model(mx.array([[token]]), cache=cache))
    return run


def stock(path: Path):
    return load_model(path)[0]


def streamed(path: Path, slots: int, force: bool = True) -> tuple[object, ExpertMemory]:
    """The stock model with at most `slots` slots in each expert layer."""
    index = TensorIndex.open(path)
    spec = ModelSpec.read(path, index)
    model = build_model(spec)
    counts = {layer: min(slots, e.num_experts) for layer, e in spec.experts.items()}
    memory = ExpertMemory.install(
        model, spec, InPlaceSource(spec, index), EngineConfig(), counts, force_streamed=force
    )
    load_trunk(model)
    return model, memory


def in_two(model, prompt: list[int], at: int, steps: int, through_snapshot: bool) -> Run:
    """As `generate`, with the prompt in two forwards; between them the caches may go through a snapshot."""
    cache = make_prompt_cache(model)
    first = model(mx.array(prompt[:at])[None], cache=cache)
    mx.eval(first)
    if through_snapshot:
        snapshot = capture(cache, at)
        del cache
        cache = snapshot.restore(model)
    run = generate(model, prompt[at:], steps, cache)
    run.logits[0] = np.concatenate([np.array(first.astype(mx.float32))[0], run.logits[0]])
    return run
