"""Machine: how much memory there is, and what MLX may use of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Machine:
    """Memory of one machine, in bytes.

    total_memory: what processes can use (the container's limit where there is one).
    working_set: what the accelerator can hold without paging (None: unknown, or the backend has no limit).
    backend: "metal", "cuda" or "cpu"; "" when MLX was not asked.
    """

    total_memory: int
    working_set: int | None = None
    backend: str = ""

    @classmethod
    def detect(cls, device: bool = False) -> Machine:
        """This machine. `device=True` also asks MLX, which imports it (about 0.1 s)."""
        total = _total_memory()
        if not device:
            return cls(total)
        backend, working_set = _device()
        return cls(total, working_set, backend)

    @property
    def usable(self) -> int:
        """The smaller of the two limits, bytes."""
        return min(self.total_memory, self.working_set or self.total_memory)

    @property
    def most(self) -> int:
        """The larger of the two limits, bytes: an accelerator may have memory of its own."""
        return max(self.total_memory, self.working_set or 0)


def _total_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUP_LIMITS:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def _device() -> tuple[str, int | None]:
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu", None
    info = mx.device_info()
    if mx.metal.is_available():
        return "metal", int(info["max_recommended_working_set_size"])
    size = info.get("total_memory") or info.get("memory_size")
    return "cuda", int(size) if size else None
