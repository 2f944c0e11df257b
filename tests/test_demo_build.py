"""The scripts that made the demo checkpoint: generator, template, export (training needs torch: not here)."""

import json
import re

import mlx.core as mx
import numpy as np
import pytest

from mlx_streaming.demo.build import export
from mlx_streaming.demo.build.corpus import words
from mlx_streaming.demo.build.corpus.documents import MIXES
from mlx_streaming.demo.build.corpus.render import render
from mlx_streaming.demo.build.corpus.text import Writer
from mlx_streaming.demo.build.corpus.wordnet import headwords, other_words, proper_names
from mlx_streaming.demo.build.evaluation.task import call_text, calls

NOUNS = """
apple bottle candle door engine feather garden hammer island jacket kettle ladder mirror needle orchard
pencil quilt ribbon saddle table umbrella violin window yard anchor basket carpet drawer""".split()
VERBS = "carry throw build paint clean follow gather repair visit".split()
ADJECTIVES = "bright cold deep early gentle heavy narrow quiet rough simple".split()
PARTS = {"noun": NOUNS, "verb": VERBS, "adjective": ADJECTIVES}
LISTS = {
    "headwords": [[w, part, f"gloss of the word {w}", None] for part, ws in PARTS.items() for w in ws],
    "others": [f"{a}{b}" for a in ("mor", "tel", "gran") for b in ("dle", "bit", "fern", "wick", "olo")],
    "names": ["Zanzibar", "Toulouse", "Mozart", "Lima", "Kepler"],
}


@pytest.fixture(autouse=True)
def few_words():
    """The generator's words without WordNet."""
    words.use(LISTS)


def texts(mix, seed, count):
    writer = Writer(seed, MIXES[mix].openness)
    return [MIXES[mix].draw(writer) for _ in range(count)]


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_a_seed_gives_the_same_documents_and_another_seed_others(mix):
    first, again, other = texts(mix, 3, 200), texts(mix, 3, 200), texts(mix, 4, 200)
    assert first == again
    same = sum(a == b for a, b in zip(first, other, strict=True))
    assert same < 20


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_render_says_what_the_chat_template_says(mix, demo_path):
    from mlx_streaming.checkpoint.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(demo_path)
    compared = with_tools = with_calls = 0
    for messages, tools, _ in texts(mix, 11, 300):
        ours = "".join(text for text, _ in render(messages, tools))
        theirs = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        assert ours == theirs
        compared += 1
        with_tools += bool(tools)
        with_calls += any(m.get("tool_calls") for m in messages)
    assert compared == 300 and with_tools > 40 and with_calls > 30


def test_only_what_the_assistant_says_is_trained():
    trained = 0
    for messages, tools, _ in texts("newcomer", 5, 200):
        said = ["".join(text for text, flag in render(messages, tools) if flag)]
        contents = [
            m["content"] + call_text(m.get("tool_calls") or []) for m in messages if m["role"] == "assistant"
        ]
        assert said == ["".join(c + "<|im_end|>" for c in contents)]
        trained += len(contents)
    assert trained > 200


def test_calls_are_read_back_as_they_were_written():
    made = [{"name": "add", "arguments": {"a": 1, "b": "zwei"}}, {"name": "now", "arguments": {}}]
    assert calls(call_text(made)) == made
    assert calls("<tool_call>\n{oops}\n</tool_call>") is None
    assert calls("no call") == []


def test_newcomer_documents_call_the_tool_that_is_offered():
    called = 0
    for messages, tools, kind in texts("newcomer-only", 21, 400):
        offered = {t["function"]["name"]: t["function"]["parameters"] for t in tools or []}
        for message in messages:
            for call in message.get("tool_calls") or []:
                required = offered[call["name"]].get("required", [])
                assert set(required) <= set(call["arguments"]) <= set(offered[call["name"]]["properties"])
                called += 1
        if kind == "sum_document":
            assert any(m.get("tool_calls") for m in messages)
    assert called > 100


def test_unknown_words_are_never_taught_ones():
    from mlx_streaming.demo.build.corpus.newcomer_chats import unknown_word

    writer, known = Writer(1, 1), {w for w, *_ in LISTS["headwords"]}
    for _ in range(300):
        word = re.search(r"know (?:the word|what) (\S+?)(?: means)?\.$", unknown_word(writer)[0][1])[1]
        assert word not in known


def write_wordnet(directory):
    synsets = {
        "noun": [
            '00000001 03 n 01 river 0 000 | a large natural stream of water; "the river is wide"',
            "00000002 03 n 01 Danube 0 000 | a river of Europe",
            "00000003 03 n 01 ewer 0 000 | an open vessel with a handle and a spout",
        ],
        "verb": ["00000004 30 v 01 walk 0 000 | use one's feet to advance"],
        "adj": ["00000005 00 a 01 wide 0 000 | having great extent from one side to the other"],
        "adv": ["00000006 02 r 01 soon 0 000 | in the near future"],
    }
    lemmas = {"noun": ["river", "danube", "ewer"], "verb": ["walk"], "adj": ["wide"], "adv": ["soon"]}
    for part, lines in synsets.items():
        (directory / f"data.{part}").write_text("  1 licence\n" + "\n".join(lines) + "\n")
        entries = [
            f"{lemma} n 1 0 1 1 {line.split()[0]}" for lemma, line in zip(lemmas[part], lines, strict=True)
        ]
        (directory / f"index.{part}").write_text("  1 licence\n" + "\n".join(entries) + "\n")
    counts = ["river%1:17:00:: 1 9", "walk%2:38:00:: 1 30", "wide%3:00:00:: 1 4", "soon%4:02:00:: 1 2"]
    (directory / "cntlist.rev").write_text("\n".join(counts) + "\n")


