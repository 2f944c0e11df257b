"""Layouts: what a captured cache list consists of, as plain JSON data.

A layout is `{"position": int, "cache": [node, ...], "extra": {name: node | [node, ...] | "array"}}`.
A node is `{"type", "fixed", "scalars", "offset", "rows": [name, ...], "whole": [name, ...]}`, or
`{"type": "CacheList", "of": [node, ...]}`. `rows` are arrays with one row per token along axis -2 (`offset`
of them), `whole` arrays are kept entire.
"""

from __future__ import annotations

from collections.abc import Iterator


def leaves(layout: dict) -> Iterator[tuple[str, dict]]:
    """(path, node) of every cache object that holds arrays; paths are like "c.3" or "x.mtp.0"."""
    for i, node in enumerate(layout["cache"]):
        yield from _walk(f"c.{i}", node)
    for name, item in layout["extra"].items():
        for i, node in enumerate(item if isinstance(item, list) else []):
            yield from _walk(f"x.{name}.{i}", node)
        if isinstance(item, dict):
            yield from _walk(f"x.{name}", item)


def _walk(path: str, node: dict) -> Iterator[tuple[str, dict]]:
    if "of" in node:
        for i, inner in enumerate(node["of"]):
            yield from _walk(f"{path}.{i}", inner)
    else:
        yield path, node


def starts(layout: dict, parent: dict | None) -> dict[str, int]:
    """Row at which each node's own rows begin, given the layout of the entry it extends.

    Rows are shared only between nodes of the same type and settings that stand equally far behind their
    position (an MTP cache that was started late is not an extension of one that was not).
    """
    known = dict(leaves(parent)) if parent else {}
    result = {}
    for path, node in leaves(layout):
        if not node["rows"]:
            continue
        before = known.get(path)
        shared = (
            before is not None
            and same_kind(before, node)
            and before["rows"] == node["rows"]
            and parent["position"] - before["offset"] == layout["position"] - node["offset"]
            and before["offset"] <= node["offset"]
        )
        result[path] = before["offset"] if shared else 0
    return result


def same_kind(a: dict, b: dict) -> bool:
    """Whether two nodes are caches of one type with the same settings."""
    if a["type"] != b["type"]:
        return False
    if "of" in a:
        return len(a["of"]) == len(b["of"]) and all(map(same_kind, a["of"], b["of"]))
    return a["fixed"] == b["fixed"]
