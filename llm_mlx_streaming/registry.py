"""Which checkpoints this machine has: names, paths, settings and the default, in one JSON file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import llm

from mlx_streaming.errors import CheckpointError, EngineError

DEFAULT_MODEL = "qwen3-next-stream"
DEMO_MODEL = "qwen3-next-stream-demo"
DEMO = "demo"
GET_REAL_MODEL = "llm mlx-streaming download"
LOCK_SECONDS = 10.0
_told: set[str] = set()


@dataclass(frozen=True)
class Checkpoint:
    """One usable checkpoint directory; `settings` are EngineConfig fields by name."""

    name: str
    path: Path
    revision: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    hub: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What logs and stored token ids call it: `name@revision`, or the name alone."""
        shown = self.hub or self.name
        return f"{shown}@{self.revision}" if self.revision else shown


@dataclass(frozen=True)
class Registry:
    """The registered checkpoints in order; `problem` says why the file could not be read, if it could not."""

    checkpoints: tuple[Checkpoint, ...] = ()
    default: str | None = None
    problem: str | None = None

    def find(self, name: str) -> Checkpoint | None:
        """The checkpoint called `name`, by name first, then by alias."""
        for checkpoint in self.checkpoints:
            if checkpoint.name == name:
                return checkpoint
        return next((c for c in self.checkpoints if name in c.aliases), None)


def home() -> Path:
    """The plugin's directory inside llm's user directory."""
    return llm.user_dir() / "mlx-streaming"


def registry_path() -> Path:
    return home() / "registry.json"


def read() -> Registry:
    """The registry, empty when there is none; a damaged file gives an empty one with `problem` set."""
    try:
        return _parse(json.loads(registry_path().read_text("utf-8")))
    except FileNotFoundError:
        return Registry()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        return Registry(
            problem=f"{registry_path()} cannot be read ({reason}); repair it or remove it, "
            "then register checkpoints with: llm mlx-streaming add PATH"
        )


def tell(problem: str) -> None:
    """Say on stderr, once in a process, why the registry cannot be read."""
    if problem not in _told:
        _told.add(problem)
        print(problem, file=sys.stderr)


def add(checkpoint: Checkpoint, make_default: bool = False) -> Registry:
    """Register `checkpoint`, replacing one of the same name; the first one becomes the default.

    Raises:
        EngineError: the name or an alias is taken or blank, or the registry is locked.
    """
    with _writing() as (registry, save):
        others = tuple(c for c in registry.checkpoints if c.name != checkpoint.name)
        _refuse_taken(checkpoint, others)
        default = registry.default
        if make_default or default is None:
            default = checkpoint.name
        return save(replace(registry, checkpoints=(*others, checkpoint), default=default))


def remove(name: str) -> Checkpoint:
    """Forget the checkpoint called `name` (its files stay) and return what was registered.

    Raises:
        EngineError: no such checkpoint, the embedded one, or the registry is locked.
    """
    if name in (DEMO, DEMO_MODEL):
        raise EngineError(
            "The embedded demo is part of the package and stays; to answer from another checkpoint use: "
            "llm mlx-streaming default NAME"
        )
    with _writing() as (registry, save):
        found = registry.find(name) or _unregistered(name, registry)
        left = tuple(c for c in registry.checkpoints if c.name != found.name)
        save(replace(registry, checkpoints=left, default=_kept_default(registry, found)))
        return found


def set_default(name: str) -> Checkpoint:
    """Make `name` the checkpoint that qwen3-next-stream answers from ("demo": the embedded one).

    Raises:
        EngineError: no such checkpoint, or the registry is locked.
    """
    with _writing() as (registry, save):
        if name in (DEMO, DEMO_MODEL):
            save(replace(registry, default=DEMO))
            return demo()
        found = registry.find(name) or _unregistered(name, registry)
        save(replace(registry, default=found.name))
        return found


def change_settings(name: str, changes: dict[str, Any]) -> bool:
    """Merge `changes` into the settings of a registered checkpoint; False when none is called `name`.

    Raises:
        EngineError: the registry is locked.
    """
    with _writing() as (registry, save):
        found = registry.find(name)
        if found is None:
            return False
        changed = replace(found, settings={**found.settings, **changes})
        save(replace(registry, checkpoints=tuple(changed if c is found else c for c in registry.checkpoints)))
        return True


def demo() -> Checkpoint:
    """The checkpoint embedded in the package."""
    from mlx_streaming.demo import checkpoint_path

    return Checkpoint(DEMO, checkpoint_path(), revision="embedded")


