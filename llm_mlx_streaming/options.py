"""Model options: what `-o name value` takes, with checks and the text that `llm models --options` shows."""

from __future__ import annotations

import json
from typing import Any, Literal

import llm
from pydantic import Field, field_validator


class Options(llm.Options):
    """Options of one prompt; unset ones follow the checkpoint's generation_config.json and its settings."""

    max_tokens: int | None = Field(
        default=None, ge=1, description="Longest answer in tokens (default: what the context allows)"
    )
    temperature: float | None = Field(
        default=None, ge=0, le=10, description="Randomness; 0 always takes the likeliest token"
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Sample from the likeliest tokens that make up this probability"
    )
    top_k: int | None = Field(
        default=None, ge=0, description="Sample from this many likeliest tokens; 0 for all"
    )
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="Drop tokens less likely than this share of the likeliest"
    )
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1, description="Same seed, same answer")
    stop: list[str] | str | None = Field(
        default=None,
        description='Text that ends the answer: one string, or a JSON list such as ["END", "\\n\\n"]',
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=10, description="Above 1 makes recently used tokens less likely"
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Subtracted once from the score of every recently used token"
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Subtracted from a token's score for each recent use"
    )
    thinking: Literal["on", "off"] | None = Field(
        default=None,
        description="on or off: reason before answering, where the chat template has a switch for it",
    )
    thinking_budget: int | None = Field(
        default=None, ge=0, description="Most tokens to reason with before the answer must begin"
    )
    grammar: Literal["on", "off"] | None = Field(
        default=None,
        description="on or off: keep tool calls and schemas valid while they are written (default: on)",
    )
    mtp: Literal["off", "auto", "1", "2", "3"] | None = Field(
        default=None,
        description="off, auto, 1, 2 or 3: tokens guessed ahead by the multi-token-prediction head",
    )
    cache: Literal["on", "memory", "off"] | None = Field(
        default=None,
        description="on, memory or off: keep the conversation's state on disk, in this process, or not",
    )
    slots: int | None = Field(
        default=None, ge=1, description="Experts kept in memory for each layer (default: planned from memory)"
    )
    memory: str | int | None = Field(
        default=None, description="Memory the process may use, such as 24GB (default: planned)"
    )
    context: int | None = Field(
        default=None, ge=1, description="Longest conversation in tokens to make room for (default: planned)"
    )
    quiet: bool | None = Field(default=None, description="1: no progress and no notes on stderr")

    @field_validator("stop", mode="before")
    @classmethod
    def _stop(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                raise ValueError(f"{value} is not a JSON list of strings") from None
        strings = [value] if isinstance(value, str) else value
        if isinstance(strings, (list, tuple)) and not all(isinstance(s, str) and s for s in strings):
            raise ValueError("stop takes strings that are not empty")
        return strings

    @field_validator("thinking", "grammar", "cache", mode="before")
    @classmethod
    def _on_off(cls, value: Any) -> Any:
        words = {"true": "on", "1": "on", "yes": "on", "false": "off", "0": "off", "no": "off"}
        text = str(value).lower()
        return value if value is None else words.get(text, text)

    @field_validator("mtp", mode="before")
    @classmethod
    def _mtp(cls, value: Any) -> Any:
        return (
            value
            if value is None
            else {"0": "off", "false": "off"}.get(str(value).lower(), str(value).lower())
        )

    @field_validator("memory")
    @classmethod
    def _memory(cls, value: Any) -> Any:
        from mlx_streaming.config import parse_size
        from mlx_streaming.errors import EngineError

        try:
            if value is not None and parse_size(value) < 1:
                raise ValueError("memory must be more than nothing")
        except EngineError as error:
            raise ValueError(str(error)) from None
        return value
