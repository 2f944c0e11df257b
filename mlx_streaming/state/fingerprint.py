"""Fingerprint: everything that must match before a snapshot may be used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SCHEMA = 1  # of entry files and index; raise it when either changes


@dataclass(frozen=True)
class Fingerprint:
    """Three digests (hex). `model`: weights and config. `setup`: versions and template, which only ever move
    on, so entries of the same model with another setup are dead. `key`: all of it, with the variant that a
    user may switch to and fro (KV format, chunk)."""

    model: str
    setup: str
    key: str


def fingerprint(
    weights: str,
    config: bytes | Mapping[str, Any],
    *,
    kv_format: str = "",
    template: str = "",
    chunk: int | None = None,
    device: str = "",
) -> Fingerprint:
    """Fingerprint of a checkpoint as it is run here.

    Args:
        weights: `TensorIndex.digest()`. config: config.json, as bytes or parsed.
        kv_format: "" or bits, rotation and seed of the KV cache. template: the chat template's text.
        chunk: prefill chunk in tokens, if it changes bits. device: name of the backend, if the store can be
            met by several.
    """
    if not isinstance(config, bytes):
        config = json.dumps(config, sort_keys=True).encode()
    model = _digest(weights.encode(), config)
    versions = f"schema={SCHEMA} mlx={_version('mlx')} mlx-lm={_version('mlx-lm')}"
    setup = _digest(versions.encode(), template.encode())
    key = _digest(model.encode(), setup.encode(), f"{kv_format}|{chunk}|{device}".encode())
    return Fingerprint(model, setup, key)


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
