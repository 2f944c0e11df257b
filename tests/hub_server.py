"""A local hub: serves checkpoint directories as repositories, with faults on demand. Point HF_ENDPOINT at it.

By hand: `python tests/hub_server.py org/name=DIRECTORY ...` prints the address and serves until interrupted.
Large files are redirected to a second port, as the real hub redirects to its storage, so that a client which
sends its token there is noticed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LARGE = (".safetensors", "tokenizer.json")


@dataclass
class Repo:
    """One repository. Faults: `cut` ends a file's answer after so many bytes (counted down: how often);
    `corrupt` flips a byte of a file; `inflate` multiplies the sizes that are announced; `token` is required;
    `ranges` False ignores byte ranges; `pace` sleeps so long after every 256 KiB."""

    directory: Path
    token: str | None = None
    gated: bool = False
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    inflate: int = 1
    ranges: bool = True
    pace: float = 0.0
    failures: int = 0  # answer 503 to so many requests for file contents
    base: str | None = None  # what the model card says it was made from

    @property
    def commit(self) -> str:
        """Changes with the names and sizes of the files."""
        listing = "".join(f"{p.name}:{p.stat().st_size}" for p in self.paths())
        return hashlib.sha1(listing.encode()).hexdigest()

    def paths(self) -> list[Path]:
        return sorted(p for p in self.directory.iterdir() if p.is_file())

    def entry(self, path: Path) -> dict:
        content = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        found = {"rfilename": path.name, "size": len(content) * self.inflate, "blobId": git}
        if path.name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"size": found["size"], "sha256": digest, "pointerSize": 134}
        return found


class Hub:
    """`with Hub({"org/name": Repo(path)}) as hub:` serves at `hub.url`; `hub.sent` counts bytes by file name,
    `hub.ranges` lists (file, first byte) of every content request, `hub.leaked` says a token left the hub."""

    def __init__(self, repos: dict[str, Repo]):
        self.repos = repos
        self.sent: dict[str, int] = {}
        self.ranges: list[tuple[str, int]] = []
        self.leaked = False
        self.stopped = False
        self._servers = [self._serve(_HubHandler), self._serve(_StorageHandler)]
        self.url, self.storage = (f"http://127.0.0.1:{s.server_address[1]}" for s in self._servers)

    def _serve(self, handler: type) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"hub": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopped = True
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def total_sent(self) -> int:
        return sum(self.sent.values())


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        if not self.hub.stopped:
            return self.answer(body=True)
        self.close_connection = True

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def reply(self, status: int, body: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.reply(status, body, X_Error_Code=code, X_Error_Message=message, Content_Type="application/json")

    def send_file(self, repo: Repo, path: Path, body: bool, **headers: object) -> None:
        content = bytearray(path.read_bytes())
        if path.name in repo.corrupt:
            content[len(content) // 2] ^= 0xFF
        start, stop = 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        partial = bool(asked) and repo.ranges
        if partial:
            start = int(asked[1])
            stop = min(stop, int(asked[2]) + 1) if asked[2] else stop
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if body:
            self.hub.ranges.append((path.name, start))
            self._send_body(repo, path.name, memoryview(content)[start:stop])

    def _send_body(self, repo: Repo, name: str, data: memoryview) -> None:
        limit, times = repo.cut.get(name, (len(data), 0))
        cut = times > 0 and limit < len(data)
        if cut:
            repo.cut[name] = (limit, times - 1)
            data = data[:limit]
        try:
            for at in range(0, len(data), 256 << 10):
                piece = data[at : at + (256 << 10)]
                self.wfile.write(piece)
                self.hub.sent[name] = self.hub.sent.get(name, 0) + len(piece)
                if repo.pace:
                    time.sleep(repo.pace)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if cut:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()


class _HubHandler(_Handler):
    """The API and the addresses of files."""

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or file
        repo = self.hub.repos.get(match[1]) if match else None
        if repo is None:
            return self.refuse(401 if not self.token() else 404, "RepoNotFound", "Repository not found")
        if self.token() == "bad":
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        if repo.token and self.token() != repo.token:
            return self.refuse(401, "RepoNotFound", "Invalid username or password.")
        if match[2] not in (None, "main", repo.commit):
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        if api:
            return self.describe(match[1], repo)
        self.resolve(match[1], repo, match[3], body)

    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def describe(self, name: str, repo: Repo) -> None:
        found = {
            "id": name,
            "modelId": name,
            "sha": repo.commit,
            "private": bool(repo.token),
            "gated": "manual" if repo.gated else False,
            "siblings": [repo.entry(p) for p in repo.paths()],
            "tags": [],
            "cardData": {"base_model": repo.base} if repo.base else {},
        }
        self.reply(200, json.dumps(found).encode(), Content_Type="application/json")

    def resolve(self, name: str, repo: Repo, file: str, body: bool) -> None:
        if repo.gated:
            message = f"Access to model {name} is restricted. You must be authenticated to access it."
            return self.refuse(403 if self.token() else 401, "GatedRepo", message)
        path = repo.directory / file
        if not path.is_file():
            return self.refuse(404, "EntryNotFound", "Entry not found")
        entry = repo.entry(path)
        if "lfs" not in entry:
            etag = f'"{entry["blobId"]}"'
            return self.send_file(repo, path, body, ETag=etag, X_Repo_Commit=repo.commit)
        self.reply(
            302,
            X_Repo_Commit=repo.commit,
            X_Linked_ETag=f'"{entry["lfs"]["sha256"]}"',
            X_Linked_Size=entry["size"],
            Location=f"{self.hub.storage}/{name}/{file}",
        )


class _StorageHandler(_Handler):
    """Where large files come from; needs no token and must not get one."""

    def answer(self, body: bool) -> None:
        self.hub.leaked |= "Authorization" in self.headers
        owner, name, file = self.path.strip("/").split("/", 2)
        repo = self.hub.repos[f"{owner}/{name}"]
        if repo.failures > 0:
            repo.failures -= 1
            return self.reply(503)
        self.send_file(repo, repo.directory / file, body, ETag='"storage"')


def main() -> None:
    repos = {name: Repo(Path(path)) for name, path in (item.split("=", 1) for item in sys.argv[1:])}
    with Hub(repos) as hub:
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
