"""tune: what it tries and keeps, with measurements made up."""

from dataclasses import replace

import pytest

from mlx_streaming import tune as tune_module
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.experts.plan import plan_checkpoint


@pytest.fixture
def measured(monkeypatch):
    """The configs that were measured; each is faster than the one before by a tenth."""
    configs = []

    def bench(path, config, options):
        configs.append(config)
        speed = 1.1 ** len(configs)
        return {"decode_tps": speed, "decode_spread": 0.0, "expert_hit_rate": 0.5, "peak_memory_bytes": 1}

    monkeypatch.setattr(tune_module, "bench", bench)
    return configs


def test_a_setting_may_win_after_another_value_of_it_did(demo_path, measured):
    trials, chosen = tune_module.tune(demo_path, EngineConfig(slots=24))
    assert len(trials) == len(measured) > 5 and all(trial.kept for trial in trials)
    assert chosen["readers"] == 16 and chosen["lookahead"] == 2
    assert measured[-1] == replace(EngineConfig(slots=24), **chosen)


@pytest.mark.parametrize("given", [{"slots": 24}, {"memory": 285_000_000}], ids=str)
def test_no_candidate_takes_more_slots_than_there_are(demo_path, measured, given):
    spec = ModelSpec.read(demo_path)
    config = EngineConfig(context=2048, mtp="off", **given)
    allowed = sum(plan_checkpoint(spec, config).slots.values())
    tune_module.tune(demo_path, config)
    totals = [sum(plan_checkpoint(spec, tried).slots.values()) for tried in measured]
    assert len(totals) > 5 and max(totals) <= allowed
