"""Settings: what does not fit is refused with the name of the setting, wherever it comes from."""

import pytest

from mlx_streaming.config import EngineConfig
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
