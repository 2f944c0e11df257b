"""Tokenizers of several families for the chat tests: the demo vocabulary with hand-made chat templates."""

from __future__ import annotations

import shutil
from pathlib import Path

from mlx_streaming.checkpoint.tokenizer import load_tokenizer
from mlx_streaming.demo import checkpoint_path

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Write something down",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
                    "urgent": {"type": "boolean"},
                    "level": {"enum": ["low", "high"]},
                    "due": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
                },
                "required": ["text"],
            },
        },
    },
]

# Qwen3's conventions: the reasoning of turns before the last user query is dropped, later reasoning is kept.
QWEN3 = r"""{%- if tools %}{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
{%- if not reasoning and '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}
{{- '<|im_start|>assistant\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
{%- set tool_call = call.function %}
{{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- (tool_call.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

# The same, but every answer starts inside a think tag.
_HYBRID = QWEN3[QWEN3.index("{%- if enable_thinking is") : QWEN3.rindex("{%- endif %}")]
QWEN3_THINKING = QWEN3.replace(_HYBRID, r"{{- '<think>\n' }}")

QWEN3_CODER = r"""{%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- if tools %}{{- '<|im_start|>system\n' }}
{%- for tool in tools %}{{- '<function>' + tool.function.name + '</function>\n' }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{- '<|im_start|>assistant\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\n' + (value | tojson if value is not string else value) + '\n</parameter>\n' }}
{%- endfor %}{{- '</function>\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- elif message.role == 'user' %}{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def tokenizer_with(directory: Path, template: str | None = None, **config):
    """The demo's tokenizer, loaded from `directory` with another chat template (None: its own)."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(checkpoint_path() / name, directory / name)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    if config:
        import json

        file = directory / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return load_tokenizer(directory)


def ids_of(tokenizer, *pieces: str) -> list[int]:
    """Ids of text tokenised piece by piece: not what tokenising it as a whole would give."""
    return [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]


def call_message(name: str, arguments: dict, **more) -> dict:
    call = {"type": "function", "id": "call_1", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]} | more
