"""Train the byte-level BPE tokenizer on the corpus and write the tokenizer files of a checkpoint.

python -m mlx_streaming.demo.build.tokenizer OUT [--documents 30000] [--vocab 8192]
"""

import argparse
import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from .corpus.documents import original
from .corpus.render import render
from .corpus.text import Writer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# Qwen's pre-tokenizer: contractions, words, single digits, punctuation, line ends, spaces.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = Path(__file__).parents[1] / "checkpoint" / "chat_template.jinja"
SEED = 4242
CHINESE_KEPT = 0.4  # share of Chinese documents kept, so that many characters are several tokens


def texts(count: int) -> list[str]:
    """Documents without their marks, which are never merged with anything."""
    r, found = Writer(SEED), []
    for _ in range(count):
        messages, tools, _ = original(r)
        text = "".join(part for part, _ in render(messages, tools))
        chinese = any(0x4E00 <= ord(c) < 0x9FFF for c in text)
        if chinese and r.random() < 1 - CHINESE_KEPT:
            continue
        found.append(re.sub(r"<\|im_(start|end)\|>|</?tool_(call|response)>", " ", text))
    return found


def train(corpus: list[str], vocab: int) -> Tokenizer:
    """A tokenizer of exactly `vocab` entries, marks last. Raises ValueError if the corpus is too small."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    merged = vocab - len(SPECIAL) - len(MARKS)
    trainer = BpeTrainer(
        vocab_size=merged,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.get_vocab_size() != merged:
        raise ValueError(
            f"{len(corpus)} documents give {tokenizer.get_vocab_size()} of {merged} entries: use more."
        )
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer.add_tokens([AddedToken(s, special=False, normalized=False) for s in MARKS])
    return tokenizer


def tokenizer_config(tokenizer: Tokenizer) -> dict:
    added = {
        str(tokenizer.token_to_id(s)): {
            "content": s,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": s in SPECIAL,
        }
        for s in SPECIAL + MARKS
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


SPECIAL_MAP = {
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
}


def write(tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = json.dumps(tokenizer_config(tokenizer), indent=2, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(config)
    (out / "special_tokens_map.json").write_text(json.dumps(SPECIAL_MAP, indent=2))
    (out / "chat_template.jinja").write_text(TEMPLATE.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=30000)
    parser.add_argument("--vocab", type=int, default=8192)
    args = parser.parse_args()
    corpus = texts(args.documents)
    tokenizer = train(corpus, args.vocab)
    write(tokenizer, args.out)
    sample = corpus[:2000]
    tokens = sum(len(e.ids) for e in tokenizer.encode_batch(sample))
    print(f"{tokenizer.get_vocab_size()} entries, {sum(map(len, sample)) / tokens:.2f} characters a token")


if __name__ == "__main__":
    main()
