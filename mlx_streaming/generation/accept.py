"""Which drafts stand, and what comes after them: pure functions over the target's and draft's
distributions.

Both rules leave the target's distribution untouched; they differ in where the randomness comes from.
"""

from __future__ import annotations

import mlx.core as mx


def accept_equal(targets: mx.array, drafts: mx.array) -> tuple[mx.array, mx.array]:
    """Drafts stand as far as they are what the target draws itself: greedy, or with noise shared per place.

    targets (K + 1,) and drafts (K,) are tokens; returns (number that stand, token after them), both scalar.
    With one Gumbel noise per place the drafts agree with the target about as often as rejection sampling
    accepts them, and the words do not depend on how many were drafted.
    """
    return _count(targets[:-1] == drafts, targets)


def accept_rejection(
    target: mx.array, draft: mx.array, drafts: mx.array, uniforms: mx.array, key: mx.array
) -> tuple[mx.array, mx.array]:
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

    target (K + 1, vocab) and draft (K, vocab) are the filtered log-probabilities, drafts (K,) tokens
    drawn from `draft`, uniforms (K,) in [0, 1). A draft d stands with probability min(1, p(d) / q(d));
    the first that does not is replaced by a draw from max(p - q, 0); after K that stand comes a draw from
    the target's last row. Returns (number that stand, token after them), both scalar.
    """
    p, q = mx.exp(target), mx.exp(draft)
    places = drafts[:, None]
    p_of = mx.take_along_axis(p[:-1], places, axis=-1)[:, 0]
    q_of = mx.take_along_axis(q, places, axis=-1)[:, 0]
    rest = mx.maximum(p[:-1] - q, 0)
    # Where p and q agree to the last bit nothing is left over; rejection is then a matter of rounding.
    rest = mx.where(rest.sum(axis=-1, keepdims=True) > 0, rest, p[:-1])
    rest = mx.concatenate([rest, p[-1:]])
    following = mx.random.categorical(mx.log(rest), key=key)
    return _count(uniforms * q_of < p_of, following)


def _count(stands: mx.array, following: mx.array) -> tuple[mx.array, mx.array]:
    count = mx.cumprod(stands.astype(mx.int32)).sum()
    return count, mx.take(following, count)
