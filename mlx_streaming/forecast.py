"""Forecast: how fast a checkpoint will be with given slots, from a few measured rates.

A generated token costs the sum of: reading the resident weights once, reading the chosen experts from
memory, one look at the router's choice per streamed layer, launching the operations, sampling, and fetching
the experts that are in no slot. The first token of a new process costs loading plus the prompt, in which
nearly every expert is needed once. Every constant below that is not measured by `probes` says where it comes
from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .checkpoint.index import TensorIndex
from .checkpoint.spec import ExpertLayer, ModelSpec, text_config
from .probes import ComputeRates, DiskRates

# Share of lookups that find their expert in a slot: 1 - (1 - f) * exp(-5 f^0.7), f = slots / experts. Through
# published figures for Qwen3-Next (0.80, 0.88, 0.93, 0.97, 0.99 at 96 to 256 of 512; 0.66 to 0.83 at 64).
_HIT_SCALE, _HIT_POWER = 5.0, 0.7
_START_SECONDS = 1.5  # importing llm, mlx-lm and the tokenizer of a real model
_SYSTEM_BYTES = 4 * 10**9  # what the system and other programs keep from the page cache
PROMPT = 200  # tokens of the prompt in a forecast


@dataclass(frozen=True)
class Forecast:
    """Tokens per second without speculation, seconds to the first word, and where the time goes.

    parts: seconds of one generated token. hit_rate: share of expert lookups served from slots; `hit_source`
    says whose figure that is. cached_share: of the misses that the page cache is expected to serve.
    """

    tps: float
    first_token_s: float
    load_s: float
    prompt_s: float
    prompt_tokens: int
    parts: dict[str, float]
    hit_rate: float
    hit_source: str
    misses: float
    bytes_per_token: int
    cached_share: float

    def to_json(self) -> dict[str, Any]:
        """All fields, rounded to what they are worth."""
        return _rounded(asdict(self))

    @property
    def reasons(self) -> list[str]:
        """What a token's time goes into, the largest part first; parts below 5 % are left out."""
        total = sum(self.parts.values())
        return [
            f"{1e3 * seconds:.1f} ms {_REASONS[name].format(self=self, mb=self.bytes_per_token / 1e6)}"
            for name, seconds in sorted(self.parts.items(), key=lambda item: -item[1])
            if seconds > 0.05 * total
        ]


_REASONS = {
    "trunk": "for the weights that every token needs",
    "experts": "for the chosen experts' arithmetic",
    "host": "looking at the router's choice in each streamed layer",
    "turn": "choosing the token and turning it into text",
    "launch": "starting the operations of each layer",
    "reads": "fetching {self.misses:.0f} missing experts ({mb:.0f} MB, hit rate {self.hit_rate:.2f})",
}


def forecast(
    spec: ModelSpec,
    index: TensorIndex,
    slots: Mapping[int, int],
    disk: DiskRates,
    compute: ComputeRates,
    *,
    spare_memory: int,
    expert_bytes: Mapping[int, int] | None = None,
    hit_rate: float | None = None,
    prompt_tokens: int = PROMPT,
) -> Forecast:
    """Forecast `spec` with `slots` per layer (as many as there are experts: resident).

    `spare_memory`: bytes beside the process, of which the page cache gets what the system leaves.
    `expert_bytes` per layer replaces the checkpoint's own (packed experts of other bits).
    `hit_rate`: measured over the streamed layers with these slots (None: estimated).
    """
    sizes = expert_bytes or {n: e.expert_bytes for n, e in spec.experts.items()}
    streamed = {n: e for n, e in spec.experts.items() if slots[n] < e.num_experts}
    lookups = sum(e.top_k for e in streamed.values())
    if hit_rate is None:
        hits = sum(e.top_k * expected_hits(slots[n] / e.num_experts) for n, e in streamed.items())
        share, source = (hits / lookups if lookups else 1.0), "estimated"
    else:
        share, source = hit_rate, "measured in the last run"
    size = max((sizes[n] for n in streamed), default=0)
    misses = lookups * (1 - share)
    on_disk = sum((e.num_experts - slots[n]) * sizes[n] for n, e in streamed.items())
    cached = min(1.0, max(0, spare_memory - _SYSTEM_BYTES) / on_disk) if on_disk else 0.0
    per_byte = cached / disk.cached + (1 - cached) / disk.disk
    trunk = spec.trunk_bytes - _idle_bytes(spec, index)
    chosen = sum(e.top_k * sizes[n] for n, e in spec.experts.items())
    parts = {
        "trunk": trunk / compute.weights,
        "experts": chosen / compute.weights,
        "host": len(streamed) * compute.host_s,
        "launch": spec.num_layers * compute.launch_s,
        "turn": compute.turn_s,
        "reads": misses * (size * per_byte + compute.miss_s),
    }
    resident = sum(e.num_experts * sizes[n] for n, e in spec.experts.items() if n not in streamed)
    load = _START_SECONDS + (spec.trunk_bytes + resident) / disk.disk
    needed = {n: _distinct(e, prompt_tokens) * sizes[n] for n, e in spec.experts.items()}
    weights = (trunk + chosen) / _bytes_per_weight(spec)
    arithmetic = max(
        2 * weights * prompt_tokens / compute.flops, (trunk + sum(needed.values())) / compute.weights
    )
    # slots are empty and nothing is in the page cache; reads go on under the arithmetic
    prompt = max(arithmetic, sum(needed[n] for n in streamed) / disk.disk) + parts["host"] + parts["launch"]
    token = sum(parts.values())
    return Forecast(
        tps=1 / token,
        first_token_s=load + prompt,
        load_s=load,
        prompt_s=prompt,
        prompt_tokens=prompt_tokens,
        parts=parts,
        hit_rate=share,
        hit_source=source,
        misses=misses,
        bytes_per_token=int(misses * size),
        cached_share=cached,
    )


def expected_hits(share: float) -> float:
    """Expected share of hits when a layer has slots for `share` of its experts."""
    return 1 - (1 - share) * math.exp(-_HIT_SCALE * share**_HIT_POWER) if share < 1 else 1.0


def _distinct(layer: ExpertLayer, tokens: int) -> float:
    """Experts that `tokens` tokens need at least once, were all equally likely: an upper bound."""
    return layer.num_experts * (1 - (1 - layer.top_k / layer.num_experts) ** tokens)


def _bytes_per_weight(spec: ModelSpec) -> float:
    bits, group = spec.quantization.get("bits"), spec.quantization.get("group_size", 64)
    return bits / 8 + 4 / group if bits else 2.0


def _idle_bytes(spec: ModelSpec, index: TensorIndex) -> int:
    """Of the trunk, the embedding table: a token reads one row of it, unless it is the output layer too."""
    if text_config(spec.config).get("tie_word_embeddings"):
        return 0
    return sum(t.nbytes for name, t in index.tensors.items() if ".embed_tokens." in f".{name}")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
