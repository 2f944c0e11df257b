"""The model's words to events: visible text, reasoning, tool calls. Markers never reach the outside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..request import Reasoning, Text, ToolCall
from .toolcalls import read_calls

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

ParserEvent = Text | Reasoning | ToolCall
_TAIL = re.compile(r"\s+\Z")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class OutputParser:
    """Splits one answer, pushed in pieces of any size; the events do not depend on the pieces.

    White space next to a marker is part of the marker. `stop` strings are looked for in visible text only;
    after one, `stopped` is True and everything further is ignored. `json_answer`: the visible text is JSON of
    a schema, so from its first word on nothing is a marker any more.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        tools: Sequence[dict[str, Any]] = (),
        start_in_reasoning: bool = False,
        stop: tuple[str, ...] = (),
        json_answer: bool = False,
    ):
        from mlx_lm.generate import TextStateMachine

        self._tokenizer = tokenizer
        self._tools = tools
        self._machine = TextStateMachine(_transitions(tokenizer))
        start = "reasoning" if start_in_reasoning else tokenizer.response_initial_state or "normal"
        self._state = self._machine.make_state(start)
        self._stop = StopStrings(stop)
        self._json = json_answer
        self._inside = start
        self._text = _Visible()
        self._thought = _Visible(fresh=start_in_reasoning)
        self._call = ""
        self._ids: set[str] = set()
        self.stopped = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the next words are reasoning."""
        return self._inside == "reasoning"

    def push(self, text: str) -> list[ParserEvent]:
        """Events that `text` completes or continues."""
        events: list[ParserEvent] = []
        plain = ""
        for char in text:
            self._state, (first, *after) = self._machine.split(self._state, char)
            plain += first[1]
            if self._json and self._inside == "normal" and first[1].strip():
                self._json, self._state = False, self._machine.make_state("json")
            if after:
                events += self._take(plain)
                plain = ""
                events += self._leave(after[0][0])
        return _merged(events + self._take(plain))

    def finish(self, truncated: bool = False) -> list[ParserEvent]:
        """What is still held back. `truncated`: generation was cut off rather than ended by the model."""
        if self.stopped:
            return []
        self._state, rest, _ = self._machine.flush(self._state)
        events = self._take(rest)
        if self._inside == "tool":
            events += self._finish_call(truncated)
        else:
            events += self._emit(self._text, self._stop.flush(), Text) + _event(Text, self._text.flush())
        events += _event(Reasoning, self._thought.flush() if self._inside == "reasoning" else "")
        return _merged(events)

    def _take(self, piece: str) -> list[ParserEvent]:
        if self.stopped or not piece:
            return []
        if self._inside == "tool":
            self._call += piece
            return []
        if self._inside == "reasoning":
            return self._emit(self._thought, piece, Reasoning)
        if self._inside != "normal":  # a family's header between two kinds of words
            return []
        piece, self.stopped = self._stop.push(self._text.leading(piece))
        events = self._emit(self._text, piece, Text)
        return events + _event(Text, self._text.flush()) if self.stopped else events

    def _leave(self, state: str) -> list[ParserEvent]:
        """A marker was read: the words go on in `state`."""
        left, events = self._inside, []
        if self.stopped or left == state == "normal":  # a stray closing marker
            return []
        if left == "tool":
            if _inside_json_string(self._call):  # the marker is a word of an argument
                self._call += self._tokenizer.tool_call_end
                self._state = self._machine.make_state("tool")
                return []
            events += self._calls(self._call, False)
        elif left != "reasoning":
            events += self._emit(self._text, self._stop.flush(), Text)
        self._call = ""
        self._inside = state
        self._text.restart()
        self._thought.restart()
        return events

    def _finish_call(self, truncated: bool) -> list[ParserEvent]:
        ends_itself = not self._tokenizer.tool_call_end  # some families close a call with the turn
        if not self._call.strip() and not truncated:
            return []
        return self._calls(self._call, truncated and not ends_itself)

    def _calls(self, raw: str, truncated: bool) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        for call in read_calls(self._tokenizer, raw, self._tools, truncated):
            if call.id in self._ids:
                call = replace(call, id=f"{call.id}_{len(self._ids)}")
            self._ids.add(call.id)
            events.append(call)
        return events

    @staticmethod
    def _emit(stream: _Visible, piece: str, kind: type[Text] | type[Reasoning]) -> list[ParserEvent]:
        return _event(kind, stream.push(piece))


def _event(kind: type[Text] | type[Reasoning], text: str) -> list[ParserEvent]:
    return [kind(text)] if text else []


def _merged(events: list[ParserEvent]) -> list[ParserEvent]:
    """Neighbouring pieces of the same kind as one event."""
    merged: list[ParserEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, (Text, Reasoning)) and type(last) is type(event):
            merged[-1] = type(event)(last.text + event.text)
        else:
            merged.append(event)
    return merged


def _transitions(tokenizer: TokenizerWrapper) -> dict[str, list[tuple[str, str]]]:
    """Marker text to new state, per state (mlx-lm's machine, generate.make_text_state_machine, without stop
    strings). Closing markers without an opening one are swallowed."""
    normal: list[tuple[str, str]] = [(marker, "normal") for marker in tokenizer.structural_markers]
    reasoning: list[tuple[str, str]] = []
    moves = {"normal": normal, "reasoning": reasoning, "tool": []}
    if tokenizer.has_thinking:
        normal += [(tokenizer.think_start, "reasoning"), (tokenizer.think_end, "normal")]
        reasoning += [(tokenizer.think_end, "normal"), (tokenizer.think_start, "reasoning")]
    formats = {state: list(edges) for state, edges in tokenizer.response_transitions.items()}
    opens_elsewhere = any(target == "tool" for edges in formats.values() for _, target in edges)
    if tokenizer.has_tool_calling:
        if not opens_elsewhere:
            normal.append((tokenizer.tool_call_start, "tool"))
        reasoning.append((tokenizer.tool_call_start, "tool"))
        if tokenizer.tool_call_end:
            moves["tool"].append((tokenizer.tool_call_end, "normal"))
            normal.append((tokenizer.tool_call_end, "normal"))
    for state, edges in formats.items():
        moves.setdefault(state, []).extend(edges)
    return moves


def _inside_json_string(raw: str) -> bool:
    """Whether JSON text breaks off inside a string (only asked of calls that are JSON objects)."""
    text = raw.lstrip()
    return text.startswith(("{", "[")) and '"' in _STRING.sub("", text)


class _Visible:
    """One kind of words without the white space that belongs to markers: leading (after a marker) dropped,
    trailing held back until words follow."""

    def __init__(self, fresh: bool = False):
        self._fresh = fresh
        self._held = ""

    def leading(self, piece: str) -> str:
        """`piece` without the line breaks that follow a marker."""
        if self._fresh:
            piece = piece.lstrip()
            self._fresh = not piece
        return piece

    def push(self, piece: str) -> str:
        text = self._held + self.leading(piece)
        tail = _TAIL.search(text)
        self._held = tail[0] if tail else ""
        return text[: len(text) - len(self._held)]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def restart(self) -> None:
        """A marker was read: what is held belongs to it, and so does white space that follows."""
        self._fresh, self._held = True, ""


class StopStrings:
    """Finds the first of several strings in text that comes in pieces; holds back what may be part of one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that is certainly before any stop string, and whether one was found (the rest is dropped).

        Of overlapping stop strings the one that ends first counts, so the pieces make no difference.
        """
        text = self._held + piece
        hits = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self._held = ""
            return text[: min(hits)[1]], True
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        keep = next(
            (n for n in range(min(longest, len(text)), 0, -1) if self._may_begin(text[-n:])),
            0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _may_begin(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)
