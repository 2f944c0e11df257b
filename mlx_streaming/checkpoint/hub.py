"""The model hub: what a repository holds, byte ranges of its files, and its failures as one sentence.

Everything goes through huggingface_hub's own session, so HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and proxies
act as they do for every other program that uses it.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CapacityError, CheckpointError

if TYPE_CHECKING:
    from .spec import ModelSpec

LIBRARY = "llm-mlx-streaming"
WEIGHTS = "model*.safetensors"
# What mlx-lm reads from a checkpoint directory, without remote code.
WANTED = (WEIGHTS, "*.json", "*.jinja", "*.txt", "*.jsonl", "*.tiktoken", "tokenizer.model", "LICENSE*")
CHUNK = 1 << 20
RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)  # seconds before each further try after one that brought no byte
_WORTH_RETRYING = (408, 429, 500, 502, 503, 504)
_HEADER_GUESS = 256 << 10  # most safetensors headers fit, so that one request reads one


@dataclass(frozen=True)
class HubFile:
    """One file of a repository. `sha256` is known for large (LFS) files, `blob_id` is git's hash."""

    name: str
    size: int
    sha256: str | None
    blob_id: str | None


@dataclass(frozen=True)
class HubRepo:
    """A repository at one commit. `base` is the release that its model card says it was made from."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]
    base: str | None = None

    def file(self, name: str) -> HubFile | None:
        """The file called `name`, or None."""
        return next((f for f in self.files if f.name == name), None)

    def checkpoint_files(self) -> tuple[HubFile, ...]:
        """The files that make a checkpoint directory, smallest first.

        Raises:
            CheckpointError: no safetensors weights or no config.json.
        """
        top = [f for f in self.files if "/" not in f.name]
        chosen = [f for f in top if any(fnmatch.fnmatch(f.name, pattern) for pattern in WANTED)]
        if not any(fnmatch.fnmatch(f.name, WEIGHTS) for f in chosen) or self.file("config.json") is None:
            raise CheckpointError(
                f"{self.repo} holds no config.json with {WEIGHTS}, so it is not a checkpoint for MLX; "
                "choose a conversion such as those of mlx-community."
            )
        return tuple(sorted(chosen, key=lambda f: f.size))


def endpoint() -> str:
    """Address of the hub (HF_ENDPOINT, as huggingface_hub reads it)."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def describe(repo: str, revision: str = "main") -> HubRepo:
    """Look up `repo` at `revision`: its commit and its files with sizes and checksums.

    Raises:
        CheckpointError: not found, not allowed, or not reachable; the message says which and what to do.
    """
    from huggingface_hub import HfApi

    with hub_errors(repo, revision):
        info = HfApi(library_name=LIBRARY).model_info(repo, revision=revision, files_metadata=True)
    files = tuple(
        HubFile(s.rfilename, int(s.size or 0), s.lfs.sha256 if s.lfs else None, s.blob_id)
        for s in info.siblings or ()
    )
    if not info.sha:
        raise CheckpointError(f"{endpoint()} names no commit for {repo}; check HF_ENDPOINT.")
    base = getattr(info.card_data, "base_model", None)
    base = base[0] if isinstance(base, list) and base else base
    return HubRepo(repo=repo, commit=info.sha, files=files, base=base if isinstance(base, str) else None)


@contextmanager
def open_range(hub: HubRepo, name: str, start: int, stop: int | None = None) -> Iterator[Iterator[bytes]]:
    """Bytes `start` to `stop` (exclusive; None: to the end) of a file, as chunks of up to 1 MiB.

    Raises:
        CheckpointError: the server refuses, or ignores the range of a request that does not start at 0.
        httpx errors: the connection broke; see `transport_errors`.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = build_hf_headers(library_name=LIBRARY)
    headers |= {"Accept-Encoding": "identity", "Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
    url = hf_hub_url(hub.repo, name, revision=hub.commit)
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        if start and response.status_code != 206:
            raise RangeIgnored(f"{endpoint()} ignores byte ranges of {name}; use another HF_ENDPOINT.")
        yield response.iter_bytes(CHUNK)


class RangeIgnored(CheckpointError):
    """The server sent a whole file where a part of it was asked for."""


def stream(
    hub: HubRepo, name: str, start: int, stop: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Bytes `start` to `stop` (exclusive) of a file, reconnecting after a broken connection.

    Ends early only when `should_stop` says so.

    Raises:
        CheckpointError: as `open_range`; httpx errors: several tries in a row brought nothing.
    """
    delays = iter(RETRY_DELAYS)
    while start < stop and not should_stop():
        before, broken = start, None
        try:
            with open_range(hub, name, start, stop) as chunks:
                for chunk in chunks:
                    chunk = chunk[: stop - start]
                    start += len(chunk)
                    yield chunk
                    if start == stop or should_stop():
                        return
        except transport_errors() as error:
            response = getattr(error, "response", None)
            if response is not None and response.status_code not in _WORTH_RETRYING:
                raise
            broken = error
        if start > before:
            delays = iter(RETRY_DELAYS)
        elif (delay := next(delays, None)) is not None:
            time.sleep(delay)
        else:
            raise broken or ConnectionError(f"{name} ended at byte {start} of {stop}")


