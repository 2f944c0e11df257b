"""Settings: what does not fit is refused with the name of the setting, wherever it comes from."""

import pytest

from mlx_streaming.config import EngineConfig, parse_size
from mlx_streaming.errors import EngineError


@pytest.mark.parametrize(
    "settings",
    [
        {"slots": 12.5},
        {"slots": True},
        {"memory": []},
        {"warm": 2},
        {"policy": 3},
        {"pin": "much"},
        {"snapshot_every": 0},
        {"resident_layers": -1},
        {"lookahead_width": 0},
        {"cache_quota": "-1"},
        {"usage": "maybe"},
        {"slot": 3},
    ],
    ids=str,
)
def test_a_setting_that_does_not_fit_is_named(settings):
    with pytest.raises(EngineError, match=next(iter(settings))):
        EngineConfig.from_env(settings)


def test_settings_then_environment_then_overrides(monkeypatch):
    monkeypatch.setenv("LLM_MLX_STREAMING_SLOTS", "7")
    monkeypatch.setenv("LLM_MLX_STREAMING_MEMORY", "1.5GiB")
    monkeypatch.setenv("LLM_MLX_STREAMING_WARM", "off")
    config = EngineConfig.from_env(
        {"slots": 5, "readers": 3, "pin": 1, "usage": False}, slots=9, context=None
    )
    assert (config.slots, config.readers, config.pin, config.usage) == (9, 3, 1, False)
    assert config.memory == 3 * 2**29 and config.warm is False
    monkeypatch.setenv("LLM_MLX_STREAMING_SNAPSHOT_EVERY", "0")
    with pytest.raises(EngineError, match="snapshot_every must be at least 1"):
        EngineConfig.from_env()


def test_a_misspelt_name_is_refused_with_the_nearest_one(monkeypatch):
    monkeypatch.setenv("LLM_MLX_STREAMING_SLOTTS", "")
    assert EngineConfig.from_env() == EngineConfig(), "an empty variable is as good as none"
    monkeypatch.setenv("LLM_MLX_STREAMING_SLOTTS", "7")
    words = "no setting LLM_MLX_STREAMING_SLOTTS; did you mean LLM_MLX_STREAMING_SLOTS"
    with pytest.raises(EngineError, match=words):
        EngineConfig.from_env()
    with pytest.raises(EngineError, match="no setting memry; did you mean memory"):
        EngineConfig().updated({"memry": "2GB"})
    with pytest.raises(EngineError, match="no setting xyz; use one of slots, memory, .*, backend"):
        EngineConfig().updated({"xyz": 1})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("1.5 gib", 3 * 2**29),
        ("0", 0),
        ("1000000", 10**6),
        (2**30, 2**30),
        ("20k", 20_000),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "meant"), [("20", "20GB"), (20, "20GB"), ("1.5", "1.5GB"), (" 8B ", "8GB"), ("16384", "16384MB")]
)
def test_a_size_whose_unit_was_forgotten_is_refused(text, meant):
    with pytest.raises(EngineError, match=f"bytes cannot be meant; write the unit, such as {meant}"):
        parse_size(text)
