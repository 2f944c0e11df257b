"""The terminal that `llm` runs in: which command, Ctrl-C, a closed pipe, notes on stderr."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


def _context() -> click.Context | None:
    """The running `llm` command of this thread; None in plain Python and in other programs that use click."""
    context = click.get_current_context(silent=True)
    cli = sys.modules.get("llm.cli")
    return context if context and cli and context.find_root().command is cli.cli else None


def command() -> str | None:
    """Name of the `llm` command that is running in this thread ("prompt", "chat"), or None."""
    context = _context()
    return context.command.name if context else None


def without_log() -> bool:
    """Whether the running command was told not to log (`llm prompt --no-log`)."""
    context = _context()
    return bool(context and context.params.get("no_log"))


def note(text: str) -> None:
    """One line for the user on stderr."""
    click.echo(text, err=True)


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """Inside an `llm` command: the first Ctrl-C calls `cancel`, the second raises KeyboardInterrupt.

    Elsewhere (plain Python, other threads) Ctrl-C keeps its meaning.
    """
    if command() is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def on_interrupt(signum, frame):
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        cancel()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous or signal.default_int_handler)


class Pipe:
    """Standard output when it is a pipe of an `llm` command: tells when its reader has gone."""

    def __init__(self):
        self._poll = None
        if command() is None or not hasattr(select, "poll"):
            return
        try:
            self._fd = sys.stdout.fileno()
            mode = os.fstat(self._fd).st_mode
        except (OSError, ValueError, AttributeError):
            return
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            self._poll = select.poll()
            self._poll.register(self._fd, 0)

    def closed(self) -> bool:
        """True once nobody reads any more; from then on what is written goes nowhere, quietly."""
        if self._poll is None or not self._poll.poll(0):
            return False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._fd)
        os.close(nowhere)
        self._poll = None
        return True
