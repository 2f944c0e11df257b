"""Compare model.py with mlx-lm's qwen3_next: the same unquantised weights must give the same logits.

    python -m mlx_streaming.demo.build.check WEIGHTS --reference FILE.npz

Run it twice: in an environment without torch it writes mlx-lm's logits to FILE.npz, in one with torch it
compares with them.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np

TOLERANCE = 1e-3  # of logits that reach about 40, in float32
TOKENS = 150


def reference(weights: Path, file: Path) -> None:
    import mlx.core as mx
    from mlx_lm.models import qwen3_next

    from .export import CONFIG, read_weights, release_names

    named = {k: w.astype(mx.float32) for k, w in release_names(read_weights(weights)).items()}
    model = qwen3_next.Model(qwen3_next.ModelArgs.from_dict(CONFIG))
    main = {k: w for k, w in named.items() if not k.startswith("mtp.")}
    model.load_weights(list(model.sanitize(main).items()))
    ids = np.random.default_rng(0).integers(0, CONFIG["vocab_size"], TOKENS)
    np.savez(file, ids=ids, logits=np.array(model(mx.array(ids)[None])[0]))
    print(f"wrote the logits of {TOKENS} tokens to {file}")


def compare(weights: Path, file: Path) -> float:
    """Largest difference of logits, for the tokens alone and as the second of two packed documents."""
    import torch

    from .batches import Document, pack
    from .model import Model
    from .train import read_weights

    expected = np.load(file)
    model = Model()
    model.load_state_dict(read_weights(weights))
    document = Document(expected["ids"], np.ones(len(expected["ids"]), np.float32))
    batch = pack([[document, document]], -(-2 * TOKENS // 64) * 64)
    with torch.no_grad():
        hidden = model(batch.tokens, batch.layout, batch.weights.flatten())[0]
        logits = model.logits(hidden)[0].numpy()
    return max(np.abs(logits[a : a + TOKENS] - expected["logits"]).max() for a in (0, TOKENS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--reference", type=Path, default=Path("reference.npz"))
    args = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        reference(args.weights, args.reference)
        return
    difference = compare(args.weights, args.reference)
    print(f"largest difference of {2 * TOKENS} rows of logits: {difference:.2e}")
    if not difference < TOLERANCE:
        raise SystemExit(f"The two models differ: more than {TOLERANCE}.")


if __name__ == "__main__":
    main()
