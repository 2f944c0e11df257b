"""Staging: on CUDA experts go through pinned memory, because the CPU must not write to the slots itself.

What MLX lets the CPU see there is managed memory. A write pulls its pages out of the GPU, and the GPU's next
use of the slots faults them back in, so that a miss costs milliseconds. A copy by the driver leaves them
where they are. The CPU backend and Metal share memory with the CPU: there bytes are read right into the
slots.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from ..errors import EngineError

# CUDA driver API: CU_STREAM_NON_BLOCKING, CU_MEMHOSTALLOC_PORTABLE, and of CUmemcpyAttributes the order of
# the stream and the locations of host and device.
_NON_BLOCKING, _PORTABLE = 1, 1
_STREAM_ORDER, _ON_DEVICE, _ON_HOST = 1, 1, 2
_SMALLEST = 256 * 1024


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


class _Lane:
    """A thread's own pinned buffer and stream."""

    def __init__(self, stream: ctypes.c_void_p):
        self.stream = stream
        self.size = 0
        self.address = ctypes.c_void_p()
        self.view = memoryview(b"")


class Staging:
    """Copies what a thread has read into slots, with the CUDA driver's own copies.

    `driver` is libcuda. Every thread gets a buffer of pinned memory, as large as the most that it stages at
    once.

    Raises:
        EngineError: the driver refuses; the message has its error number.
    """

    def __init__(self, driver: Any, device: int = 0):
        self._driver = driver
        self._local = threading.local()
        self._lanes: list[_Lane] = []
        self._lock = threading.Lock()
        self._context = ctypes.c_void_p()
        handle = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        # MLX runs in the primary context too.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self._together = hasattr(driver, "cuMemcpyBatchAsync_v2")
        host, target = _Location(_ON_HOST, 0), _Location(_ON_DEVICE, device)
        self._attributes = _CopyAttributes(_STREAM_ORDER, host, target, 0)

    def buffers(self, views: Sequence[memoryview]) -> list[memoryview]:
        """Views of this thread's pinned memory, as long as `views`; valid until its next call."""
        lane = self._lane(sum([v.nbytes for v in views]))
        found, at = [], 0
        for view in views:
            found.append(lane.view[at : at + view.nbytes])
            at += view.nbytes
        return found

    def deliver(self, sources: Sequence[memoryview], targets: Sequence[memoryview]) -> None:
        """Copy the views that `buffers` gave into the slots at `targets`; returns when they are there."""
        stream = self._lane(0).stream
        count = len(sources)
        to = (ctypes.c_void_p * count)(*map(_address, targets))
        of = (ctypes.c_void_p * count)(*map(_address, sources))
        sizes = (ctypes.c_size_t * count)(*[s.nbytes for s in sources])
        if self._together and count > 1:
            first = ctypes.c_size_t(0)
            attributes = ctypes.byref(self._attributes), ctypes.byref(first), ctypes.c_size_t(1)
            self._call("cuMemcpyBatchAsync_v2", to, of, sizes, ctypes.c_size_t(count), *attributes, stream)
        else:
            for target, source, size in zip(to, of, sizes, strict=True):
                pointers = ctypes.c_uint64(target), ctypes.c_uint64(source)
                self._call("cuMemcpyAsync", *pointers, ctypes.c_size_t(size), stream)
        self._call("cuStreamSynchronize", stream)

    def write(self, target: memoryview, data: bytes) -> None:
        """Put `data` at `target`, a view of memory that the GPU reads."""
        views = self.buffers([target])
        views[0][:] = data
        self.deliver(views, [target])

    def close(self) -> None:
        """Free the pinned memory; no thread may be copying. What the driver refuses now does not matter."""
        with self._lock:
            self._driver.cuCtxSetCurrent(self._context)
            for lane in self._lanes:
                lane.view = memoryview(b"")
                if lane.address:
                    self._driver.cuMemFreeHost(lane.address)
                self._driver.cuStreamDestroy_v2(lane.stream)
            self._lanes.clear()
            self._local = threading.local()

    def _lane(self, size: int) -> _Lane:
        lane = getattr(self._local, "lane", None)
        if lane is None:
            self._call("cuCtxSetCurrent", self._context)
            stream = ctypes.c_void_p()
            self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
            lane = self._local.lane = _Lane(stream)
            with self._lock:
                self._lanes.append(lane)
        if lane.size < size:
            size = max(size, _SMALLEST)
            lane.view = memoryview(b"")
            if lane.address:
                self._call("cuMemFreeHost", lane.address)
                lane.size, lane.address = 0, ctypes.c_void_p()
            self._call("cuMemHostAlloc", ctypes.byref(lane.address), ctypes.c_size_t(size), _PORTABLE)
            lane.size = size
            lane.view = memoryview((ctypes.c_char * size).from_address(lane.address.value)).cast("B")
        return lane

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise EngineError(f"CUDA's {name} failed with error {error}; restart, or check the driver.")


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def find_staging() -> Staging | None:
    """The staging that MLX's default device needs, or None where the CPU can write to slots directly."""
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu) or mx.metal.is_available():
        return None
    return Staging(ctypes.CDLL("libcuda.so.1"))
