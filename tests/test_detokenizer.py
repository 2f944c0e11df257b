"""Streaming text: whole characters only, nothing lost, whatever the tokens cut."""

from __future__ import annotations

import functools
import itertools
import json
import random

import pytest
from helpers_chat import tokenizer_with
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mlx_streaming.chat.detokenizer import StreamingText, TokenBytes
from mlx_streaming.checkpoint.tokenizer import load_tokenizer

TEXTS = [
    "你好，世界",
    "👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽",
    "e\u0301 a\u0308 o\u0302\u0301",
    " leading space",
    "tab\tand\nlines\r\n\n",
    "\x00 control \x7f",
    "\ufffd kept",
    "<think>x</think><tool_call>{}</tool_call>",
    "𝄞 and 𐍈",
]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """The demo's tokenizer, byte level."""
    return tokenizer_with(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    """A small tokenizer in SentencePiece style, with byte fallback and a stripped first space."""
    directory = tmp_path_factory.mktemp("spm")
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefghijklmnop",
        "▁a",
        "▁an",
        "好",
    ]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages[0].content }}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(directory)


def streamed(tokenizer, ids):
    text = StreamingText(tokenizer)
    return [*(text.push(token) for token in ids), text.flush()]


@functools.lru_cache
def single_bytes(tokenizer) -> dict[bytes, int]:
    """The token of each single byte."""
    table = TokenBytes(tokenizer)
    return {table[token]: token for token in range(len(table)) if len(table[token]) == 1}


def byte_ids(tokenizer, data: str | bytes) -> list[int]:
    """The text spelled one byte per token: every character of more than one byte is split."""
    data = data.encode() if isinstance(data, str) else data
    return [single_bytes(tokenizer)[bytes([byte])] for byte in data]


@pytest.mark.parametrize("text", TEXTS)
def test_every_way_to_cut_bytes_into_tokens(byte_level, text):
    pieces = streamed(byte_level, byte_ids(byte_level, text))
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)
    whole = byte_level.encode(text, add_special_tokens=False)
    assert "".join(streamed(byte_level, whole)) == byte_level.decode(whole)


def test_every_split_of_a_character_between_two_tokenisations(byte_level):
    """Ordinary tokens up to each byte position, single bytes around it."""
    compared = 0
    for text in TEXTS:
        data = text.encode()
        for at in range(len(data) + 1):
            head, tail = data[:at].decode("utf-8", "ignore"), data[at:]
            rest = data[len(head.encode()) : at]
            ids = byte_level.encode(head, add_special_tokens=False)
            if byte_level.decode(ids) != head:
                continue  # the tokenizer normalises this text (NFC)
            pieces = streamed(byte_level, ids + byte_ids(byte_level, rest + tail))
            assert "".join(pieces) == text
            compared += 1
    assert compared > 100


def test_random_tokens_agree_with_decoding_at_once(byte_level):
    rng = random.Random(7)
    for _ in range(300):
        ids = [rng.randrange(8192) for _ in range(rng.randrange(1, 12))]
        pieces = streamed(byte_level, ids)
        text = "".join(pieces)
        assert text == byte_level.decode(ids)
        text.encode("utf-8")  # no lone surrogate


def test_bytes_that_are_no_utf8_and_an_unfinished_end(byte_level):
    surrogate = byte_ids(byte_level, "a") + [byte_ids(byte_level, "\u07ff")[0]]
    assert "".join(streamed(byte_level, surrogate)) == "a\ufffd"
    lone = b"x\xed\xa0\x80y"  # what U+D800 would be in UTF-8
    text = "".join(streamed(byte_level, byte_ids(byte_level, lone)))
    assert text.startswith("x\ufffd") and text.endswith("y") and text.encode("utf-8")


def test_nothing_is_held_back_longer_than_a_character(byte_level):
    pieces = streamed(byte_level, byte_level.encode("Hello world, this is text.", add_special_tokens=False))
    assert all(pieces[:-1]) and pieces[-1] == ""


def test_sentencepiece_style(sentencepiece):
    assert TokenBytes(sentencepiece).known and not TokenBytes(sentencepiece).byte_level
    compared = 0
    for text in ("abc an", "好你好 a", "👍 é"):
        ids = sentencepiece.encode(text, add_special_tokens=False)
        assert "".join(streamed(sentencepiece, ids)) == sentencepiece.decode(ids) == text
        compared += len(ids)
    for ids in itertools.product(range(257, 270), repeat=2):
        assert "".join(streamed(sentencepiece, ids)) == sentencepiece.decode(list(ids))
        compared += 1
    assert compared > 150


def test_ids_beyond_the_tokenizer_are_silent(byte_level):
    assert streamed(byte_level, [9000, -1]) == ["", "", ""]
