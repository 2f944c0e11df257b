"""Doctor: what this machine is, what a checkpoint needs, how it would run here, and what is in the way."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint.index import TensorIndex
from .checkpoint.spec import ModelSpec
from .config import EngineConfig
from .errors import CapacityError, CheckpointError, EngineError
from .forecast import Forecast, forecast
from .machine import Machine
from .measurements import last_measurement
from .probes import ComputeRates, DiskRates, probe_compute, probe_disk, probe_empty_disk

if TYPE_CHECKING:
    from .experts.plan import Plan

SLOW_DISK = 10**9  # bytes per second; below it reads take most of a token's time on any machine
UNUSABLE = 0.5  # tokens per second
_PACKAGES = ("llm-mlx-streaming", "llm", "mlx", "mlx-lm", "huggingface_hub")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class Problem:
    """Something in the way (`fatal`) or worth changing, and the one command that does it ("": none does)."""

    what: str
    fix: str = ""
    fatal: bool = False


@dataclass(frozen=True)
class Subject:
    """What is examined: a directory with a checkpoint or its outline (`downloaded` False).

    `get` is the command that brings (back) its files. `missing_bytes` are still to be downloaded to `disk`.
    """

    name: str
    path: Path
    downloaded: bool
    disk: Path
    get: str = ""
    missing_bytes: int = 0


@dataclass
class Report:
    """What was found; parts that could not be had are None and a problem says why."""

    machine: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    plan: Plan | None = None
    disk: DiskRates | None = None
    compute: ComputeRates | None = None
    forecast: Forecast | None = None
    measured: dict[str, Any] | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def fatal(self) -> bool:
        """Whether the model cannot run."""
        return any(p.fatal for p in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        return {
            "machine": self.machine,
            "model": self.model,
            "plan": self.plan.to_json() if self.plan else None,
            "disk": asdict(self.disk) if self.disk else None,
            "compute": asdict(self.compute) if self.compute else None,
            "forecast": self.forecast.to_json() | {"reasons": self.forecast.reasons}
            if self.forecast
            else None,
            "measured": self.measured,
            "problems": [asdict(p) for p in self.problems],
        }


def examine(subject: Subject, config: EngineConfig, measured_file: Path | None = None) -> Report:
    """Examine this machine and `subject` under `config`; takes a few seconds of measuring.

    Nothing is raised for what a user can mend: it becomes a problem of the report.
    """
    report = Report()
    machine = _machine(report)
    opened = _model(report, subject)
    if machine is None or opened is None:
        return report
    spec, index = opened
    _dropped(report, subject, spec, index, config)
    _space(report, subject)
    sizes = _plan(report, subject, spec, config)
    block = max(e.expert_bytes for e in spec.experts.values())
    files = sorted(Path(config.packed).glob("*.experts")) if sizes else index.files
    _probes(report, subject, index, files, block)
    if report.plan and report.disk and report.compute:
        _forecasts(report, spec, index, sizes, measured_file)
    _speed(report, subject)
    _processor(report)
    return report


def machine_facts(machine: Machine) -> dict[str, Any]:
    """Memory, processor, system and versions, for people and for `--json`."""
    return {
        "memory": machine.total_memory,
        "working_set": machine.working_set,
        "backend": machine.backend,
        "device": _device_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _machine(report: Report) -> Machine | None:
    try:
        machine = Machine.detect(device=True)
    except ImportError as error:
        install = "mlx mlx-lm" if platform.system() == "Darwin" else "'mlx[cpu]' mlx-lm"
        report.problems.append(Problem(f"MLX cannot be imported ({error}).", f"llm install {install}", True))
        return None
    report.machine = machine_facts(machine)
    if platform.system() == "Darwin" and machine.backend == "cpu":
        report.problems.append(
            Problem("MLX does not use this Mac's GPU, so answers will be slow.", "llm install -U mlx")
        )
    return machine


def _model(report: Report, subject: Subject) -> tuple[ModelSpec, TensorIndex] | None:
    """Read and check the checkpoint as loading it would, without reading its weights."""
    from .checkpoint.drop import dropped_to
    from .checkpoint.load import build_model
    from .checkpoint.mtp_extract import find_head
    from .checkpoint.tokenizer import load_tokenizer

    try:
        index = TensorIndex.open(subject.path)
        spec = ModelSpec.read(subject.path, index, subject.name)
    except CheckpointError as error:
        report.problems.append(Problem(str(error), subject.get, True))
        return None
    layers = list(spec.experts.values())
    report.model = {
        "name": subject.name,
        "path": str(subject.path) if subject.downloaded else None,
        "type": spec.model_type,
        "downloaded": subject.downloaded,
        "bytes": sum(f.stat().st_size for f in index.files),
        "missing_bytes": subject.missing_bytes,
        "trunk_bytes": spec.trunk_bytes,
        "expert_bytes": spec.expert_bytes,
        "one_expert_bytes": max(e.expert_bytes for e in layers),
        "layers": spec.num_layers,
        "expert_layers": len(layers),
        "experts": max(e.num_experts for e in layers),
        "top_k": max(e.top_k for e in layers),
        "context": spec.max_context,
        "mtp": bool(find_head(subject.path)) if subject.downloaded else None,
    }
    try:
        report.model["dropped_to"] = dropped_to(spec, index) if subject.downloaded else None
        build_model(spec)
        if subject.downloaded:
            load_tokenizer(subject.path)
    except CheckpointError as error:
        report.problems.append(Problem(str(error), subject.get, True))
    return spec, index


def _dropped(
    report: Report, subject: Subject, spec: ModelSpec, index: TensorIndex, config: EngineConfig
) -> None:
    """Without their packed form, experts that were dropped are missing."""
    from .checkpoint.drop import require_experts

    packed = report.model.get("dropped_to")
    if packed and not config.packed:
        fix = f"llm mlx-streaming add {subject.path} --name {subject.name} --set packed={packed}"
        try:
            require_experts(spec, index)
        except CheckpointError as error:
            report.problems.append(Problem(str(error), fix if Path(packed).is_dir() else subject.get, True))


def _space(report: Report, subject: Subject) -> None:
    from .checkpoint.download import check_space

    if not subject.downloaded:
        try:
            check_space(subject.disk, subject.missing_bytes, f"{subject.name} needs")
        except CapacityError as error:
            report.problems.append(Problem(str(error), "", True))
    existing = next(p for p in (subject.disk, *subject.disk.parents) if p.exists())
    report.machine["free_disk"] = shutil.disk_usage(existing).free


def _plan(
    report: Report, subject: Subject, spec: ModelSpec, config: EngineConfig
) -> Mapping[int, int] | None:
    """Add the plan; returns the sizes of packed experts, if there are any."""
    from .checkpoint.packed import Manifest
    from .experts.plan import plan_here

    try:
        report.plan = plan_here(spec, config)
        packed = Manifest.read(config.packed).layers if config.packed else {}
        return {n: layer.expert_bytes for n, layer in packed.items()} or None
    except EngineError as error:
        fix = f"llm mlx-streaming pack {subject.name} {config.packed}" if config.packed else ""
        report.problems.append(Problem(str(error), "" if isinstance(error, CapacityError) else fix, True))
        return None


def _probes(report: Report, subject: Subject, index: TensorIndex, files: Sequence[Path], block: int) -> None:
    floats = next((t.dtype for n, t in index.tensors.items() if n.endswith((".scales", "norm.weight"))), "")
    report.compute = probe_compute(_DTYPES.get(floats, "bfloat16"))
    try:
        if subject.downloaded:
            report.disk = probe_disk(files, block)
        else:
            report.disk = probe_empty_disk(subject.disk, block)
    except OSError as error:
        what = f"The disk at {subject.disk} cannot be measured ({error.strerror}); make it writable."
        report.problems.append(Problem(what))


def _forecasts(
    report: Report, spec: ModelSpec, index: TensorIndex, sizes: Mapping[int, int] | None, file: Path | None
) -> None:
    """Forecast with the plan's slots, and hold the last run against it."""
    plan = report.plan
    found = last_measurement(file, index.digest()) if file and report.model["downloaded"] else None
    same_slots = bool(found) and found.get("slots") == sum(plan.slots.values())

    def predict(prompt_tokens: int | None = None) -> Forecast:
        return forecast(
            spec,
            index,
            plan.slots,
            report.disk,
            report.compute,
            spare_memory=plan.page_cache_bytes,
            expert_bytes=sizes,
            hit_rate=found.get("hit_rate") if same_slots else None,
            **({"prompt_tokens": prompt_tokens} if prompt_tokens else {}),
        )

    report.forecast = predict()
    if found:
        again = predict(max(1, found["prompt_tokens"]))
        report.measured = found | {
            "same_slots": same_slots,
            "forecast_tps": round(again.tps, 3),
            "forecast_over_measured": round(again.tps / found["generation_tps"], 3),
            "forecast_first_token_s": round(again.first_token_s, 3),
            "first_token_s": round(found["ttft_s"] + found["load_s"], 3),
        }


