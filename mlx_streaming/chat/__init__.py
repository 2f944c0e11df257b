"""Template rendering, token-faithful history, tool calls, reasoning, grammar, detokenising."""
