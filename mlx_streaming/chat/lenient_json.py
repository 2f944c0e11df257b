"""JSON as models write it when nothing constrains them, read where there is only one way to read it.

Accepted beyond JSON: single-quoted strings, unquoted keys, Python's True/False/None, trailing commas, raw
line breaks in strings, unknown escapes kept as written, closing brackets missing or too many at the very end,
several values in a row. Everything else raises ValueError.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = re.compile(r"[\s]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}


def parse_values(text: str, close: bool = True) -> list[Any]:
    """The JSON values in `text`, separated by white space, commas or semicolons; at least one.

    `close` allows brackets to be missing at the end.

    Raises:
        ValueError: the text is not JSON and cannot be read in exactly one way.
    """
    try:
        return [_clean(json.loads(text, strict=False, parse_constant=_no_constant))]
    except ValueError:
        pass
    reader = _Reader(text, close)
    values = []
    while reader.peek():
        values.append(_clean(reader.value()))
        while reader.peek() in (",", ";"):
            reader.at += 1
        if not text[reader.at :].strip("}] \n\r\t"):
            break
    if not values:
        raise ValueError("there is no JSON value")
    return values


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _clean(value: Any) -> Any:
    """The value with lone surrogates (from `\\ud800` escapes) replaced: no UTF-8 text can hold them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


class _Reader:
    def __init__(self, text: str, close: bool):
        self.text, self.close, self.at = text, close, 0

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        self.at = _SPACE.match(self.text, self.at).end()
        return self.text[self.at : self.at + 1]

    def value(self) -> Any:
        char = self.peek()
        if char == "{":
            return self._object()
        if char == "[":
            return self._array()
        if char in ('"', "'"):
            return self._string(char)
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return json.loads(number[0])
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _WORDS:
            self.at = word.end()
            return _WORDS[word[0]]
        raise self._error("a value")

    def _object(self) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while not self._closed("}"):
            key = self._key()
            if self.peek() != ":":
                raise self._error("':'")
            self.at += 1
            if key in found:
                raise ValueError(f"the key {key!r} occurs twice")
            found[key] = self.value()
            self._separator("}")
        return found

    def _array(self) -> list[Any]:
        self.at += 1
        found = []
        while not self._closed("]"):
            found.append(self.value())
            self._separator("]")
        return found

    def _closed(self, bracket: str) -> bool:
        char = self.peek()
        if char == bracket:
            self.at += 1
            return True
        if not char and self.close:
            return True
        if not char:
            raise ValueError("it is cut off")
        return False

    def _separator(self, bracket: str) -> None:
        char = self.peek()
        if char == ",":
            self.at += 1
        elif char and char != bracket:
            raise self._error(f"',' or '{bracket}'")

    def _key(self) -> str:
        char = self.peek()
        if char in ('"', "'"):
            return self._string(char)
        if word := _WORD.match(self.text, self.at):
            self.at = word.end()
            return word[0]
        raise self._error("a key")

    def _string(self, quote: str) -> str:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise ValueError("a string is not closed")
        body, self.at = self.text[self.at + 1 : end], end + 1
        return _unescaped(body)

    def _error(self, wanted: str) -> ValueError:
        found = self.text[self.at : self.at + 12] or "the end"
        return ValueError(f"expected {wanted} at character {self.at}, found {found!r}")


def _unescaped(body: str) -> str:
    codes = re.findall(r"\\(u[0-9a-fA-F]{4}|.)", body, re.DOTALL)
    unknown = [code for code in codes if len(code) == 1 and code not in _ESCAPES]
    if unknown and any(code not in unknown and code not in ("\\", '"', "'") for code in codes):
        raise ValueError(f"the escape \\{unknown[0]} stands beside real escapes")

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, match[0])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, body, flags=re.DOTALL)
