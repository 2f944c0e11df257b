"""Simulate eviction policies on recorded routing, against the best possible choice (Belady's MIN)."""

from __future__ import annotations

import numpy as np

from .policy import POLICIES, make_policy


def hit_rate(chosen: np.ndarray, slots: int, policy: str) -> float:
    """Share of a layer's choices (tokens, top_k) found in `slots` slots, which start empty.

    `policy` is one of policy.POLICIES or "belady": evict what is needed again last (L. A. Belady, "A study of
    replacement algorithms for a virtual-storage computer", 1966). A token's own experts are never evicted
    for one another; with fewer slots than top_k the rest pass through without being kept.
    """
    return _belady(chosen, slots) if policy == "belady" else _online(chosen, slots, policy)


def compare(traces: dict[int, np.ndarray], slots: int) -> dict[str, float]:
    """Mean hit rate over the layers of `traces` for every policy and Belady."""
    names = [*POLICIES, "belady"]
    return {name: float(np.mean([hit_rate(c, slots, name) for c in traces.values()])) for name in names}


def _online(chosen: np.ndarray, slots: int, name: str) -> float:
    policy = make_policy(name, slots)
    slot_of: dict[int, int] = {}
    holds = np.full(slots, -1)
    hits = 0
    for row in chosen.tolist():
        present = [e for e in row if e in slot_of]
        hits += len(present)
        if present:
            policy.touch(np.array([slot_of[e] for e in present]))
        missing = [e for e in row if e not in slot_of][: slots - len(present)]
        for expert in missing:
            free = np.flatnonzero(holds < 0)
            if len(free):
                slot = int(free[0])
            else:
                allowed = ~np.isin(holds, row)
                slot = int(policy.victims(1, allowed)[0])
                del slot_of[int(holds[slot])]
            holds[slot] = expert
            slot_of[expert] = slot
            policy.admit(np.array([slot]))
    return hits / chosen.size


def _belady(chosen: np.ndarray, slots: int) -> float:
    never = len(chosen)
    next_use = np.full(chosen.shape, never)
    seen: dict[int, int] = {}
    for token in range(len(chosen) - 1, -1, -1):
        for place, expert in enumerate(chosen[token].tolist()):
            next_use[token, place] = seen.get(expert, never)
            seen[expert] = token
    held: dict[int, int] = {}
    hits = 0
    for row, upcoming in zip(chosen.tolist(), next_use.tolist(), strict=True):
        hits += sum(e in held for e in row)
        for expert, when in zip(row, upcoming, strict=True):
            held[expert] = when
        if len(held) > slots:
            for expert in sorted(held, key=held.get, reverse=True)[: len(held) - slots]:
                del held[expert]
    return hits / chosen.size
