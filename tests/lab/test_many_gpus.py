"""Steps on many GPUs: arithmetic by hand, a simulation that is the formula where nothing is noisy, and the command."""

import json
import math

import numpy as np
import pytest
import torch

from ggt_lab.cli.scale_command import ScaleCommand
from ggt_lab.planning.calibration import Calibration
from ggt_lab.planning.many_gpus import (
    MODELS,
    Network,
    Noise,
    all_reduce_s,
    columns_of_a_rank,
    largest,
    scale_step,
    simulate,
)
from ggt_lab.planning.many_gpus_table import affordable, scale_table

SIMPLE = Calibration("a GPU", 1e12, {"float32": 1.5, "bfloat16": 1.25}, [(10, 1e-5), (100, 1e-4)], 2e-5, 3e-4)
SILENT = Noise(spread=0.0, pauses=0.0)


def test_the_models_have_the_parameters_of_llama_2():
    counts = {name: sum(map(math.prod, shapes)) for name, shapes in MODELS.items()}
    assert counts == {"7B": 6_738_415_616, "70B": 68_976_648_192}


@pytest.mark.parametrize("shards", [1, 3, 4, 7])
def test_columns_are_those_that_chunks_have(shards):
    shapes = [(10, 7), (3,), (64, 64), (1, 5), (101,)]
    by_rank = []
    for rank in range(shards):
        parts = [torch.empty(shape).chunk(shards) for shape in shapes]
        mine = [part[rank].numel() if rank < len(part) else 0 for part in parts]
        by_rank.append(sum(-(-count // 64) * 64 for count in mine))
    assert columns_of_a_rank(shapes, shards) == max(by_rank)


def test_padding_of_the_large_models_is_small():
    for shapes in MODELS.values():
        d = sum(map(math.prod, shapes))
        assert d / 1024 <= columns_of_a_rank(shapes, 1024) < 1.02 * d / 1024


def test_an_all_reduce_by_hand():
    network = Network(node=4, near_s=1e-6, far_s=1e-5, near_bandwidth=1e9, far_bandwidth=1e8, launch_s=5e-6)
    assert all_reduce_s(10, 1, network) == 0
    assert all_reduce_s(10, 4, network) == pytest.approx(5e-6 + 4 * (1e-6 + 80e-9))
    assert all_reduce_s(10, 16, network) == pytest.approx(5e-6 + 4 * (1e-6 + 80e-9) + 4 * (1e-5 + 800e-9))


@pytest.mark.parametrize("gpus", [1, 2, 8, 64, 1024])
def test_without_noise_the_simulation_is_the_formula(gpus):
    steps = simulate(3e-3, 1e-3, 23, gpus, Network(), SILENT, steps=3)
    assert steps == pytest.approx(3 * [3e-3 + all_reduce_s(23, gpus, Network())])


@pytest.mark.parametrize("gpus", [3, 5, 12, 100])
def test_trees_that_are_not_full_take_no_longer(gpus):
    steps = simulate(3e-3, 1e-3, 23, gpus, Network(), SILENT, steps=3)
    full = 3e-3 + all_reduce_s(23, 2 ** math.ceil(math.log2(gpus)), Network())
    assert 3e-3 < steps.max() <= full + 1e-12


def test_one_late_rank_delays_all_by_as_much():
    late = Noise(spread=0.0, pause_s=1.0, pauses=2e-3)
    steps = simulate(3e-3, 1e-3, 23, 64, Network(), late, steps=500)
    quiet = 3e-3 + all_reduce_s(23, 64, Network())
    whole = np.round(steps - quiet)
    assert set(whole.tolist()) == {0.0, 1.0, 2.0}  # nobody, before the sums or after them, both
    # 64 ranks, two chances each: a step without any is (1 - 2e-3)^128
    assert np.mean(whole == 0) == pytest.approx((1 - 2e-3) ** 128, abs=0.06)


def test_more_ranks_wait_longer():
    medians = [float(np.median(simulate(3e-3, 1e-3, 23, n, Network(), Noise()))) for n in (8, 64, 1024)]
    waiting = [m - 3e-3 - all_reduce_s(23, n, Network()) for m, n in zip(medians, (8, 64, 1024), strict=True)]
    assert 0 < waiting[0] < waiting[1] < waiting[2] < 0.1 * 3e-3


def test_a_step_by_hand():
    options = {"window": 10, "calibration": SIMPLE, "noise": SILENT}
    found = scale_step("7B", 64, **options)
    columns = columns_of_a_rank(MODELS["7B"], 64)
    assert found.plan.window_bytes == 10 * columns * 2
    assert found.plan.passes_s == pytest.approx(1.25 * 2 * 10 * columns * 2 / 1e12)
    assert found.gather_s == 0
    assert found.step_s == pytest.approx(found.simulated_s[0])
    assert found.step_s == pytest.approx(
        found.plan.passes_s + 34 * columns / 1e12 + 1e-5 + 2e-5 + all_reduce_s(13, 64, Network())
    )
    hybrid = scale_step("7B", 128, replicas=2, **options)
    assert hybrid.plan.window_bytes == found.plan.window_bytes
    assert hybrid.reduce_s == all_reduce_s(13, 128, Network())
    whole = scale_step("7B", 64, replicated=True, **options)
    assert whole.gather_s == pytest.approx(1.5e-5 + 4 * 6_738_415_616 * 63 / 64 / 50e9)
    assert whole.plan.model_bytes == 8 * 6_738_415_616


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("8B", 64), {}, "model must be one of 7B, 70B, got '8B'"),
        (("7B", 64), {"replicas": 3}, "64 GPUs cannot be 3 replicas"),
        (("7B", 0), {}, "0 GPUs cannot be 1 replicas"),
        (("7B", 64), {"window": 0}, "window must be from 1 on"),
        (("7B", 64), {"dtype": "int3"}, "dtype must be float32 or bfloat16"),
    ],
)
def test_bad_input(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        scale_step(*arguments, **{"window": 2, "calibration": SIMPLE, **options})


def test_the_largest():
    assert [largest(lambda r, n=n: r <= n, 50) for n in (0, 1, 17, 50, 90)] == [0, 1, 17, 50, 50]


def test_the_windows_of_the_table_are_affordable_and_one_more_is_not():
    rows = scale_table(20, "bfloat16")
    row = next(row for row in rows if (row["model"], row["gpus"], row["mode"]) == ("70B", 256, "FSDP"))
    again = scale_table(row["largest_by_memory"], "bfloat16")
    twin = next(other for other in again if (other["model"], other["gpus"], other["mode"]) == ("70B", 256, "FSDP"))
    assert twin["total_bytes"] <= 0.95 * 70e9 < twin["total_bytes"] + twin["window_bytes"] / twin["window"]
    assert row["largest_by_time"] > row["largest_by_memory"]


def test_a_gather_that_takes_longer_than_allowed_leaves_no_window():
    found = scale_step("7B", 64, window=20, calibration=SIMPLE, replicated=True)
    assert affordable(found, "bfloat16")["time"] == 0


def test_the_command_writes_table_and_figure(tmp_path, capsys):
    ScaleCommand(out=tmp_path).run()
    assert "70B" in capsys.readouterr().out
    rows = json.loads((tmp_path / "scale.json").read_text())
    assert {(row["model"], row["gpus"]) for row in rows} == {
        (m, n) for m in ("7B", "70B") for n in (64, 128, 256, 512, 1024)
    }
    for row in rows:
        parts = ("passes_s", "traffic_s", "solve_s", "launch_s", "reduce_s", "gather_s", "waiting_s")
        assert row["step_s"] == pytest.approx(sum(row[part] for part in parts))
    table = (tmp_path / "scale.md").read_text()
    assert table.count("\n| 7") == len(rows)
    assert "Assumed: Network(" in table
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"scale.{suffix}").stat().st_size > 5_000
