"""Simulate eviction policies on recorded routing, against the best possible choice (Belady's MIN)."""

from __future__ import annotations

import numpy as np

from .policy import POLICIES, make_policy


def hit_rate(chosen: np.ndarray, slots: int, policy: str) -> float:
    """Share of a layer's choices (tokens, top_k) found in `slots` slots, which start empty.

    `policy` is one of policy.POLICIES or "belady": evict what is needed again last (L. A. Belady, "A study of
    replacement algorithms for a virtual-storage computer", 1966). A token's own experts must be present at
    once, for Belady too, so they never make room for one another; with fewer slots than top_k the rest pass
    through without being kept.
    """
    return _belady(chosen, slots) if policy == "belady" else _online(chosen, slots, policy)


def compare(traces: dict[int, np.ndarray], slots: int) -> dict[str, float]:
    """Mean hit rate over the layers of `traces` for every policy and Belady."""
    names = [*POLICIES, "belady"]
    return {name: float(np.mean([hit_rate(c, slots, name) for c in traces.values()])) for name in names}


def _online(chosen: np.ndarray, slots: int, name: str) -> float:
    experts = int(chosen.max()) + 1
    policy = make_policy(name, experts)
    held = np.zeros(experts, dtype=bool)
    hits = 0
    for row in chosen:
        policy.chosen(row[None])
        present = held[row]
        hits += int(present.sum())
        missing = row[~present][: slots - int(present.sum())]
        excess = int(held.sum()) + len(missing) - slots
        if excess > 0:
            others = held.copy()
            others[row] = False
            candidates = np.flatnonzero(others)
            held[candidates[policy.victims(excess, candidates)]] = False
        if len(missing):
            held[missing] = True
            policy.admit(missing)
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
        excess = len(held) - slots
        if excess > 0:
            # The token's own experts were all needed in slots at once, so the others make room first.
            own = set(row)
            for expert in sorted(held, key=lambda e: (e not in own, held[e]), reverse=True)[:excess]:
                del held[expert]
    return hits / chosen.size
