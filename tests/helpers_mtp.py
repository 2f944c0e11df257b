"""A table in place of a model and its head, and chi-square without scipy."""

import math

import mlx.core as mx
import numpy as np

VOCAB = 6


class TableCache:
    """Counts tokens; can go back."""

    def __init__(self):
        self.offset = 0
        self.state = []

    def is_trimmable(self):
        return True

    def trim(self, n):
        self.offset -= n


class TableHead:
    """Logits that depend on the last token alone: row t of `target` follows t; the head guesses with
    `draft`."""

    ready = True
    hidden_size = 1

    def __init__(self, target, draft):
        self.target, self.draft = mx.array(target), mx.array(draft)
        self.backbone = self.trunk = self
        self.layers = [None]
        self.seen = []

    def run(self, tokens, cache):
        cache[0].offset += tokens.shape[1]
        return tokens[..., None], self.target[tokens]

    def observe(self, tokens, hidden):
        self.seen.append(tokens)

    def first(self, token):
        return self.draft[token], token

    def more(self, token, hidden):
        return self.draft[token], token

    def rewind(self):
        pass

    def mark(self):
        return None


def tables(seed, sharp=1.2, alike=0.7):
    """Two tables of logits (VOCAB, VOCAB) that agree as far as `alike` says."""
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(VOCAB, VOCAB)) * sharp
    noise = rng.normal(size=(VOCAB, VOCAB)) * sharp
    return target.astype(np.float32), (alike * target + (1 - alike) * noise).astype(np.float32)


def chi_square_p(counts, expected) -> float:
    """P(chi-square >= the observed) for counts against expected ones; cells below 5 are pooled."""
    counts, expected = np.ravel(counts).astype(float), np.ravel(expected)
    assert counts[expected == 0].sum() == 0, "an impossible outcome occurred"
    small = (expected < 5) & (expected > 0)
    cells = [(c, e) for c, e in zip(counts[~small], expected[~small], strict=True) if e > 0]
    if expected[small].sum() > 0:
        cells.append((counts[small].sum(), expected[small].sum()))
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    return _gamma_q((len(cells) - 1) / 2, statistic / 2)


def _gamma_q(a, x):
    """Regularised upper incomplete gamma function (series below a + 1, continued fraction above)."""
    if x <= 0:
        return 1.0
    front = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        for _ in range(2000):
            n += 1
            term *= x / n
            total += term
        return 1 - total * front
    b = x + 1 - a
    c, d = 1e300, 1 / b
    h = d
    for i in range(1, 2000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        h *= d * c
    return h * front