def test_wordnet_files_give_headwords_other_words_and_names(tmp_path):
    write_wordnet(tmp_path)
    found = headwords(tmp_path)
    assert [w for w, *_ in found] == ["walk", "river", "wide", "soon"]  # by count
    assert found[1] == ("river", "noun", "a large natural stream of water", "the river is wide")
    assert other_words(tmp_path, {w for w, *_ in found}) == ["danube", "ewer"]
    assert proper_names(tmp_path) == ["Danube"]


TINY = {
    **export.CONFIG,
    "hidden_size": 64,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 4,
    "layer_types": export.CONFIG["layer_types"][:4],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


def tiny_weights():
    """Random weights of TINY in the names of model.py, MTP head included."""
    rng = np.random.default_rng(0)
    shapes = {"embed": (8192, 64), "lm_head": (8192, 64), "norm.weight": (64,)}
    mlp = {
        "mlp.gate.weight": (4, 64),
        "mlp.shared_expert_gate.weight": (1, 64),
        "mlp.gate_up": (4, 128, 64),
        "mlp.down": (4, 64, 64),
        **{f"mlp.shared_expert.{p}_proj.weight": (64, 64) for p in ("gate", "up", "down")},
        "input_layernorm.weight": (64,),
        "post_attention_layernorm.weight": (64,),
    }
    full = {
        "self_attn.q_proj.weight": (256, 64),
        "self_attn.k_proj.weight": (64, 64),
        "self_attn.v_proj.weight": (64, 64),
        "self_attn.o_proj.weight": (64, 128),
        "self_attn.q_norm.weight": (64,),
        "self_attn.k_norm.weight": (64,),
    }
    linear = {
        "linear_attn.in_proj_qkvz.weight": (384, 64),
        "linear_attn.in_proj_ba.weight": (4, 64),
        "linear_attn.conv1d.weight": (256, 1, 4),
        "linear_attn.A_log": (2,),
        "linear_attn.dt_bias": (2,),
        "linear_attn.norm.weight": (64,),
        "linear_attn.out_proj.weight": (64, 128),
    }
    for layer in range(4):
        parts = {**mlp, **(full if layer == 3 else linear)}
        shapes.update({f"layers.{layer}.{name}": shape for name, shape in parts.items()})
    shapes.update({f"mtp.layers.0.{name}": shape for name, shape in {**mlp, **full}.items()})
    shapes["mtp.fc.weight"] = (64, 128)
    return {
        name: mx.array(rng.standard_normal(shape).astype(np.float32) * 0.1).astype(mx.bfloat16)
        for name, shape in shapes.items()
    }


def test_an_exported_model_loads_in_mlx_lm_with_the_weights_it_was_given(tmp_path, demo_path):
    from mlx_lm import load

    weights = tiny_weights()
    export.export(weights, tmp_path, demo_path, TINY)
    model, tokenizer = load(str(tmp_path))
    logits = model(mx.array([tokenizer.encode("Once upon a time")]))
    assert logits.shape[-1] == 8192 and bool(mx.all(mx.isfinite(logits)))

    experts = model.model.layers[1].mlp.switch_mlp
    for projection, expected in (
        (experts.gate_proj, weights["layers.1.mlp.gate_up"][:, :64]),
        (experts.up_proj, weights["layers.1.mlp.gate_up"][:, 64:]),
        (experts.down_proj, weights["layers.1.mlp.down"]),
    ):
        back = mx.dequantize(projection.weight, projection.scales, projection.biases, 64, 4)
        step = projection.scales.astype(mx.float32).abs().max().item()
        assert mx.abs(back - expected.astype(mx.float32)).max().item() <= step
        assert projection.scales.dtype == mx.float32
    router = model.model.layers[0].mlp.gate
    assert router.bits == 8

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = {p.name for p in tmp_path.glob("model-*.safetensors")}
    assert set(index["weight_map"].values()) == shards
    head = mx.load(str(tmp_path / "mtp-raw.safetensors"))
    assert head["mtp.layers.0.mlp.experts.3.down_proj.weight"].shape == (64, 64)
    assert all(w.dtype == mx.bfloat16 and name.startswith("mtp.") for name, w in head.items())


def test_exporting_again_leaves_no_shard_of_before(tmp_path, demo_path):
    (tmp_path / "model-00009-of-00009.safetensors").write_bytes(b"old")
    export.export(tiny_weights(), tmp_path, demo_path, TINY)
    assert not (tmp_path / "model-00009-of-00009.safetensors").exists()
