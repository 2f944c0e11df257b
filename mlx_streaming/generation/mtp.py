"""MTPHead: the model's own multi-token-prediction head, run beside it.

x_i = fc([norm_e(embed(t_{i+1})), norm_h(H_i)]) -> one decoder layer with a KV cache of its own -> norm ->
lm_head: the distribution of t_{i+2}. The layer's class is mlx-lm's; embedding and lm_head are the model's
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError
from .backbone import Backbone


class MTPModule(nn.Module):
    """The head's own weights, named as in the release below `mtp.`."""

    def __init__(self, layer: nn.Module, hidden_size: int, eps: float):
        super().__init__()
        self.pre_fc_norm_embedding = nn.RMSNorm(hidden_size, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(hidden_size, eps=eps)
        self.fc = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.layers = [layer]
        self.norm = nn.RMSNorm(hidden_size, eps=eps)

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: Any) -> mx.array:
        """Embeddings of t_{i+1} and hidden states H_i, (1, n, hidden) each -> (1, n, hidden) normed."""
        from mlx_lm.models.base import create_attention_mask

        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(mx.concatenate(both, axis=-1))
        x = self.layers[0](x, mask=create_attention_mask(x, cache), cache=cache)
        return self.norm(x)


def build_module(model: nn.Module) -> MTPModule:
    """An unloaded head for `model`: a decoder layer of the class and kind of its full-attention layers.

    Raises:
        CheckpointError: the model has no full-attention layer to imitate.
    """
    text = getattr(model, "language_model", model)
    args = text.args
    number = next((i for i, layer in enumerate(text.layers) if "self_attn" in layer), None)
    if number is None:
        raise CheckpointError(
            f"{type(model).__name__} has no full-attention layer to build an MTP head from; use mtp=off."
        )
    return MTPModule(type(text.layers[number])(args, number), args.hidden_size, args.rms_norm_eps)


