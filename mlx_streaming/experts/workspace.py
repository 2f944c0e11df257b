"""workspace: the memory that one prefill chunk needs while it is computed."""

from __future__ import annotations

from ..checkpoint.spec import ModelSpec, Segment
from ..footprint import Footprint

# How many of each kind of intermediate exist at the same time, fitted to peaks on the CPU backend: 12 runs of
# three families with 256 to 1024 tokens came out between 0.85 and 1.2 of this.
_MATRIX_COPIES = 1.5
_SCORE_COPIES = 2.25
_EXPERT_INPUTS = 5  # picked rows, the down projection, waves joined, reordered, weighted
_EXPERT_INNER = 2  # gate and up, then their product in place of one
_RESIDUALS = 2
# Head widths for which a backend attends to a prompt without a matrix of scores: the steel_attention kernels
# in mlx-metal 0.32.4, and what cuDNN takes on all its devices.
_FUSED_HEAD_DIMS = {"metal": (64, 72, 80, 96, 128, 192, 256), "cuda": (64, 80, 96, 128)}


def workspace(spec: ModelSpec, shape: Footprint, chunk: int, context: int, backend: str = "") -> int:
    """Bytes at the peak of a forward of `chunk` tokens at the end of `context`, beyond weights and state."""
    size, hidden = shape.float_bytes, spec.hidden_size
    rows = min(chunk, context)
    matrices = _MATRIX_COPIES * shape.widest_layer * size
    fused = shape.head_dim in _FUSED_HEAD_DIMS.get(backend, ())
    scores = 0 if fused else _SCORE_COPIES * shape.heads * context * size
    experts = max(
        e.top_k * (_EXPERT_INPUTS * hidden + _EXPERT_INNER * _inner_width(e.segments)) * size
        for e in spec.experts.values()
    )
    per_token = matrices + scores + experts + _RESIDUALS * hidden * size
    logits = 4 * spec.vocab_size * 4  # one row in float32: raw, normalised, filtered, sorted
    return int(rows * per_token) + logits


def _inner_width(segments: tuple[Segment, ...]) -> int:
    """Rows of the first projection: the width inside an expert."""
    return next(s.shape[0] for s in segments if s.tensor == "weight")
