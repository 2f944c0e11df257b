"""Chat messages to prompt text, by the checkpoint's own chat template and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, PromptError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Message = dict[str, Any]
_ENGINE_KEYS = ("token_ids",)


@dataclass(frozen=True)
class Rendered:
    """Prompt text; `starts_in_reasoning` when it ends inside an open think tag."""

    text: str
    starts_in_reasoning: bool = False


class ChatTemplate:
    """The chat template of one tokenizer.

    Raises:
        CheckpointError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: TokenizerWrapper):
        if not tokenizer.has_chat_template:
            raise CheckpointError(
                "This checkpoint has no chat template; add the chat_template.jinja of the original model."
            )
        self.tokenizer = tokenizer

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The prompt text. `thinking` None leaves the template's own default.

        Raises:
            PromptError: the template refuses these messages.
        """
        settings: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        try:
            text = self.tokenizer.apply_chat_template(
                prepared(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **settings,
            )
        except Exception as error:  # jinja errors, and whatever raise_exception() in a template says
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise PromptError(
                f"The checkpoint's chat template refuses this conversation ({reason}); "
                "start a new one or leave out what it names."
            ) from error
        think = self.tokenizer.think_start
        return Rendered(text, bool(think) and text.rstrip().endswith(think))

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text (the template writes its own special tokens, none are added)."""
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def digest(self) -> str:
        """sha256 over the template text: part of what must match before a snapshot may be used."""
        text = self.tokenizer.chat_template
        return hashlib.sha256(repr(text).encode()).hexdigest()


def prepared(messages: Sequence[Message]) -> list[Message]:
    """Messages as templates expect them: string content, no engine-only keys, at least one user message."""
    clean = []
    for message in messages:
        message = {key: value for key, value in message.items() if key not in _ENGINE_KEYS}
        if message.get("content") is None:
            message["content"] = ""
        clean.append(message)
    if all(message["role"] == "system" for message in clean):
        clean.append({"role": "user", "content": ""})
    return clean
