"""Only trunk and slots are ever in memory: measured in a child process on more than 1 GB of experts."""

import json
import subprocess
import sys

from helpers_memory import PEAK

from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.checkpoint.synthesize import synthesize

# Python objects of the model, MLX's freed buffers and threads' stacks, beyond what the imports took.
CONSTANT = 60 * 10**6

CHILD = """
import json, sys
import mlx.core as mx
import mlx_lm.utils, mlx_lm.models.qwen3_next
from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import load_engine
from mlx_streaming.generation.prefill import prefill
from mlx_streaming.generation.decode import decode
from mlx_streaming.generation.sampling import Sampler
from mlx_streaming.request import Sampling

before = peak()
engine = load_engine(sys.argv[1], EngineConfig(slots=int(sys.argv[2]), mtp="off", prefill_chunk=64))
cache = engine.session.make_cache()
logits = prefill(engine.model, list(range(40)), cache, chunk=engine.plan.chunk)
steps = decode(engine.model, cache, logits, Sampler(Sampling(temperature=0), engine.spec.vocab_size))
tokens = [next(steps) for _ in range(4)]
total = engine.memory.stats.total()
slots = engine.memory.nbytes
print(json.dumps({"grown": peak() - before, "slots": slots, "reads": total.reads, "tokens": tokens}))
"""


def test_peak_memory_is_trunk_and_slots(tmp_path):
    out = tmp_path / "big"
    synthesize(out, "tiny", layers=4, experts=512, hidden=768, expert_width=512)
    spec = ModelSpec.read(out)
    assert spec.expert_bytes >= 10**9
    slots = 51
    done = subprocess.run(
        [sys.executable, "-c", PEAK + CHILD, str(out), str(slots)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["slots"] == slots * sum(e.expert_bytes for e in spec.experts.values())
    assert found["slots"] < 0.1 * spec.expert_bytes and found["reads"] > slots
    needed = spec.trunk_bytes + found["slots"]
    assert found["grown"] <= 1.15 * needed + CONSTANT, (found, needed)
