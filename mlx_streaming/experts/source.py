"""ExpertSource: where the bytes of an expert lie; InPlaceSource: in the checkpoint's own shards."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from ..checkpoint.index import TensorIndex
from ..checkpoint.spec import ModelSpec, Quantization, Segment, layer_tensors
from ..errors import CheckpointError


class Read(NamedTuple):
    """`nbytes` at `offset` of `path` fill the segments numbered `segments`, in that order, without gaps."""

    path: Path
    offset: int
    nbytes: int
    segments: tuple[int, ...]


class ExpertSource(Protocol):
    """What expert memory needs to know of the disk."""

    def segments(self, layer: int) -> tuple[Segment, ...]:
        """The parts of one expert of `layer`, in the order that `Read.segments` counts."""

    def reads(self, layer: int, expert: int) -> tuple[Read, ...]:
        """The reads that bring one expert in.

        Raises:
            CheckpointError: the source has no such expert.
        """

    def quantization(self, layer: int) -> dict[str, Quantization | None] | None:
        """Per projection how it is quantised (None: not); None: as the checkpoint's config says."""

    def identity(self) -> str:
        """A string that changes whenever the experts' bytes change."""

    def close(self) -> None:
        """Release what the source holds."""


def no_expert(layer: int, expert: int, count: int) -> CheckpointError:
    """The error for an expert that a layer of `count` experts does not have."""
    return CheckpointError(
        f"Layer {layer} has {count} experts, so there is no expert {expert};"
        " check that config.json belongs to these weights."
    )


class InPlaceSource:
    """Experts read from the stacked tensors of the shards: expert e of a tensor is contiguous."""

    def __init__(self, spec: ModelSpec, index: TensorIndex):
        self._experts = spec.experts
        self._identity = index.digest()
        self._places = {
            layer: tuple(
                (info.file, info.offset, info.nbytes // info.shape[0], (number,))
                for number, info in enumerate(layer_tensors(index, experts.prefix).values())
            )
            for layer, experts in spec.experts.items()
        }

    def segments(self, layer: int) -> tuple[Segment, ...]:
        return self._experts[layer].segments

    def reads(self, layer: int, expert: int) -> tuple[Read, ...]:
        count = self._experts[layer].num_experts
        if not 0 <= expert < count:
            raise no_expert(layer, expert, count)
        return tuple(
            [Read(file, start + expert * size, size, only) for file, start, size, only in self._places[layer]]
        )

    def quantization(self, layer: int) -> None:
        return None

    def identity(self) -> str:
        return self._identity

    def close(self) -> None:
        """Nothing is held open here; the reader owns the file descriptors."""