def read_range(hub: HubRepo, name: str, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` (exclusive) of a file.

    Raises:
        CheckpointError: as `describe`.
    """
    with hub_errors(hub.repo, hub.commit):
        return b"".join(stream(hub, name, start, stop))


def read_header(hub: HubRepo, file: HubFile) -> bytes:
    """The first bytes of a safetensors file: its 8-byte length and its JSON header.

    Raises:
        CheckpointError: as `read_range`, or the file is too short for what it says.
    """
    first = read_range(hub, file.name, 0, min(file.size, _HEADER_GUESS))
    end = 8 + struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else file.size + 1
    if end > file.size:
        raise CheckpointError(
            f"{file.name} of {hub.repo} is not a safetensors file; choose another revision."
        )
    return first[:end] if end <= len(first) else first + read_range(hub, file.name, len(first), end)


def outline(hub: HubRepo, directory: Path) -> Path:
    """Make `directory` look like the checkpoint without its weights, and return it.

    Small files are real; each shard has its true header and size, but the rest is a hole that takes no room.
    So a TensorIndex and a ModelSpec can be read before anything large is downloaded.

    Raises:
        CheckpointError: as `describe`; `gated` and private repositories fail here.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in hub.checkpoint_files():
        target = directory / file.name
        if fnmatch.fnmatch(file.name, "*.safetensors"):
            with open(target, "wb") as handle:
                handle.write(read_header(hub, file))
                handle.truncate(file.size)
        elif file.sha256 is None and file.name.endswith((".json", ".jinja")):
            target.write_bytes(read_range(hub, file.name, 0, file.size) if file.size else b"")
    return directory


def check_streamable(hub: HubRepo) -> ModelSpec:
    """Refuse before a long download what could not run after it; what the checkpoint is, otherwise.

    mlx-lm builds the model from the outline, so an unknown type or a wrong quantisation shows now.

    Raises:
        CheckpointError: dense, unsupported or inconsistent checkpoint; or as `describe`.
    """
    from .families import check
    from .index import INDEX_NAME
    from .load import build_model
    from .spec import ModelSpec

    hub.checkpoint_files()
    names = read_json(hub, INDEX_NAME).get("weight_map") if hub.file(INDEX_NAME) else None
    check(read_json(hub, "config.json"), hub.repo, names)
    with tempfile.TemporaryDirectory(prefix="llm-mlx-streaming-") as temporary:
        try:
            spec = ModelSpec.read(outline(hub, Path(temporary)))
            build_model(spec)
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(temporary, hub.repo)) from error
    return spec


def read_json(hub: HubRepo, name: str) -> dict:
    """A JSON file of the repository.

    Raises:
        CheckpointError: it is not there or not JSON.
    """
    file = hub.file(name)
    if file is None:
        raise CheckpointError(f"{hub.repo} has no {name}; check the name of the repository.")
    try:
        return json.loads(read_range(hub, name, 0, file.size))
    except ValueError as error:
        raise CheckpointError(
            f"{name} of {hub.repo} is not JSON ({error}); choose another revision."
        ) from error


def transport_errors() -> tuple[type[Exception], ...]:
    """What a broken connection raises: the base class of the HTTP library that huggingface_hub uses."""
    from huggingface_hub.errors import HfHubHTTPError

    # HfHubHTTPError derives from that library's HTTPError (httpx in 1.x, its successor in 2.x).
    return (HfHubHTTPError.__bases__[0], ConnectionError, TimeoutError)


@contextmanager
def hub_errors(repo: str, revision: str = "main") -> Iterator[None]:
    """Turn the failures of hub calls and of the files they write into one sentence with the next step."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        found = _sentence(error, repo, revision)
        if found is None:
            raise
        raise found from error


def _sentence(error: Exception, repo: str, revision: str) -> Exception | None:
    from huggingface_hub import errors as hub

    where = endpoint()
    resumes = "run the same command again: it goes on where it stopped."
    if isinstance(error, hub.HFValidationError):
        return CheckpointError(
            f"{repo!r} is not the name of a hub repository; write it like mlx-community/NAME."
        )
    if isinstance(error, hub.OfflineModeIsEnabled):
        return CheckpointError(
            f"HF_HUB_OFFLINE is set and {repo} is not complete in the cache; unset it and {resumes}"
        )
    if isinstance(error, hub.GatedRepoError):
        return CheckpointError(
            f"{repo} is gated: accept its terms at {where}/{repo}, log in with `hf auth login`, and {resumes}"
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return CheckpointError(f"{repo} has no revision {revision!r}; choose another one with --revision.")
    if isinstance(error, hub.RepositoryNotFoundError):
        return CheckpointError(
            f"{where} shows no repository {repo}; check the name, or if it is private: `hf auth login`."
        )
    if isinstance(error, hub.EntryNotFoundError) and not isinstance(error, hub.LocalEntryNotFoundError):
        return CheckpointError(f"A file of {repo} is gone from the hub; choose another --revision.")
    if isinstance(error, hub.HfHubHTTPError):
        return _status(error.response.status_code, repo, resumes)
    if isinstance(error, (*transport_errors(), hub.LocalEntryNotFoundError)):
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return CheckpointError(f"Cannot reach {where} ({reason}); check the network, then {resumes}")
    return _disk(error) if isinstance(error, OSError) else None


def _status(code: int, repo: str, resumes: str) -> CheckpointError:
    if code in (401, 403):
        return CheckpointError(
            f"The hub refused the token for {repo} ({code}); log in with `hf auth login`, and {resumes}"
        )
    return CheckpointError(f"{endpoint()} answered {code} for {repo}; wait a little, then {resumes}")


def _disk(error: OSError) -> Exception:
    name = error.filename or "the cache directory"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(
            f"The disk is full while writing {name}; free some space and run the same command again: "
            "what has arrived is kept."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CheckpointError(
            f"Cannot write {name} ({os.strerror(error.errno)}); make it writable, "
            "or set HF_HOME to a directory that is."
        )
    return CheckpointError(
        f"Cannot write {name} ({error.strerror or error}); check the disk, then try again."
    )
