"""Progress before the first word: one line on a terminal's stderr, wiped before anything else is shown."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIPE = "\r\x1b[2K"
SECONDS_BETWEEN = 0.1


class Progress:
    """Call it with every Status; `clear()` before the first word. Silent unless `stream` is a terminal."""

    def __init__(self, name: str, quiet: bool = False, stream: TextIO | None = None):
        self.name = name
        self.stream = stream or sys.stderr
        self.enabled = not quiet and self.stream.isatty()
        self._shown = False
        self._last = 0.0
        self._phase = ""
        self._began = 0.0
        self._first = 0

    def __call__(self, status) -> None:
        """Show `status` (an mlx_streaming.request.Status), at most ten times a second."""
        if not self.enabled:
            return
        now = time.monotonic()
        if status.phase != self._phase:
            self._phase, self._began, self._first, self._last = status.phase, now, status.done, 0.0
        if now - self._last < SECONDS_BETWEEN:
            return
        self._last = now
        self._shown = True
        self.stream.write(WIPE + self._line(status, now - self._began))
        self.stream.flush()

    def clear(self) -> None:
        """Wipe the line, if one is shown."""
        if self._shown:
            self._shown = False
            self.stream.write(WIPE)
            self.stream.flush()

    def _line(self, status, seconds: float) -> str:
        percent = f"{100 * status.done / status.total:.0f} %" if status.total else ""
        if status.phase == "load":
            return f"Loading {self.name} ({status.total / 1e9:.2f} GB) {percent}"
        new = status.done - self._first
        rate = f", {new / seconds:.0f} tok/s" if new and seconds > 0.05 else ""
        return f"Reading the prompt: {status.done} of {status.total} tokens, {percent}{rate}"
