"""Loading the trunk: the stock mlx-lm model with lazy weights, of which only what is resident gets read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import CheckpointError
from .spec import ModelSpec

if TYPE_CHECKING:
    import mlx.nn as nn


def build_model(spec: ModelSpec) -> nn.Module:
    """The stock mlx-lm model of the checkpoint, quantised as its config says, no weight read yet.

    Raises:
        CheckpointError: mlx-lm does not know the model type, or config and weights disagree.
    """
    from mlx_lm.utils import load_model

    try:
        model, _ = load_model(spec.path, lazy=True)
    except ModuleNotFoundError as error:
        raise CheckpointError(f"{spec.path} needs the module {error.name}; install it first.") from error
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, FileNotFoundError) as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"mlx-lm cannot build {spec.path} ({spec.model_type}): {detail};"
            " upgrade mlx-lm, or check that config.json belongs to these weights."
        ) from error
    model.eval()
    return model


def load_trunk(model: nn.Module) -> int:
    """Read every weight that still is lazy; call it after the experts were replaced. Returns the bytes.

    Raises:
        CheckpointError: a shard could not be read.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    arrays = [value for _, value in tree_flatten(model.parameters())]
    try:
        mx.eval(arrays)
    except RuntimeError as error:
        raise CheckpointError(
            f"Reading the weights failed: {error}; download the checkpoint again."
        ) from error
    return sum(a.nbytes for a in arrays)
