"""pack: copy the routed experts of a checkpoint into packed files, requantised where a recipe asks for it.

All is written into `OUT.partial`, which is renamed to `OUT` at the end. Beside a finished layer file lies a
note with its layout and checksums; an interrupted run keeps the layers that have one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import CheckpointError
from .drop import require_experts
from .index import TensorIndex
from .packed import Manifest, PackedLayer, Progress, sync_directory, write_json
from .recipe import Recipe, planned_layers, source_quantization
from .spec import ExpertLayer, ModelSpec, layer_tensors

# Left free, so that packing does not take the last bytes of the system's volume.
_RESERVE = 64 * 2**20


@dataclass(frozen=True)
class Packed:
    """The outcome: `kept` of the `layers` were there already, from an interrupted or an earlier run."""

    directory: Path
    layers: int
    kept: int
    nbytes: int
    source_bytes: int


def pack(
    checkpoint: str | Path,
    out: str | Path,
    recipe: Recipe | None = None,
    on_progress: Progress | None = None,
) -> Packed:
    """Pack the experts of the directory `checkpoint` into the new directory `out`.

    `on_progress(bytes done, bytes in all)` is called after each expert; memory holds one expert at a time.
    Run again after an interruption, it continues; on a finished pack of the same kind it does nothing.

    Raises:
        CheckpointError: unusable checkpoint or recipe, its experts were dropped, `out` taken by something
            else, no space, I/O error.
    """
    out, recipe = Path(out), recipe or Recipe()
    index = TensorIndex.open(checkpoint)
    spec = ModelSpec.read(checkpoint, index)
    source, planned = index.digest(), planned_layers(spec, recipe)
    total = sum(p.file_bytes for p in planned.values())
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        _check_finished(out, source, planned)
        return Packed(out, len(planned), len(planned), total, spec.expert_bytes)
    require_experts(spec, index)
    partial = out.with_name(out.name + ".partial")
    with _exclusive(partial):
        layers = _finished_layers(partial, source, planned)
        kept, done = len(layers), sum(p.file_bytes for p in layers.values())
        _check_space(partial, total - done)
        for number, plan in planned.items():
            if number not in layers:
                report = _offset(on_progress, done, total)
                layers[number] = _write_layer(partial, source, plan, spec, index, report)
                done += plan.file_bytes
        if TensorIndex.open(checkpoint).digest() != source:
            raise CheckpointError(f"{checkpoint} changed while it was packed; run the same command again.")
        Manifest(source, asdict(recipe), dict(sorted(layers.items()))).write(partial)
        os.rename(partial, out)
        sync_directory(out.parent)
        _tidy(out)
    return Packed(out, len(planned), kept, total, spec.expert_bytes)


def _write_layer(
    directory: Path, source: str, plan: PackedLayer, spec: ModelSpec, index: TensorIndex, report: Progress
) -> PackedLayer:
    """Write one layer file and its note; the result has the real checksums."""
    final = directory / plan.file
    partial = final.with_name(final.name + ".partial")
    checksums = []
    try:
        with open(partial, "wb", buffering=0) as file:
            for expert, record in enumerate(_records(plan, spec, index)):
                checksums.append(zlib.crc32(record))
                _write_all(file.fileno(), record)
                report((expert + 1) * plan.record_bytes, plan.file_bytes)
            os.fsync(file.fileno())
        require_experts(spec, index)  # they may have been dropped while they were copied
        os.replace(partial, final)
        written = replace(plan, checksums=tuple(checksums))
        write_json(_note(directory, plan.layer), {"source": source, "layer": written.to_json()})
    except OSError as error:
        raise CheckpointError(
            f"Packing layer {plan.layer} failed ({error.strerror}); finished layers are kept in {directory}:"
            " make room there and run the same command again."
        ) from error
    return written


def _records(plan: PackedLayer, spec: ModelSpec, index: TensorIndex) -> Iterator[bytes]:
    """The padded records of one layer, expert by expert."""
    experts = spec.experts[plan.layer]
    convert = _converter(plan, spec, experts)
    with ExitStack() as stack:
        files = {}
        for info in layer_tensors(index, experts.prefix).values():
            if info.file not in files:
                files[info.file] = stack.enter_context(_opened(info.file))
        for expert in range(experts.num_experts):
            parts = {}
            for key, info in layer_tensors(index, experts.prefix).items():
                nbytes = info.nbytes // experts.num_experts
                data = os.pread(files[info.file], nbytes, info.offset + expert * nbytes)
                if len(data) != nbytes:
                    raise CheckpointError(f"{info.file} ends inside {info.name}; download it again.")
                parts[key] = data
            parts = convert(parts)
            record = b"".join(parts[s.proj, s.tensor] for s in plan.segments)
            if len(record) != plan.expert_bytes:
                raise CheckpointError(
                    f"Layer {plan.layer} expert {expert} came out as {len(record)} bytes instead of"
                    f" {plan.expert_bytes}, as this MLX version packs bits differently; keep the bits."
                )
            yield record.ljust(plan.record_bytes, b"\0")


def _converter(plan: PackedLayer, spec: ModelSpec, experts: ExpertLayer):
    """A function from one expert's parts (by projection and tensor name) to the parts of its record."""
    if plan.quantization is None:
        return lambda parts: parts
    from .requantise import requantise

    source = source_quantization(spec, experts)
    changed = [p for p, q in plan.quantization.items() if q != source[p]]
    old = {p: {s.tensor: s for s in experts.segments if s.proj == p} for p in changed}
    new = {p: {s.tensor: s for s in plan.segments if s.proj == p} for p in changed}

    def convert(parts):
        for proj in changed:
            own = {tensor: parts.pop((proj, tensor)) for tensor in old[proj]}
            made = requantise(own, old[proj], new[proj], source[proj], plan.quantization[proj])
            parts |= {(proj, tensor): data for tensor, data in made.items()}
        return parts

    return convert


