"""Calls that must not run: llm runs every call it is told of, so their tools answer with the reason."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import llm

from .transcript import Refusal

UNREADABLE = "unreadable_tool_call"


class CallRefused(Exception):
    """Its text goes to the model as the failed call's result."""


def refuse(prompt: llm.Prompt, name: str, call_id: str, reason: str) -> str:
    """Make the call `call_id` fail with `reason`, without running the tool; other calls of it run as before.

    Returns the name under which to tell llm of the call: its own, or a stand-in's where that is unusable.
    """
    for number, tool in enumerate(prompt.tools):
        if tool.name == name and getattr(tool, "implementation", None):
            prompt.tools[number] = replace(
                tool, implementation=_refusing(tool.implementation, call_id, reason)
            )
            return name
    stand_in = name or UNREADABLE

    def answer(llm_tool_call: llm.ToolCall) -> str:
        raise CallRefused(reason)

    prompt.tools.append(
        Refusal(name=stand_in, description="Not a tool: a call that could not be run", implementation=answer)
    )
    return stand_in


def _refusing(implementation: Callable[..., Any], call_id: str, reason: str) -> Callable[..., Any]:
    """`implementation`, except for the call `call_id`; async stays async, a method keeps its object."""
    takes_call = "llm_tool_call" in inspect.signature(implementation).parameters

    def arguments(call: llm.ToolCall, given: dict[str, Any]) -> dict[str, Any]:
        if call.tool_call_id == call_id:
            raise CallRefused(reason)
        return given | ({"llm_tool_call": call} if takes_call else {})

    if inspect.iscoroutinefunction(implementation):

        async def guarded(llm_tool_call, **given):
            return await implementation(**arguments(llm_tool_call, given))
    else:

        def guarded(llm_tool_call, **given):
            return implementation(**arguments(llm_tool_call, given))

    guarded = functools.update_wrapper(guarded, implementation)
    del guarded.__wrapped__  # llm looks at the signature, which must be ours
    if hasattr(implementation, "__self__"):
        guarded.__self__ = implementation.__self__
    return guarded
