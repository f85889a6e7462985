"""Accelerate: a prepared GGT or whitened optimizer trains, is recorded, and resumes, on one process and on two."""

import pytest
import torch
from loops import (
    BATCH,
    EPOCHS,
    MEMBERS,
    assert_ranks_agree_and_resume_bitwise,
    assert_training_is_that_of_the_plain_loop,
    batches,
    flat,
    like_torchrun,
    loss_of,
    small_model,
)
from ranks import on_ranks

from torch_ggt import SpectrumRecorder
from torch_ggt.integrations import consolidate, figures, window_owner

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the package are not ours


class Run:
    """What a script with Accelerate has: everything prepared."""

    def __init__(self, member, batch_size=BATCH, **options):
        self.accelerator = accelerate.Accelerator(cpu=True)
        model = small_model()
        prepared = self.accelerator.prepare(model, member(model.parameters(), **options), batches(batch_size))
        self.model, self.optimizer, self.batches = prepared

    def epoch(self):
        for x, y in self.batches:
            self.optimizer.zero_grad()
            self.accelerator.backward(loss_of(self.model, x, y))
            self.optimizer.step()


@pytest.fixture(autouse=True)
def _no_accelerator_of_the_test_before():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def run_and_resume(member, folder, batch_size=BATCH, **options):
    """The parameters after a run that saves after the first epoch, and after a run from there."""
    run = Run(member, batch_size, **options)
    for epoch in range(EPOCHS):
        run.epoch()
        if epoch == 0:
            consolidate(run.optimizer)  # the one line of glue, and only where the window is split
            run.accelerator.save_state(folder)
    again = Run(member, batch_size, **options)
    again.accelerator.load_state(folder)
    again.epoch()
    return flat(run.model), flat(again.model)


@pytest.mark.parametrize("name", MEMBERS)
def test_training_and_resuming(name, tmp_path):
    whole, resumed = run_and_resume(MEMBERS[name], tmp_path)
    assert_training_is_that_of_the_plain_loop(whole, name)
    assert torch.equal(whole, resumed)


def test_the_recorder_reads_the_window_of_a_prepared_optimizer():
    run = Run(MEMBERS["ggt"])
    with SpectrumRecorder(run.optimizer) as recorder:
        run.epoch()
    assert [record.step for record in recorder.records] == [1, 2, 3, 4]
    assert torch.equal(recorder.records[-1].singular_values, run.optimizer.optimizer.spectrum()[0])
    assert "no window of its own" in recorder.cost


def test_the_recorder_keeps_a_window_for_a_prepared_optimizer_that_has_none():
    run = Run(lambda params: torch.optim.SGD(params, lr=0.1))
    with SpectrumRecorder(run.optimizer, window=3) as recorder:
        run.epoch()
    assert len(recorder.records) == 4
    assert "a window of its own: 3 × 37" in recorder.cost


@pytest.mark.parametrize("name", MEMBERS)
def test_skipped_steps_are_seen_through_the_wrapper(name):
    run = Run(MEMBERS[name])
    run.epoch()
    before = figures(run.optimizer)
    assert before["skipped"] == 0
    next(run.model.parameters()).grad[0, 0] = float("nan")
    run.optimizer.step()
    assert figures(run.optimizer) == {**before, "skipped": 1.0}
    assert window_owner(run.optimizer).skipped == 1


def ddp_runs(folder):
    like_torchrun()
    found = {}
    for name, member in MEMBERS.items():
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        whole, resumed = run_and_resume(member, f"{folder}/{name}", BATCH // 2, process_group="world")
        run = Run(member, BATCH // 2)
        assert run.accelerator.num_processes == 2
        for _ in range(EPOCHS):
            run.epoch()
        found[name] = whole, resumed, flat(run.model)
    unsaved = Run(MEMBERS["ggt"], BATCH // 2, process_group="world")
    unsaved.epoch()
    unsaved.accelerator.save_state(f"{folder}/forgotten")
    unsaved.accelerator.wait_for_everyone()
    with pytest.raises((RuntimeError, ValueError), match="part of rank 0 of 2"):  # ValueError on the other rank
        unsaved.accelerator.load_state(f"{folder}/forgotten")
    return found


def test_two_ranks_with_a_split_window(tmp_path):
    assert_ranks_agree_and_resume_bitwise(on_ranks(2, ddp_runs, str(tmp_path)))