def resolve(name: str | None = None) -> Checkpoint:
    """The checkpoint meant by a name, an alias, "demo", a directory, or None (the default, else the demo).

    Raises:
        CheckpointError: nothing of that name, its directory is gone, or the registry cannot be read.
    """
    if name in (DEMO, DEMO_MODEL):
        return demo()
    registry = read()
    if name is None or name == DEFAULT_MODEL:
        if registry.problem:
            raise _unreadable(registry.problem)
        if registry.default in (None, DEMO):
            return demo()
        name = registry.default
    found = registry.find(name)
    if found is None and Path(name).expanduser().is_dir():
        path = Path(name).expanduser().resolve()
        return Checkpoint(path.name, path)
    if found is None:
        if registry.problem:
            raise _unreadable(registry.problem)
        _unknown(name, registry)
    if not found.path.is_dir():
        raise CheckpointError(
            f"Checkpoint {found.name} was registered at {found.path}, but that directory is gone; "
            f"bring it back, or forget it with: llm mlx-streaming remove {found.name}"
        )
    return found


def _unreadable(problem: str) -> CheckpointError:
    """`problem` as an error; what follows from it where the user has been told of it already."""
    if problem in _told:
        return CheckpointError(f"Without the registry only the demo can answer: llm -m {DEMO_MODEL}")
    return CheckpointError(problem)


def _unknown(name: str, registry: Registry) -> Checkpoint:
    raise CheckpointError(
        f"No checkpoint is called {name!r} and no such directory exists; known are {_known(registry)}. "
        "See: llm mlx-streaming models"
    )


def _unregistered(name: str, registry: Registry) -> Checkpoint:
    raise CheckpointError(
        f"No checkpoint is registered as {name!r}; known are {_known(registry)}. "
        "Register a directory with: llm mlx-streaming add PATH"
    )


def _known(registry: Registry) -> str:
    return ", ".join([c.name for c in registry.checkpoints] + [DEMO])


def _refuse_taken(checkpoint: Checkpoint, others: tuple[Checkpoint, ...]) -> None:
    taken = {DEMO, DEFAULT_MODEL, DEMO_MODEL}
    for other in others:
        taken |= {other.name, *other.aliases}
    for wanted in (checkpoint.name, *checkpoint.aliases):
        if not wanted.strip():
            raise EngineError("A name or alias cannot be blank; choose another one with --name or --alias.")
        if wanted in taken:
            raise EngineError(
                f"The name {wanted!r} is already taken; choose another one with --name or --alias."
            )


def _kept_default(registry: Registry, removed: Checkpoint) -> str | None:
    if registry.default != removed.name:
        return registry.default
    left = [c.name for c in registry.checkpoints if c.name != removed.name]
    return left[-1] if left else None


def _parse(data: dict[str, Any]) -> Registry:
    checkpoints = tuple(_parse_checkpoint(item) for item in data["checkpoints"])
    return Registry(checkpoints, data.get("default"))


def _parse_checkpoint(item: dict[str, Any]) -> Checkpoint:
    aliases, settings = item.get("aliases") or [], item.get("settings") or {}
    words = [item["name"], item["path"], *aliases, item.get("hub") or "-", item.get("revision") or "-"]
    if not isinstance(aliases, list) or not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"names, paths and aliases are words: {item}")
    return Checkpoint(
        name=item["name"],
        path=Path(item["path"]),
        revision=item.get("revision"),
        settings=dict(settings),
        hub=item.get("hub"),
        aliases=tuple(aliases),
    )


def _dump(registry: Registry) -> str:
    items = [asdict(c) | {"path": str(c.path)} for c in registry.checkpoints]
    return json.dumps({"version": 1, "default": registry.default, "checkpoints": items}, indent=2) + "\n"


@contextmanager
def _writing() -> Iterator[tuple[Registry, Any]]:
    """Read the registry under its lock; `save(registry)` replaces the file in one step.

    Raises:
        EngineError: the registry is locked or cannot be written.
    """
    try:
        home().mkdir(parents=True, exist_ok=True)
        with _locked(home() / "registry.lock"):
            registry = read()

            def save(new: Registry) -> Registry:
                if registry.problem and registry_path().exists():
                    _move_aside(registry_path())
                new = replace(new, problem=None)
                _write_atomic(registry_path(), _dump(new))
                return new

            yield registry, save
    except OSError as error:
        raise EngineError(
            f"The registry {registry_path()} cannot be written ({error.strerror}); make {home()} writable,"
            " with space left on its disk."
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # not on Windows, where reading must work all the same

    deadline = time.monotonic() + LOCK_SECONDS
    with open(path, "a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"Another process has held {path} for {LOCK_SECONDS:.0f} s; "
                        "wait for its `llm mlx-streaming` command to end and try again."
                    ) from None
                time.sleep(0.05)
        yield


def _move_aside(path: Path) -> None:
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    os.replace(path, kept)
    print(f"The damaged registry was kept as {kept}", file=sys.stderr)


def _write_atomic(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".registry-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
