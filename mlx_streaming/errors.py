"""Errors a user can act on: each message is one sentence that ends with the next step."""


class EngineError(Exception):
    """Base of everything the engine raises on purpose; `str(error)` is fit to show to a user."""


class CheckpointError(EngineError):
    """A checkpoint, packed file or tokenizer is missing, damaged, or of a kind that cannot be streamed."""


class CapacityError(EngineError):
    """What was asked for does not fit in memory or in the model's context."""


class PromptError(EngineError):
    """A request cannot be turned into a prompt (empty, too long, contradictory options)."""


class GrammarError(EngineError):
    """A JSON schema or tool definition cannot be enforced; the message names the keyword."""


class Cancelled(EngineError):
    """Generation was stopped from outside between two forward passes."""
