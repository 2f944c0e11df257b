"""One turn: from a request's messages to events and a result, with the state filed for the next turn."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from .chat.constraint import fits_schema, make_constraint
from .chat.detokenizer import StreamingText
from .chat.guide import TokenMask
from .chat.history import Encoded, encode
from .chat.parser import OutputParser
from .engine import Engine
from .errors import Cancelled, CapacityError
from .generation.plain import Plain
from .generation.prefill import prefill
from .generation.sampling import Sampler, resolve
from .generation.speculative import Speculator
from .request import Event, GenResult, Reasoning, Request, Status, Text, ToolCall


@dataclass
class _Clock:
    """Seconds since the turn began at its marks."""

    start: float = field(default_factory=time.perf_counter)
    prefilled: float = 0.0
    first: float = 0.0
    end: float = 0.0

    def now(self) -> float:
        return time.perf_counter() - self.start


class Turn:
    """Runs one request on an engine; make a new one for every turn.

    The state contract: whatever ends the turn, the snapshot filed describes exactly the tokens produced.
    """

    def __init__(self, engine: Engine, request: Request):
        self.engine = engine
        self.request = request
        self.result = GenResult()
        self._clock = _Clock()
        self._expert_mark = engine.memory.stats.snapshot()
        self._keep = request.cache != "off"
        self._mtp = request.mtp if request.mtp != "auto" else engine.config.mtp
        self._head = None if self._mtp == "off" else engine.head
        self._head_experts = self._head.experts if self._head is not None else None
        self._head_mark = self._head_experts.stats.snapshot() if self._head_experts is not None else None
        self._fed = 0  # tokens of the prompt that went through the model
        self._generated: list[int] = []

    def run(self) -> Generator[Event, None, GenResult]:
        """Yield the answer as it comes and return the result.

        Raises:
            PromptError: the conversation cannot be rendered or an option makes no sense.
            GrammarError: the schema or a tool cannot be enforced.
            CapacityError: the conversation does not fit the context.
            CheckpointError: an expert could not be read.
        """
        try:
            return (yield from self._run())
        finally:
            self.engine.tokens_run += self._fed + len(self._generated)

    def _run(self) -> Generator[Event, None, GenResult]:
        engine, request = self.engine, self.request
        sampling = resolve(request.sampling, engine.spec.generation_config)
        sampler = Sampler(sampling, engine.spec.vocab_size)
        encoded = encode(engine.template, request.messages, request.tools, request.thinking)
        limit = self._limit(len(encoded.ids))
        constraint = make_constraint(engine.tokenizer, engine.spec.vocab_size, request, encoded)
        self.result.seed = sampling.seed
        self.result.prompt_tokens = len(encoded.ids)
        mx.reset_peak_memory()
        try:
            cache, logits = self._prefill(encoded)
        except Cancelled:
            return self._finish("interrupted")
        producer = self._producer(cache, sampler, encoded.ids, constraint, limit)
        try:
            finish = yield from self._answer(producer, logits, encoded, limit)
        except GeneratorExit:  # the reader went away: what was produced is kept all the same
            self._file(encoded, cache, "interrupted")
            raise
        self.result.mtp = producer.report()
        self._file(encoded, cache, finish)
        return self._finish(finish)

    def _limit(self, prompt_tokens: int) -> int:
        """The most tokens that this answer may have."""
        context = self.engine.context
        if prompt_tokens >= context:
            longest = self.engine.spec.max_context
            more = f", or make room with -o context {longest}" if context < longest else ""
            raise CapacityError(
                f"The conversation has {prompt_tokens} tokens but the context holds {context};"
                f" start a new conversation or shorten the prompt{more}."
            )
        return min(self.request.max_tokens or context, context - prompt_tokens)

    def _prefill(self, encoded: Encoded):
        """The model's cache and the logits after the prompt, from the longest snapshot that fits."""
        engine, request = self.engine, self.request
        session, config = engine.session, engine.config
        ids = encoded.ids
        start = session.begin(ids, disk=request.cache == "on") if self._keep else session.fresh()
        cached = start.length
        head = self._head
        if head is not None:
            head.restore(start.extra)
        if start.hot and config.warm:
            engine.memory.warm(start.hot)
        self.result.cached_tokens = cached
        self.result.restore_s = session.restore_s
        every = config.snapshot_every
        boundaries = _boundaries(cached, encoded.head, len(ids), every) if self._keep else []

        def file(position: int) -> None:
            kind = {encoded.head: "head", len(ids) - 1: "prompt"}.get(position, "partial")
            session.snapshot(ids[:position], start.cache, kind, extra=self._extra(), hot=engine.memory.hot())

        def progress(done: int, total: int) -> None:
            self._fed = done
            request.on_status(Status("prefill", done, total))

        try:
            logits = prefill(
                engine.model,
                ids[cached:],
                start.cache,
                chunk=engine.plan.chunk,
                start=cached,
                on_progress=progress,
                should_stop=request.should_stop,
                boundaries=boundaries,
                on_boundary=file,
                mtp=head,
            )
        except Cancelled:
            if self._keep and self._fed:  # asked again, the prompt goes on from here
                file(cached + self._fed)
            raise
        self._clock.prefilled = self._clock.now()
        return start.cache, logits

    def _producer(
        self,
        cache: list[Any],
        sampler: Sampler,
        history: list[int],
        constraint: TokenMask | None,
        limit: int,
    ) -> Speculator | Plain:
        """What decodes this turn: draft and verify where there is a head that helps, else token by token."""
        engine, mode = self.engine, self._mtp
        if self._head is None:
            reason = "off" if mode == "off" else "the checkpoint has no MTP head"
            return Plain(engine.model, cache, sampler, history, constraint, reason)
        return Speculator(
            self._head,
            cache,
            sampler,
            engine.depth(mode),
            history=history,
            grammar=constraint,
            limit=limit,
            ends=engine.eos_ids,
        )

    def _answer(
        self, producer: Speculator | Plain, logits: mx.array, encoded: Encoded, limit: int
    ) -> Generator[Event, None, str]:
        """Yield events until the answer ends; returns the finish reason."""
        request = self.request
        text = StreamingText(self.engine.tokenizer)
        parser = OutputParser(
            self.engine.tokenizer,
            request.tools,
            encoded.starts_in_reasoning,
            request.stop,
            json_answer=request.schema is not None,
        )
        finish = ""
        for run in producer.decode(logits):
            for place, token in enumerate(run):
                try:
                    finish = yield from self._take(token, text, parser, limit)
                except GeneratorExit:  # the reader saw no more of this run
                    producer.truncate(place + 1)
                    raise
                if finish:
                    producer.truncate(place + 1)
                    break
            if finish:
                break
            if request.should_stop():
                finish = "interrupted"
                break
        self._clock.end = self._clock.now()
        yield from self._note(parser.push(text.flush()))
        yield from self._note(parser.finish(truncated=finish != "stop"))
        if finish == "stop" and self.result.tool_calls:
            finish = "tool_calls"
        return finish

    def _take(
        self, token: int, text: StreamingText, parser: OutputParser, limit: int
    ) -> Generator[Event, None, str]:
        """One token of the answer; returns the finish reason if it was the last one, else ""."""
        self._generated.append(token)
        self._clock.first = self._clock.first or self._clock.now()
        if token in self.engine.eos_ids:
            return "stop"
        thinking = parser.in_reasoning
        yield from self._note(parser.push(text.push(token)))
        self.result.reasoning_tokens += thinking
        if parser.stopped:
            return "stop_string"
        return "length" if len(self._generated) >= limit else ""

    def _note(self, events: list[Event]) -> Iterator[Event]:
        for event in events:
            match event:
                case Text(text):
                    self.result.text += text
                case Reasoning(text):
                    self.result.reasoning += text
                case ToolCall():
                    self.result.tool_calls.append(event)
            yield event

    def _file(self, encoded: Encoded, cache, finish: str) -> None:
        """Snapshot the end of the turn; where a stop string cut the visible text the tokens are of no use."""
        if finish == "stop_string":
            return
        answer = self._generated
        self.result.token_ids = answer[:-1] if answer and answer[-1] in self.engine.eos_ids else list(answer)
        if self._keep:
            session, hot = self.engine.session, self.engine.memory.hot()
            session.snapshot([*encoded.ids, *answer], cache, "turn", extra=self._extra(), hot=hot)

    def _extra(self) -> dict[str, Any]:
        return {} if self._head is None else self._head.state()

    def _finish(self, finish: str) -> GenResult:
        result, clock = self.result, self._clock
        result.finish_reason = finish
        result.completion_tokens = len(self._generated)
        result.prompt_tps = self._fed / clock.prefilled if clock.prefilled else 0.0
        spent = clock.end - clock.first
        result.generation_tps = (len(self._generated) - 1) / spent if spent > 0 else 0.0
        result.ttft_s = clock.first
        result.snapshot_bytes = self.engine.session.snapshot_bytes
        result.peak_memory = mx.get_peak_memory()
        result.experts = self.engine.memory.stats.since(self._expert_mark)
        if self._head_experts is not None and self._head_experts.streamed:
            result.mtp["experts"] = self._head_experts.stats.since(self._head_mark)
        result.state = dict(self.engine.session.stats)
        if self.request.schema is not None and not result.tool_calls:
            result.schema_valid = finish == "stop" and fits_schema(result.text, self.request.schema)
        return result


def _boundaries(start: int, head: int, end: int, every: int) -> list[int]:
    """Positions to snapshot at: after the head, every `every` tokens, and before the prompt's last token.

    The last token is left out so that the same prompt asked again still has a token to run.
    """
    marks = {head, end - 1, *range(start + every, end - 1, every)}
    return sorted(m for m in marks if m > start)
