"""Scripts for the fake backend, and `llm` under a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path


class Script:
    """A fake backend's script in `directory`; `env` selects it, `requests` is what the backend was asked."""

    def __init__(self, directory: Path, *turns: dict, **settings):
        self.path = directory / "script.json"
        self.record = directory / "requests.jsonl"
        settings |= {"turns": list(turns), "record": str(self.record)}
        self.path.write_text(json.dumps(settings))

    @property
    def env(self) -> dict[str, str]:
        return {"LLM_MLX_STREAMING_BACKEND": f"fake:{self.path}"}

    @property
    def requests(self) -> list[dict]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]


class Terminal:
    """A process whose stdin, stdout and stderr are one pseudo-terminal that it controls."""

    def __init__(self, args, env):
        self._master, slave = pty.openpty()
        self.seen = ""

        def control():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "llm", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env | {"TERM": "xterm"},
            preexec_fn=control,
        )
        os.close(slave)

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.send("\x03")

    def expect(self, pattern: str, timeout: float = 60) -> str:
        """Read until `pattern` appears in what was not expected yet; returns everything up to its end."""
        deadline = time.monotonic() + timeout
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            left = deadline - time.monotonic()
            if left < 0 or not self._read(left):
                raise AssertionError(f"{pattern!r} did not appear in {self.seen!r}")
        passed, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return passed

    def finish(self, timeout: float = 60) -> tuple[int, str]:
        """Wait for the end; the exit status and all that was not expected yet."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._read(deadline - time.monotonic()):
            pass
        status = self.process.wait(max(1.0, deadline - time.monotonic()))
        os.close(self._master)
        return status, self.seen

    def _read(self, timeout: float) -> bool:
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)
