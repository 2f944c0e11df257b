"""Grammars of a turn: JSON of a schema, tool calls that cannot be malformed, free words in between.

llguidance (github.com/guidance-ai/llguidance) does the constrained parts. Free words need no grammar at all,
so there `mask()` is None and costs nothing; a guard (see `markers`) notices the markers that end them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .call_grammar import call_rules, json_rule, quoted
from .guide import Guide, Phase
from .markers import Marker, MarkerGuard
from .schema import Schema, enforceable
from .toolcalls import tool_family
from .vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Tools = Sequence[dict[str, Any]]


def tool_grammar(
    tokenizer: TokenizerWrapper, vocab_size: int, tools: Tools, parallel: bool = True
) -> Guide | None:
    """Free words in which every call names an offered tool and has arguments that fit its schema.

    `parallel` False: the turn ends after one call. None for families without a grammar (calls are then
    parsed, repaired and validated afterwards).
    """
    rules = call_rules(tool_family(tokenizer) or "", tools)
    if rules is None:
        return None
    vocab = vocabulary(tokenizer, vocab_size)
    end = _marker_rule(vocab, tokenizer.tool_call_end, tokenizer.tool_call_end_tokens)
    lark = f'start: NL? body NL? {end}\nNL: "\\n"\n{rules}\n'
    guard = MarkerGuard(vocab, [Marker("call", tokenizer.tool_call_start, tokenizer.tool_call_start_tokens)])
    return Guide(vocab, guard, call=lark, parallel=parallel)


def schema_grammar(
    tokenizer: TokenizerWrapper,
    vocab_size: int,
    schema: Schema,
    *,
    tools: Tools = (),
    thinking: bool = False,
    in_reasoning: bool = False,
) -> Guide:
    """A turn that ends in JSON of `schema`, or, with `tools`, in calls.

    `thinking`: the model may think first; `in_reasoning`: the prompt ends inside an open think tag.

    Raises:
        GrammarError: the schema has something that cannot be enforced; the message names it.
    """
    vocab = vocabulary(tokenizer, vocab_size)
    family = tool_family(tokenizer) or ""
    rules = call_rules(family, tools)
    lines = ['NL: "\\n"', f"json: {json_rule(enforceable(schema))}"]
    choices, call, doors = ["json"], None, []
    if rules is not None:
        start = _marker_rule(vocab, tokenizer.tool_call_start, tokenizer.tool_call_start_tokens)
        end = _marker_rule(vocab, tokenizer.tool_call_end, tokenizer.tool_call_end_tokens)
        shared = [f"call: {start} NL? body NL? {end}", rules]
        call = "\n".join([f"start: NL? body NL? {end} (NL? call)*", 'NL: "\\n"', *shared])
        choices.append("call (NL? call)*")
        lines += shared
    elif tools and tokenizer.has_tool_calling:
        doors.append((tokenizer.tool_call_start_tokens, Phase.LOOSE))
    can_think = tokenizer.has_thinking and (thinking or in_reasoning)
    if can_think and not in_reasoning:
        doors.append((tokenizer.think_start_tokens, Phase.THINKING))
    answer, after_thinking = (
        "\n".join([f"start: {lead}({' | '.join(choices)})", *lines]) for lead in ("", "NL? NL? ")
    )
    guard = _thinking_guard(tokenizer, vocab, bool(tools)) if can_think else MarkerGuard(vocab, [])
    return Guide(
        vocab,
        guard,
        call=call,
        answer=answer,
        after_thinking=after_thinking if can_think else None,
        doors=doors,
        in_reasoning=in_reasoning and can_think,
    )


def _thinking_guard(tokenizer: TokenizerWrapper, vocab: Vocabulary, tools: bool) -> MarkerGuard:
    markers = [Marker("think_end", tokenizer.think_end, tokenizer.think_end_tokens)]
    if tokenizer.has_tool_calling:
        markers.append(
            Marker("call", tokenizer.tool_call_start, tokenizer.tool_call_start_tokens, forbidden=not tools)
        )
    return MarkerGuard(vocab, markers, refused=vocab.eos)


def _marker_rule(vocab: Vocabulary, text: str, ids: Sequence[int]) -> str:
    """A marker in Lark: an added token by its name, anything else as text."""
    if len(ids) == 1 and vocab.bytes.is_added(ids[0]):
        return f"<[{ids[0]}]>"
    return quoted(text)
