"""The embedded demonstration checkpoint: a tiny trained Qwen3-Next chat model with its MTP head."""

from pathlib import Path


def checkpoint_path() -> Path:
    """Directory of the embedded checkpoint; it lies inside the installed package."""
    return Path(__file__).parent / "checkpoint"
