"""What a request constrains: the token mask of its schema, tools and thinking budget, and the final check."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import PromptError
from ..request import Request
from .budget import ThinkingBudget
from .grammar import schema_grammar, tool_grammar
from .guide import TokenMask
from .history import Encoded
from .vocabulary import vocabulary

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def make_constraint(
    tokenizer: TokenizerWrapper, vocab_size: int, request: Request, encoded: Encoded
) -> TokenMask | None:
    """The mask for this turn, or None when nothing is constrained.

    A schema is always enforced; `request.grammar` switches only the grammar of tool calls.

    Raises:
        GrammarError: the schema cannot be enforced.
        PromptError: a thinking budget for a model that does not think.
    """
    constraint: TokenMask | None = None
    tools = request.tools if request.grammar else ()
    if request.schema is not None:
        constraint = schema_grammar(
            tokenizer,
            vocab_size,
            request.schema,
            tools=request.tools,
            thinking=request.thinking is not False,
            in_reasoning=encoded.starts_in_reasoning,
        )
    elif tools:
        constraint = tool_grammar(tokenizer, vocab_size, tools)
    if request.thinking_budget is None:
        return constraint
    if not tokenizer.has_thinking:
        raise PromptError("This model does not think, so it takes no thinking_budget; leave that option out.")
    return ThinkingBudget(
        vocabulary(tokenizer, vocab_size),
        constraint,
        think_start=tokenizer.think_start_tokens,
        think_end=tokenizer.think_end_tokens,
        budget=request.thinking_budget,
        in_reasoning=encoded.starts_in_reasoning,
    )


def fits_schema(text: str, schema: dict[str, Any]) -> bool:
    """Whether `text` is JSON that validates against `schema`."""
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError, jsonschema.SchemaError):
        return False
    return True
