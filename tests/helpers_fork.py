"""Real `llm` processes without the second that importing llm takes: a process that has done so forks them.

Run as a program it serves: for every request (arguments, environment, directory, three open files) a child is
forked that runs llm's command line to its ordinary end. The server imports llm with its plugins and nothing
of MLX. `ForkServer` is the test's side.
"""

from __future__ import annotations

import array
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile


def _send(link: socket.socket, value, files=()) -> None:
    data = json.dumps(value).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    link.sendmsg([struct.pack("!I", len(data))], rights)
    link.sendall(data)


def _receive(link: socket.socket, files: int = 0):
    """(value, open files), or (None, []) when the other side has gone."""
    head, rights, _, _ = link.recvmsg(4, socket.CMSG_SPACE(4 * files))
    if len(head) < 4:
        return None, []
    data = b""
    while len(data) < struct.unpack("!I", head)[0]:
        data += link.recv(1 << 16)
    opened = array.array("i")
    for _, _, raw in rights:
        opened.frombytes(raw)
    return json.loads(data), list(opened)


def serve(link: socket.socket) -> list[str]:
    """Fork until the test's side is closed (the server then ends); in a child, return llm's arguments."""
    while True:
        asked, opened = _receive(link, 3)
        if asked is None:
            os._exit(0)
        child = os.fork()
        if child == 0:
            link.close()
            for number, file in enumerate(opened):
                os.dup2(file, number)
                os.close(file)
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            return asked["args"]
        for file in opened:
            os.close(file)
        _send(link, child)
        _send(link, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


class ForkServer:
    """Starts the server at once; `run` is `subprocess.run` for `llm` with its output captured as text."""

    def __init__(self):
        self._link, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def run(self, args, input: str | None, env: dict[str, str], timeout: float):
        files = [tempfile.TemporaryFile() for _ in range(3)]
        try:
            if input is not None:
                files[0].write(input.encode())
                files[0].seek(0)
            asked = {"args": args, "env": env, "cwd": os.getcwd()}
            _send(self._link, asked, [file.fileno() for file in files])
            child = _receive(self._link)[0]
            status = self._wait(child, timeout)
            for file in files[1:]:
                file.seek(0)
            stdout, stderr = (file.read().decode() for file in files[1:])
            return subprocess.CompletedProcess(["llm", *args], status, stdout, stderr)
        finally:
            for file in files:
                file.close()

    def close(self) -> None:
        self._link.close()
        self._process.wait(10)

    def _wait(self, child: int, timeout: float) -> int:
        self._link.settimeout(timeout)
        try:
            return _receive(self._link)[0]
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            self._link.settimeout(None)
            _receive(self._link)
            raise subprocess.TimeoutExpired("llm", timeout) from None
        finally:
            self._link.settimeout(None)


if __name__ == "__main__":
    from llm import cli

    gc.freeze()  # what is imported stays shared with the children
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = ["llm", *arguments]
    cli.cli(prog_name="llm")
