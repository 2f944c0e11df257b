"""Tool calls on held-out function and parameter names: valid and exact, with the grammar on and off.

    python -m mlx_streaming.demo.build.evaluation.tools [CHECKPOINT] [--count 200]

Every call is checked again with jsonschema, apart from what the engine says of it.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import jsonschema

from mlx_streaming.config import EngineConfig
from mlx_streaming.demo import checkpoint_path
from mlx_streaming.demo.build.evaluation import skills
from mlx_streaming.mlx_backend import MLXBackend
from mlx_streaming.request import Request, Sampling


def valid(call, tools: list[dict]) -> bool:
    """Whether a call names an offered tool and its arguments fit that tool's schema."""
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    if call.error or call.name not in schemas:
        return False
    try:
        jsonschema.validate(call.arguments, schemas[call.name])
    except jsonschema.ValidationError:
        return False
    return True


def evaluate(checkpoint: Path, count: int, seed: int = 111) -> dict[str, dict[str, int]]:
    """Counts of prompts, calls, valid calls and exact answers, for grammar "on" and "off"; greedy."""
    task = skills.single_calls("held-out", skills.HELD_OUT_NOUNS, 0.0, count, seed)
    backend = MLXBackend(checkpoint, EngineConfig(mtp="off"))
    found = {mode: Counter() for mode in ("on", "off")}
    for case in task.cases:
        tools = [
            t if t.get("type") == "function" else {"type": "function", "function": t} for t in case.tools
        ]
        for mode, counts in found.items():
            request = Request(
                tuple(skills.as_template(case.messages)),
                tools=tuple(tools),
                sampling=Sampling(temperature=0),
                max_tokens=160,
                grammar=mode == "on",
                cache="memory",
            )
            calls = backend.generate(request).tool_calls
            counts["prompts"] += 1
            counts["calls"] += len(calls)
            counts["valid"] += sum(valid(call, tools) for call in calls)
            counts["exact"] += [{"name": c.name, "arguments": c.arguments} for c in calls] == case.expected
    backend.close()
    return {mode: dict(counts) for mode, counts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", default=checkpoint_path())
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    print(json.dumps(evaluate(options.checkpoint, options.count), indent=2))


if __name__ == "__main__":
    main()
