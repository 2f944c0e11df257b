"""The tokenizer of a checkpoint directory, with its chat template and tool-call conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


def load_tokenizer(path: Path) -> TokenizerWrapper:
    """mlx-lm's wrapper of the tokenizer in `path`; `eos_token_ids` holds every end-of-turn id.

    Raises:
        CheckpointError: no tokenizer, one that cannot be read, or one without a chat template.
    """
    path = Path(path)
    if not any((path / name).is_file() for name in _FILES):
        raise CheckpointError(
            f"{path} has no tokenizer ({' or '.join(_FILES[:2])}); download the checkpoint's tokenizer files."
        )
    _check_json(path / "tokenizer.json")
    _check_json(path / "tokenizer_config.json")
    from mlx_lm.utils import load_tokenizer as load

    try:
        tokenizer = load(path, eos_token_ids=_eos_ids(path))
    except Exception as error:  # transformers raises whatever the broken part raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"The tokenizer in {path} cannot be read ({reason}); download its files again."
        ) from error
    if not tokenizer.has_chat_template:
        raise CheckpointError(
            f"{path} has no chat template; add the chat_template.jinja of the original model "
            "or use an instruction-tuned checkpoint."
        )
    # What is too long is refused by token count, in our words; transformers would warn on stderr besides.
    noted = getattr(tokenizer._tokenizer, "deprecation_warnings", {})
    noted["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _check_json(file: Path) -> None:
    if not file.is_file():
        return
    try:
        json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} is damaged ({error}); download the checkpoint's tokenizer files again."
        ) from error


def _eos_ids(path: Path) -> list[int] | None:
    """End-of-turn ids: generation_config.json and config.json together (None: what the tokenizer says)."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        ids = _read(path / name).get("eos_token_id")
        for token in ids if isinstance(ids, list) else [ids]:
            if isinstance(token, int) and token not in found:
                found.append(token)
    return found or None


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