def _finished_layers(directory: Path, source: str, planned: dict[int, PackedLayer]) -> dict[int, PackedLayer]:
    """Layers that an interrupted run completed, from the same weights and with the same layout."""
    found = {}
    for number, plan in planned.items():
        try:
            note = json.loads(_note(directory, number).read_text())
            layer = PackedLayer.from_json(note["layer"])
            size = (directory / plan.file).stat().st_size
        except (OSError, ValueError, TypeError, KeyError):
            continue
        same = replace(layer, checksums=plan.checksums) == plan
        if same and note["source"] == source and size == plan.file_bytes:
            found[number] = layer
    return found


def _check_finished(out: Path, source: str, planned: dict[int, PackedLayer]) -> None:
    try:
        manifest = Manifest.read(out)
        manifest.check_files(out)
    except CheckpointError as error:
        raise CheckpointError(
            f"{out} exists and is not a sound pack ({error}) Choose another path."
        ) from error
    blank = {n: replace(p, checksums=(0,) * p.num_experts) for n, p in manifest.layers.items()}
    if manifest.source != source or blank != planned:
        raise CheckpointError(
            f"{out} holds another pack (other weights or other bits); choose another path or remove it."
        )


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free + sum(
        f.stat().st_size for f in directory.glob("*.experts.partial")
    )
    if needed and free < needed + _RESERVE:
        raise CheckpointError(
            f"Packing needs {(needed + _RESERVE) / 1e9:.2f} GB in {directory.parent}, but"
            f" {free / 1e9:.2f} GB are free; make room or choose another disk."
        )


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Make `directory` and hold it against a second packer."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(f"Another process is packing into {directory}; wait for it.") from None
            yield
    except OSError as error:
        raise CheckpointError(
            f"Cannot write to {directory} ({error.strerror}); choose another path or make room."
        ) from error


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"Cannot read {path} ({error.strerror}); check its permissions.") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _offset(report: Progress | None, done: int, total: int) -> Progress:
    """`report` seen from inside one layer."""
    return (lambda inside, _: report(done + inside, total)) if report else (lambda inside, _: None)


def _tidy(out: Path) -> None:
    """Remove from a finished pack what only an interrupted run needs."""
    for file in [out / "lock", *out.glob("layer-*.json"), *out.glob("*.partial")]:
        file.unlink(missing_ok=True)


def _note(directory: Path, layer: int) -> Path:
    return directory / f"layer-{layer:04d}.json"
