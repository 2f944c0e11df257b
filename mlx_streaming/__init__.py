"""mlx_streaming: run Mixture-of-Experts models bigger than memory on MLX.

The engine behind the llm-mlx-streaming plugin. It knows nothing of llm: `backend.MLXBackend` takes a
`request.Request` and yields events. Importing this package imports nothing heavy.
"""

__version__ = "0.1.0"
