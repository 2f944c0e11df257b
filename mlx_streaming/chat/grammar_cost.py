"""What a mask costs per token at the vocabulary of a large model, measured without one."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from .grammar import schema_grammar, tool_grammar
from .guide import Guide
from .vocabulary import vocabulary

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

QWEN_VOCABULARY = 151_936
_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "year": {"type": "integer"}, "seen": {"type": "boolean"}},
    "required": ["title", "year", "seen"],
}
_JSON = '{"title": "The old man who went to the sea, and came back", "year": 1952, "seen": true}'

_WORDS = "Let me see what I can find about that, and then tell you: it is < 3 of them. " * 2


@dataclass(frozen=True)
class MaskCost:
    """Seconds. `prepare_s`: once per process; the others per token: making the mask, applying it to float32
    logits and taking the token, in free words, in a tool call, and in a schema's JSON (means; the worst)."""

    vocabulary: int
    prepare_s: float
    words_s: float
    call_s: float
    json_s: float
    worst_s: float


def mask_cost(tokenizer: TokenizerWrapper, size: int = QWEN_VOCABULARY, repeats: int = 3) -> MaskCost:
    """Measure with `tokenizer` widened to `size` tokens (made of pairs of its own)."""
    wide = widened(tokenizer, size)
    start = time.perf_counter()
    _ = vocabulary(wide, size).trie
    prepare = time.perf_counter() - start
    tools = [{"type": "function", "function": {"name": "file_film", "parameters": _SCHEMA}}]
    call = f'{wide.tool_call_start}\n{{"name": "file_film", "arguments": {_JSON}}}\n{wide.tool_call_end}'
    phases: dict[str, list[float]] = {"words": [], "call": [], "json": []}
    for _ in range(repeats):
        phases["words"] += _follow(wide, tool_grammar(wide, size, tools), _WORDS, size)
        phases["call"] += _follow(wide, tool_grammar(wide, size, tools), call, size)
        phases["json"] += _follow(wide, schema_grammar(wide, size, _SCHEMA), _JSON, size)
    means = {f"{phase}_s": statistics.fmean(times) for phase, times in phases.items()}
    worst = max(itertools.chain(*phases.values()))
    return MaskCost(vocabulary=size, prepare_s=prepare, worst_s=worst, **means)


def _follow(tokenizer: TokenizerWrapper, guide: Guide, text: str, size: int) -> list[float]:
    logits = mx.zeros((1, size))
    times = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        mx.eval(logits)
        start = time.perf_counter()
        mask = guide.mask()
        if mask is not None:
            mx.eval(mx.where(mask, logits, -mx.inf))
        guide.advance(token)
        times.append(time.perf_counter() - start)
    return times


def widened(tokenizer: TokenizerWrapper, size: int) -> TokenizerWrapper:
    """A tokenizer of `size` tokens that splits text as `tokenizer` does: the new tokens, pairs of its own
    ones, are in the vocabulary but no merge makes them."""
    import json

    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab: dict[str, int] = content["model"]["vocab"]
    pieces = sorted(vocab, key=lambda piece: (len(piece), piece))
    following = 1 + max([*vocab.values(), *(token["id"] for token in content["added_tokens"])])
    for first, second in itertools.product(pieces, pieces):
        if following >= size:
            break
        if first + second not in vocab:
            vocab[first + second] = following
            following += 1
    wide = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), eos_token=tokenizer.eos_token
    )
    return TokenizerWrapper(
        wide,
        BPEStreamingDetokenizer,
        chat_template=lambda *_, **__: "",
        tool_parser=tokenizer.tool_parser,
        tool_call_start=tokenizer.tool_call_start,
        tool_call_end=tokenizer.tool_call_end,
    )
