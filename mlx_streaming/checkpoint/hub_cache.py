"""Checkpoints that other programs or earlier downloads left in the hub cache of this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import CheckpointError
from . import families
from .spec import ModelSpec


@dataclass(frozen=True)
class CachedCheckpoint:
    """One snapshot in the hub cache. `problem` says why a model with experts cannot be used as it is."""

    repo: str
    path: Path
    commit: str
    size: int
    problem: str | None = None


def cached_checkpoints() -> list[CachedCheckpoint]:
    """The models in the hub cache whose experts could be streamed, by name; of each one snapshot (`main`).

    Dense models and models of unknown types are left out; incomplete ones have a `problem`.
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = []
    for repo in repos:
        if repo.repo_type != "model" or not repo.revisions:
            continue
        revision = max(repo.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
        if _is_candidate(revision.snapshot_path):
            problem = _problem(revision.snapshot_path)
            found.append(
                CachedCheckpoint(
                    repo.repo_id, revision.snapshot_path, revision.commit_hash, revision.size_on_disk, problem
                )
            )
    return sorted(found, key=lambda c: c.repo)


def delete_snapshot(path: Path) -> int | None:
    """Delete the snapshot directory `path` and what only it uses from the hub cache; bytes freed.

    None when `path` is not a snapshot of the hub cache: nothing was deleted.
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        info = scan_cache_dir()
    except CacheNotFound:
        return None
    wanted = path.resolve()
    for repo in info.repos:
        for revision in repo.revisions:
            if revision.snapshot_path.resolve() == wanted:
                # copies of a repository share commits, so the others are kept out of sight
                strategy = replace(info, repos=frozenset([repo])).delete_revisions(revision.commit_hash)
                strategy.execute()
                return strategy.expected_freed_size
    return None


def _is_candidate(path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and families.refusal(config) is None


def _problem(path: Path) -> str | None:
    try:
        ModelSpec.read(path)
    except CheckpointError as error:
        return str(error)
    return None
