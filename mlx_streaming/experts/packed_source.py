"""PackedSource: experts from a packed directory, one read per expert."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint.index import TensorIndex
from ..checkpoint.packed import Manifest
from ..checkpoint.spec import ModelSpec, Quantization, Segment
from ..errors import CheckpointError
from .source import Read, no_expert


class PackedSource:
    """The experts of `spec` as `llm mlx-streaming pack` wrote them into `directory`.

    Raises:
        CheckpointError: packed from other weights, incomplete, truncated, or of another format version.
    """

    def __init__(self, directory: str | Path, spec: ModelSpec, index: TensorIndex):
        self._directory = Path(directory)
        self._manifest = Manifest.read(self._directory)
        if self._manifest.source != index.digest():
            raise CheckpointError(
                f"The packed experts in {directory} were made from other weights than {spec.path};"
                " pack this checkpoint again, or use it without packed experts."
            )
        for layer, experts in spec.experts.items():
            packed = self._manifest.layers.get(layer)
            if packed is None or packed.num_experts != experts.num_experts:
                raise CheckpointError(
                    f"The packed experts in {directory} lack experts of layer {layer};"
                    " pack the checkpoint again."
                )
        self._manifest.check_files(self._directory)
        self._all_segments = {n: tuple(range(len(p.segments))) for n, p in self._manifest.layers.items()}
        self._paths = {n: self._directory / p.file for n, p in self._manifest.layers.items()}

    def segments(self, layer: int) -> tuple[Segment, ...]:
        return self._manifest.layers[layer].segments

    def reads(self, layer: int, expert: int) -> tuple[Read, ...]:
        packed = self._manifest.layers[layer]
        if not 0 <= expert < packed.num_experts:
            raise no_expert(layer, expert, packed.num_experts)
        offset = expert * packed.record_bytes
        return (Read(self._paths[layer], offset, packed.expert_bytes, self._all_segments[layer]),)

    def quantization(self, layer: int) -> dict[str, Quantization | None] | None:
        return self._manifest.layers[layer].quantization

    def identity(self) -> str:
        return self._manifest.identity()

    def close(self) -> None:
        """Nothing is held open here; the reader owns the file descriptors."""
