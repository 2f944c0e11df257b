"""Random-weight checkpoints of any size, in the exact layout that mlx-lm's `load` accepts.

The stock model class is built with lazy arrays and never evaluated: it only tells names, shapes and the
quantisation of every tensor. The bytes are then drawn a few megabytes at a time and written to the
shards, one thread for each core, so that 45 GB need little more memory than 45 MB. Quantised tensors are
drawn as codes, scales and biases directly.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..demo import checkpoint_path
from ..errors import CapacityError, CheckpointError
from . import presets
from .random_tensors import Drawing, draw

_COPIED = (
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_WRITTEN = ("model*.safetensors", "mtp-raw.safetensors", "model.safetensors.index.json", "config.json")
_ITEM_BYTES = {"U32": 4, "U8": 1, "F32": 4, "BF16": 2, "F16": 2}
MTP_FILE = "mtp-raw.safetensors"


@dataclass(frozen=True)
class Tensor:
    """One tensor to be written: its safetensors dtype code, its shape and how its values are drawn."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    drawing: Drawing

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Synthesized:
    """What was written: directory, model bytes (without the MTP head), number of shards, MTP bytes."""

    path: Path
    nbytes: int
    shards: int
    mtp_bytes: int


def synthesize(
    out: Path,
    like: str,
    *,
    layers: int | None = None,
    experts: int | None = None,
    hidden: int | None = None,
    expert_width: int | None = None,
    top_k: int | None = None,
    vocab: int | None = None,
    bits: int = 4,
    group_size: int = 64,
    dtype: str = "bfloat16",
    mtp: bool = False,
    seed: int = 0,
    shard_bytes: int = 5 * 10**9,
    force: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Synthesized:
    """Write a random checkpoint shaped like the preset `like`, with the given sizes replaced.

    bits: 2, 3, 4, 5, 6 or 8, or 16 for unquantised weights; unless 16, it and group_size do not apply to a
    preset whose experts have a format of their own (gpt_oss: mxfp4). dtype: "bfloat16" or "float32", of what
    is not quantised. mtp: add the raw MTP head (release naming, bfloat16, zero-centred norms). vocab: no less
    than the demonstration tokenizer's; rows beyond it are zero so that they are never chosen. The same
    arguments and seed give the same bytes. on_progress(done, total) in bytes, by one thread at a time.
    `config.json` is written last: an interrupted run leaves a directory that no loader takes for complete.

    Raises:
        CheckpointError: unknown preset, sizes the family cannot have, or a non-empty `out` without `force`.
        CapacityError: not enough free space.
    """
    preset = presets.find(like)
    config = preset.configured(
        layers=layers, experts=experts, hidden=hidden, expert_width=expert_width, top_k=top_k, vocab=vocab
    )
    text = config[preset.nested] if preset.nested else config
    known = _tokens()
    if text["vocab_size"] < known:
        raise CheckpointError(
            f"vocab {text['vocab_size']} is below the tokenizer's {known}; use {known} or more."
        )
    if mtp and not preset.mtp:
        raise CheckpointError(f"{like} has no MTP head to imitate; leave --mtp out.")
    _check_empty(out, force)
    config["eos_token_id"] = json.loads((checkpoint_path() / "config.json").read_text())["eos_token_id"]
    config["torch_dtype"] = dtype
    tensors, config, parameters = _layout(config, preset, bits, group_size, dtype, known)
    head = _mtp_tensors(config) if mtp else []
    size, mtp_size = (sum(t.nbytes for t in group) for group in (tensors, head))
    _check_space(out, size + mtp_size)
    _prepare(out)

    shards = _shards(tensors, shard_bytes)
    names = [_shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    files = [(name, shard, "mlx") for name, shard in zip(names, shards, strict=True)]
    if head:
        files.append((MTP_FILE, head, "pt"))
    _write_files(out, files, seed, lambda done: on_progress(done, size + mtp_size))
    index = {
        "metadata": {"total_size": size, "total_parameters": parameters},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))
    (out / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=4) + "\n")
    return Synthesized(out, size, len(shards), mtp_size)


