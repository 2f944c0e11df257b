"""From logits to the next token: penalties, grammar mask, temperature, filters, seeded draws.

The randomness of the n-th token is fixed by the seed and n alone (Gumbel noise over the vocabulary: the
token is the argmax of log-probability plus noise). Whoever computes the same distribution for that place
draws the same token, whether alone or while drafting and verifying several at once.

The order is that of Hugging Face transformers and vLLM: penalties, grammar mask, temperature, top-k, top-p,
min-p. The single filters and penalties are mlx-lm's (`mlx_lm.sample_utils`); they get float32 normalised
log-probabilities, which its top-p and min-p need to be right.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ..errors import PromptError
from ..request import Sampling

DRAW, DRAFT, ACCEPT, RESIDUAL = range(4)  # what random numbers are for
NEUTRAL = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def resolve(sampling: Sampling, generation_config: Mapping[str, Any]) -> Sampling:
    """`sampling` with each None replaced by the checkpoint's value or the neutral one (not the seed).

    A generation config that says `do_sample: false` means greedy unless the caller gave a temperature.
    """
    config = dict(generation_config)
    if config.get("do_sample") is False:
        config["temperature"] = 0.0
    elif config.get("do_sample") is True:
        config.setdefault("temperature", 1.0)
    filled = {}
    for name, neutral in NEUTRAL.items():
        value = getattr(sampling, name)
        if value is None:
            value = config.get(name)
        filled[name] = neutral if value is None else type(neutral)(value)
    return replace(sampling, **filled)


def check(sampling: Sampling) -> None:
    """Raises PromptError when a value is outside what it means."""
    limits = {
        "temperature": (0.0, None),
        "top_p": (0.0, 1.0),
        "top_k": (0, None),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (1e-6, None),
        "repetition_context": (1, None),
        "seed": (0, None),
    }
    for name, (low, high) in limits.items():
        value = getattr(sampling, name)
        if value is None:
            continue
        if not value >= low or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}"
            raise PromptError(f"{name} must be {allowed}, not {value}.")


class Sampler:
    """Draws tokens under one `Sampling`; its random numbers come from the seed alone.

    Fields of `sampling` that are None count as neutral (`resolve` fills them from the checkpoint).
    `position` counts the tokens drawn; `seeded` tells whether the caller chose the seed.
    """

    def __init__(self, sampling: Sampling, vocab_size: int):
        check(sampling)
        self.sampling = sampling = resolve(sampling, {})
        self.vocab_size = vocab_size
        self.greedy = sampling.temperature == 0
        self.seeded = sampling.seed is not None
        self.seed = sampling.seed if self.seeded else secrets.randbits(31)
        self.position = 0
        self._penalties = _penalties(sampling)

    @property
    def needs_history(self) -> bool:
        """Whether `history` changes the result (a penalty is set)."""
        return bool(self._penalties)

    def scores(
        self, logits: mx.array, history: Sequence[int] | mx.array = (), mask: mx.array | None = None
    ) -> mx.array:
        """Normalised log-probabilities (rows, vocab) after penalties and grammar mask, before temperature.

        Greedy keeps the dtype of the logits, so that ties fall as in mlx-lm's `generate_step`; otherwise
        float32. `history` holds the tokens so far, prompt included, and counts for every row.
        """
        if not self.greedy:
            logits = logits.astype(mx.float32)
        if self._penalties and len(history) > 0:
            logits = mx.array(logits)  # the penalties write into the array they are given
            recent = mx.array(history[-self.sampling.repetition_context :])
            for penalty in self._penalties:
                logits = penalty(recent, logits)
        if mask is not None:
            if mask.shape[-1] < logits.shape[-1]:  # logits are often padded beyond the tokenizer
                gap = logits.shape[-1] - mask.shape[-1]
                mask = mx.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, gap)])
            logits = mx.where(mask, logits, mx.array(-mx.inf, logits.dtype))
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    def filtered(
        self, logits: mx.array, history: Sequence[int] | mx.array = (), mask: mx.array | None = None
    ) -> mx.array:
        """The distribution that tokens are drawn from: log-probabilities (rows, vocab), float32, sum 1.

        -inf where penalties, mask or filters leave nothing; one-hot when greedy. `mask` is True where
        the grammar allows, shape (vocab,) or (rows, vocab).
        """
        scores = self.scores(logits, history, mask)
        if self.greedy:
            best = mx.argmax(scores, axis=-1, keepdims=True)
            return mx.where(mx.arange(scores.shape[-1]) == best, 0.0, -mx.inf).astype(mx.float32)
        kept, values = self._survivors(scores)
        if kept is None:
            return values
        return mx.put_along_axis(mx.full(scores.shape, -mx.inf), kept, values, axis=-1)

    def _survivors(self, scores: mx.array) -> tuple[mx.array | None, mx.array]:
        """Temperature and filters: (token ids, log-probabilities), both (rows, k), or (None, (rows,
        vocab)).

        After top-k only k entries can survive: the other filters sort k values instead of the vocabulary.
        """
        from mlx_lm.sample_utils import apply_min_p, apply_top_p

        k, kept = self.sampling.top_k, None
        if 0 < k < scores.shape[-1]:
            kept = mx.argpartition(-scores, kth=k - 1, axis=-1)[..., :k]
            scores = mx.take_along_axis(scores, kept, axis=-1)
        values = _normalise(scores * (1.0 / self.sampling.temperature))
        if 0 < self.sampling.top_p < 1.0:
            values = apply_top_p(values, self.sampling.top_p)
        if self.sampling.min_p > 0:
            values = apply_min_p(values, self.sampling.min_p)
        return kept, _normalise(values)

    def pick(
        self,
        logits: mx.array,
        history: Sequence[int] | mx.array = (),
        mask: mx.array | None = None,
        offset: int = 0,
    ) -> mx.array:
        """Tokens (rows,) drawn from `filtered`; row j is the token at `position + offset + j`.

        Nothing moves on: the same call gives the same tokens.
        """
        scores = self.scores(logits, history, mask)
        if self.greedy:
            return mx.argmax(scores, axis=-1)
        kept, values = self._survivors(scores)
        noise = self._noise(offset, logits.shape)
        if kept is None:
            return mx.argmax(values + noise, axis=-1)
        best = mx.argmax(values + mx.take_along_axis(noise, kept, axis=-1), axis=-1, keepdims=True)
        return mx.take_along_axis(kept, best, axis=-1).squeeze(-1)

    def sample(
        self, logits: mx.array, history: Sequence[int] | mx.array = (), mask: mx.array | None = None
    ) -> mx.array:
        """The token (1,) at `position`, which moves on by one."""
        token = self.pick(logits, history, mask)
        self.position += 1
        return token

    def _noise(self, offset: int, shape: tuple[int, int]) -> mx.array:
        """Gumbel noise (rows, vocab) of the tokens from `position + offset` on."""
        rows, vocab = shape
        keys = [self.key(DRAW, self.position + offset + j) for j in range(rows)]
        return mx.concatenate([mx.random.gumbel((1, vocab), key=key) for key in keys])

    def key(self, purpose: int, number: int) -> mx.array:
        """A key of this sampler's own; mlx's global random state is never touched."""
        return mx.random.key((_mix(4 * self.seed + purpose) + number) % 2**64)


def _mix(value: int) -> int:
    """splitmix64's finaliser: seeds 0, 1, 2 become unrelated starts (Steele et al., 2014)."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
    return value ^ (value >> 31)


def _normalise(logprobs: mx.array) -> mx.array:
    return logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)


def _penalties(sampling: Sampling) -> list:
    from mlx_lm.sample_utils import make_logits_processors

    repetition, context = sampling.repetition_penalty, sampling.repetition_context
    return make_logits_processors(
        repetition_penalty=None if repetition == 1.0 else repetition,
        repetition_context_size=context,
        presence_penalty=sampling.presence_penalty,
        presence_context_size=context,
        frequency_penalty=sampling.frequency_penalty,
        frequency_context_size=context,
    )