def _speed(report: Report, subject: Subject) -> None:
    streams = report.plan is not None and len(report.plan.resident) < len(report.plan.slots)
    if streams and report.disk and report.disk.disk < SLOW_DISK:
        report.problems.append(
            Problem(
                f"The disk with {subject.name} reads {report.disk.disk / 1e9:.2f} GB/s; missing experts come"
                " faster from an internal SSD.",
                f"HF_HOME=/a/faster/disk {subject.get}" if subject.get else "",
            )
        )


def _processor(report: Report) -> None:
    if report.forecast and report.forecast.tps < UNUSABLE and report.machine["backend"] == "cpu":
        fix = "llm install 'mlx[cuda13]'" if shutil.which("nvidia-smi") else ""
        report.problems.append(
            Problem("MLX computes on the CPU here, which is too slow for this model; use a Mac or CUDA.", fix)
        )


def outline_subject(repo: str, revision: str, directory: Path) -> Subject:
    """A repository of the hub that is not here, its outline written to `directory`.

    Raises:
        CheckpointError: not found, not reachable, or not a checkpoint that can be streamed.
    """
    from .checkpoint.download import missing_bytes, repo_folder
    from .checkpoint.families import check
    from .checkpoint.hub import describe, outline, read_json

    hub = describe(repo, revision)
    hub.checkpoint_files()
    check(read_json(hub, "config.json"), repo)
    return Subject(
        name=repo,
        path=outline(hub, directory),
        downloaded=False,
        disk=repo_folder(repo),
        get=f"llm mlx-streaming download {repo}",
        missing_bytes=missing_bytes(hub),
    )


def with_name(report: Report, path: Path, name: str) -> Report:
    """The report with `path`, a temporary outline, called by the repository's name."""
    report.problems = [replace(p, what=p.what.replace(str(path), name)) for p in report.problems]
    return report


def _device_name() -> str:
    import mlx.core as mx

    return str(mx.device_info().get("device_name", ""))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