def _tokens() -> int:
    """Entries of the demonstration tokenizer, which every synthetic checkpoint gets."""
    tokenizer = json.loads((checkpoint_path() / "tokenizer.json").read_text())
    return 1 + max(*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"]))


def _check_empty(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file; give a directory.")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise CheckpointError(
            f"{out} is not empty; give a new directory or use --force to replace its model."
        )


def _check_space(out: Path, needed: int) -> None:
    existing = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise CapacityError(
            f"{out} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; use fewer layers or "
            "experts, or another disk."
        )


def _prepare(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for pattern in _WRITTEN:  # a loader reads every model*.safetensors it finds
        for stale in out.glob(pattern):
            stale.unlink()
    for name in _COPIED:
        shutil.copyfile(checkpoint_path() / name, out / name)


def _layout(
    config: dict[str, Any], preset: presets.Preset, bits: int, group_size: int, dtype: str, known_tokens: int
) -> tuple[list[Tensor], dict[str, Any], int]:
    """Every tensor of the stock model in its order, the config with its quantisation, the parameter count."""
    from mlx.utils import tree_flatten
    from mlx_lm import utils

    model_class, args_class = utils._get_classes(config)
    try:
        model = model_class(args_class.from_dict(config))
    except (ValueError, AssertionError) as error:
        raise CheckpointError(
            f"{config['model_type']} cannot have these sizes ({error}); change them."
        ) from error
    if bits != 16:
        model, config = _quantized(model, config, preset, bits, group_size)
    cast = getattr(model, "cast_predicate", lambda name: True)
    code = {"bfloat16": "BF16", "float32": "F32"}[dtype]
    modules = dict(model.named_modules())
    tensors = []
    for name, array in tree_flatten(model.parameters()):
        kind = {"uint32": "U32", "uint8": "U8"}.get(str(array.dtype).split(".")[-1])
        owner, _, leaf = name.rpartition(".")
        drawing = Drawing.of(owner, leaf, array.shape, modules.get(owner), known_tokens)
        tensors.append(Tensor(name, kind or (code if cast(name) else "F32"), tuple(array.shape), drawing))
    return tensors, config, utils.get_total_parameters(model)


def _quantized(
    model: Any, config: dict, preset: presets.Preset, bits: int, group_size: int
) -> tuple[Any, dict]:
    from mlx_lm import utils
    from mlx_lm.models.switch_layers import SwitchLinear

    predicate, mode = None, {}
    if preset.expert_mode != "affine":
        mode, group_size, bits = {"mode": preset.expert_mode}, None, None

        def predicate(path: str, module: Any) -> bool | dict:
            return isinstance(module, SwitchLinear) or {"group_size": 64, "bits": 8}

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # quantize_model prints its bits per weight
            return utils.quantize_model(model, config, group_size, bits, quant_predicate=predicate, **mode)
    except ValueError as error:
        raise CheckpointError(f"These sizes cannot be quantised ({error}); use multiples of 64.") from error


def _mtp_tensors(config: dict[str, Any]) -> list[Tensor]:
    """The raw head of a qwen3_next release: one full-attention MoE layer between `fc` and `norm`."""
    hidden, head, width = config["hidden_size"], config["head_dim"], config["moe_intermediate_size"]
    heads, kv_heads = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shared = config["shared_expert_intermediate_size"]
    layer = "mtp.layers.0"
    shapes: dict[str, tuple[int, ...]] = {"mtp.fc": (hidden, 2 * hidden)}
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        shapes[f"mtp.{name}"] = (hidden,)
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{layer}.{name}"] = (hidden,)
    for name, rows in (("q_proj", 2 * heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
        shapes[f"{layer}.self_attn.{name}"] = (rows, hidden)
    shapes[f"{layer}.self_attn.o_proj"] = (hidden, heads)
    shapes |= {f"{layer}.self_attn.{name}": (head,) for name in ("q_norm", "k_norm")}
    shapes[f"{layer}.mlp.gate"] = (config["num_experts"], hidden)
    shapes[f"{layer}.mlp.shared_expert_gate"] = (1, hidden)
    parts = {f"experts.{e}": width for e in range(config["num_experts"])} | {"shared_expert": shared}
    for part, rows in parts.items():
        shapes |= {f"{layer}.mlp.{part}.{name}": (rows, hidden) for name in ("gate_proj", "up_proj")}
        shapes[f"{layer}.mlp.{part}.down_proj"] = (hidden, rows)
    return [
        Tensor(f"{owner}.weight", "BF16", shape, Drawing.of(owner, "weight", shape, None, 0, norm_mean=0.0))
        for owner, shape in sorted(shapes.items())
    ]


def _shards(tensors: list[Tensor], limit: int) -> list[list[Tensor]]:
    """Fill files up to `limit` bytes in order; a tensor is never split (a larger one has its own file)."""
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def _shard_name(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"


def _write_files(
    out: Path, files: list[tuple[str, list[Tensor], str]], seed: int, report: Callable[[int], None]
) -> None:
    """Write (name, tensors, origin) for each file, one thread for each core; `report` gets all bytes so far.

    Drawing and writing both release the interpreter's lock.
    """
    done, lock, stopped = 0, threading.Lock(), threading.Event()

    def count(nbytes: int) -> None:
        nonlocal done
        if stopped.is_set():
            raise CheckpointError(f"Writing {out} was broken off; run the command again with --force.")
        with lock:
            done += nbytes
            report(done)

    with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as writers:
        jobs = [
            writers.submit(_write_file, out / name, tensors, origin, seed, count)
            for name, tensors, origin in files
        ]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:  # Ctrl-C, a full disk: the other files are of no use then
            stopped.set()
            writers.shutdown(wait=False, cancel_futures=True)
            raise


def _write_file(
    path: Path, tensors: list[Tensor], origin: str, seed: int, count: Callable[[int], None]
) -> None:
    with path.open("wb") as file:
        file.write(_header(tensors, origin))
        for tensor in tensors:
            for piece in _pieces(tensor, seed):
                file.write(piece)
                count(len(piece))


def _header(tensors: list[Tensor], origin: str) -> bytes:
    """The safetensors header; like mlx's own files it is not padded, so tensors start at any byte."""
    entries: dict[str, Any] = {"__metadata__": {"format": origin}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text


def _pieces(tensor: Tensor, seed: int) -> Iterator[memoryview]:
    for values in draw(tensor.drawing, tensor.shape, tensor.dtype, seed):
        yield memoryview(values).cast("B")