class HiddenTap(nn.Module):
    """Stands before the final norm and remembers what went in: the pre-norm hidden states."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm
        self._seen: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        self._seen = x
        return self.norm(x)

    def take(self) -> mx.array:
        """The last input, once."""
        seen, self._seen = self._seen, None
        return seen


@dataclass(frozen=True)
class Mark:
    """Where a head stood, for `MTPHead.back_to`."""

    fed: int
    primed: bool
    last: mx.array | None
    late: tuple[tuple[mx.array, mx.array], ...]


class MTPHead:
    """A loaded head with its cache, kept in step with the tokens that the model has seen.

    A token goes through the head together with the hidden state of the token before it, so after n tokens
    the cache holds n - 1 entries and the last hidden state waits. Tokens that nobody drafts from are kept
    aside and go through together when the head is needed. `hidden` "post" feeds the model's hidden states
    after its final norm, "pre" those before it. `experts` is the ExpertMemory of a streamed head, or
    None.
    """

    FEED = 1024  # tokens that go through the head at once

    def __init__(self, model: nn.Module, module: MTPModule, hidden: str = "post", experts: Any = None):
        self.module = module
        self.backbone = Backbone(model)
        self.experts = experts
        self.hidden_size = module.norm.weight.shape[-1]
        self._tap: HiddenTap | None = None
        if hidden == "pre":
            self._tap = self.backbone.trunk.norm = HiddenTap(self.backbone.trunk.norm)
        self.restore({})

    def close(self) -> None:
        """Take the tap out of the model again, and release the experts' reader."""
        if self._tap is not None:
            self.backbone.trunk.norm = self._tap.norm
        if self.experts is not None:
            self.experts.close()

    # Following the model

    def run(self, tokens: mx.array, cache: list[Any]) -> tuple[mx.array, mx.array]:
        """The model over tokens (1, n): (hidden (1, n, hidden) for the head, logits (1, n, vocab))."""
        hidden = self.backbone.hidden(tokens, cache)
        logits = self.backbone.logits(hidden)
        return (self._tap.take() if self._tap else hidden), logits

    def forward(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Logits of the model over tokens (1, n); the head follows at once (prefill)."""
        hidden, logits = self.run(tokens, cache)
        self.observe(tokens, hidden)
        self.catch_up()
        return logits

    def observe(self, tokens: mx.array, hidden: mx.array) -> None:
        """The model has seen tokens (1, n) with hidden states (1, n, hidden); nothing is computed yet."""
        skip = 1 if self.primed or self.last is None else 0
        before = hidden[:, :-1]
        if not skip:
            before = mx.concatenate([self.last, before], axis=1)
        self.fed += self.primed
        self.primed = False
        if tokens.shape[1] > skip:
            self.late.append((tokens[:, skip:], before))
        self.last = hidden[:, -1:]

    def catch_up(self) -> None:
        """Feed the head what was kept aside."""
        if self.late:
            self._feed()

    def _feed(self) -> mx.array:
        """Everything kept aside through the head; its output for the last token, (1, 1, hidden)."""
        tokens = mx.concatenate([t for t, _ in self.late], axis=1)
        before = mx.concatenate([h for _, h in self.late], axis=1)
        self.late = []
        for at in range(0, tokens.shape[1], self.FEED):
            part = tokens[:, at : at + self.FEED]
            embedded = self.backbone.embed(part)
            out = self.module(embedded, before[:, at : at + self.FEED], self.cache)
            self.fed += part.shape[1]
        return out[:, -1:]

    def arrays(self) -> list[mx.array]:
        """What must be evaluated so that no graph hangs on the head's state."""
        self.catch_up()
        kept = [] if self.last is None else [self.last]
        return kept if self.cache.empty() else [*kept, self.cache.keys, self.cache.values]

    # Drafting

    @property
    def ready(self) -> bool:
        """Whether there is a hidden state to draft from."""
        return self.last is not None

    def first(self, token: mx.array) -> tuple[mx.array, mx.array]:
        """Draft from the certain next token (1,): (logits (1, vocab), hidden (1, 1, hidden) for `more`)."""
        self.late.append((token[None], self.last))
        out = self._feed()
        self.fed -= 1
        self.primed = True
        return self.backbone.logits(out)[:, -1, :], out

    def more(self, token: mx.array, hidden: mx.array) -> tuple[mx.array, mx.array]:
        """Draft on from a drafted token (1,) and the hidden state that the draft before it returned."""
        out = self.module(self.backbone.embed(token[None]), hidden, self.cache)
        return self.backbone.logits(out)[:, -1, :], out

    def rewind(self) -> None:
        """Forget the drafts. What `first` was given stays: it is the next token that `observe` will see."""
        self.cache.trim(self.cache.offset - self.fed - self.primed)

    # State

    def mark(self) -> Mark:
        """The present place; valid until the head is fed."""
        return Mark(self.fed, self.primed, self.last, tuple(self.late))

    def back_to(self, mark: Mark) -> None:
        """Undo every `observe` since `mark`."""
        self.fed, self.primed, self.last, self.late = mark.fed, mark.primed, mark.last, list(mark.late)

    def state(self) -> dict[str, Any]:
        """What `restore` needs: {"mtp": the KV cache, "mtp_hidden": (1, 1, hidden)}, less what is empty.

        The cache object is the living one: copy it before the head goes on.
        """
        self.catch_up()
        self.primed = False
        self.rewind()
        found: dict[str, Any] = {} if self.last is None else {"mtp_hidden": self.last}
        return found if self.cache.empty() else {"mtp": self.cache, **found}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a `state` (the cache object is used, not copied); an empty one is the start.

        A head may start late: with {} in mid-conversation it drafts from what it sees from now on.
        """
        from mlx_lm.models.cache import KVCache

        self.cache = state.get("mtp") or KVCache()
        self.last: mx.array | None = state.get("mtp_hidden")
        self.late: list[tuple[mx.array, mx.array]] = []
        self.fed: int = self.cache.offset
        self.primed = False
