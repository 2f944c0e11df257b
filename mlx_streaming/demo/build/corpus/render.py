"""Conversations as the text that chat_template.jinja makes of them."""

from .text import compact

TOOL_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOL_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def render(msgs, tools=None):
    """Same text as chat_template.jinja. Returns [(text, trainable)]."""
    out = []
    i = 0
    if tools:
        s = "<|im_start|>system\n"
        if msgs[0]["role"] == "system":
            s += msgs[0]["content"] + "\n\n"
            i = 1
        s += TOOL_HEAD + "".join("\n" + compact(t) for t in tools) + TOOL_TAIL + "<|im_end|>\n"
        out.append((s, 0))
    elif msgs[0]["role"] == "system":
        out.append(("<|im_start|>system\n" + msgs[0]["content"] + "<|im_end|>\n", 0))
        i = 1
    n = len(msgs)
    for k in range(i, n):
        m = msgs[k]
        r = m["role"]
        if r == "tool":
            s = ""
            if k == 0 or msgs[k - 1]["role"] != "tool":
                s = "<|im_start|>user"
            s += "\n<tool_response>\n" + m["content"] + "\n</tool_response>"
            if k == n - 1 or msgs[k + 1]["role"] != "tool":
                s += "<|im_end|>\n"
            out.append((s, 0))
        elif r == "assistant":
            out.append(("<|im_start|>assistant\n", 0))
            c = m.get("content") or ""
            s = c
            for q, tc in enumerate(m.get("tool_calls") or []):
                if q or c:
                    s += "\n"
                s += (
                    '<tool_call>\n{"name": "'
                    + tc["name"]
                    + '", "arguments": '
                    + compact(tc["arguments"])
                    + "}\n</tool_call>"
                )
            out.append((s + "<|im_end|>", 1))
            out.append(("\n", 0))
        else:
            out.append((f"<|im_start|>{r}\n{m['content']}<|im_end|>\n", 0))
    return out
