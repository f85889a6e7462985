"""Lightning's own Trainer: GGT and whiten train, log and resume in it, on one process and on two."""

import pytest
import torch
from loops import (
    BATCH,
    EPOCHS,
    MEMBERS,
    STEPS,
    adamw,
    assert_ranks_agree_and_resume_bitwise,
    assert_training_is_that_of_the_plain_loop,
    batches,
    flat,
    like_torchrun,
    loss_of,
    small_model,
)
from ranks import on_ranks

lightning = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.loggers.logger import DummyLogger  # noqa: E402

from torch_ggt.integrations import figures  # noqa: E402
from torch_ggt.integrations.lightning import LogWindow  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the package are not ours


class Module(lightning.LightningModule):
    def __init__(self, member, **options):
        super().__init__()
        self.model, self.member, self.made_with = small_model(), member, options

    def training_step(self, batch, _):
        return loss_of(self.model, *batch)

    def configure_optimizers(self):
        return self.member(self.model.parameters(), **self.made_with)


def trainer_of(folder, **options):
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False)
    options = {"logger": False, "enable_checkpointing": False, "max_epochs": EPOCHS, **quiet, **options}
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **options)


def run_and_resume(member, folder, batch_size=BATCH, trainer_options=None, **options):
    """The parameters after a run that saves at the end of each epoch, and after a run from the first of those files."""
    found = []
    for resume in (None, f"{folder}/epoch=0.ckpt"):
        module = Module(member, **options)
        saving = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
        more = trainer_options or {}
        callbacks = [saving, *more.get("callbacks", [])]
        trainer = trainer_of(folder, **{**more, "enable_checkpointing": True, "callbacks": callbacks})
        trainer.fit(module, batches(batch_size), ckpt_path=resume)
        assert trainer.global_step == STEPS
        found.append(flat(module.model))
    return found


@pytest.mark.parametrize("name", MEMBERS)
def test_training_and_resuming(name, tmp_path):
    whole, resumed = run_and_resume(MEMBERS[name], tmp_path)
    assert_training_is_that_of_the_plain_loop(whole, name)
    assert torch.equal(whole, resumed)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_callback_logs_what_figures_says(name, tmp_path):
    logger = CSVLogger(tmp_path)
    options = {"logger": logger, "callbacks": [LogWindow(every=4)], "accumulate_grad_batches": 2}
    trainer = trainer_of(tmp_path, **options)
    trainer.fit(Module(MEMBERS[name]), batches())
    logger.save()
    header, *lines = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    row = dict(zip(header.split(","), lines[-1].split(","), strict=True))
    assert len(lines) == 1  # step 4 of 4, though there were 8 batches
    expected = figures(trainer.optimizers[0])
    assert expected["rows"] == 3
    assert {k: float(v) for k, v in row.items() if k != "step"} == {f"ggt/{k}": v for k, v in expected.items()}
    assert figures(trainer.lightning_module.optimizers()) == expected  # through LightningOptimizer


class Two(Module):
    """Two optimizers, one without a window, in Lightning's manual optimization."""

    automatic_optimization = False

    def training_step(self, batch, _):
        optimizers = self.optimizers()
        loss = loss_of(self.model, *batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self):
        return [adamw(self.model[0].parameters()), self.member(self.model[2].parameters())]


class Noting(DummyLogger):
    def __init__(self):
        super().__init__()
        self.noted = []

    def log_metrics(self, metrics, step=None):
        self.noted.append((step, metrics))


def test_the_callback_passes_over_optimizers_without_a_window(tmp_path):
    logger = Noting()
    trainer = trainer_of(tmp_path, max_epochs=1, logger=logger, callbacks=[LogWindow(every=4)])
    trainer.fit(Two(MEMBERS["ggt"]), batches())
    assert [step for step, _ in logger.noted] == [4, 8]  # both optimizers count in Lightning's global_step
    assert all(metrics["ggt/rows"] in (2, 3) for _, metrics in logger.noted)


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="every must be an integer of at least 1, got every=0"):
        LogWindow(every=0)
    with pytest.raises(TypeError, match=r"AdamW has no window; return torch_ggt.GGT\(...\) or torch_ggt.whiten"):
        trainer_of(tmp_path, callbacks=[LogWindow()]).fit(Module(adamw), batches())


def ddp_runs(folder):
    like_torchrun()
    found = {}
    for name, member in MEMBERS.items():
        ddp = {"strategy": "ddp", "devices": 2, "callbacks": [LogWindow(every=2)]}
        whole, resumed = run_and_resume(member, f"{folder}/{name}", BATCH // 2, ddp, process_group="world")
        module = Module(member)
        trainer = trainer_of(folder, **ddp)
        trainer.fit(module, batches(BATCH // 2))
        assert trainer.world_size == 2
        found[name] = whole, resumed, flat(module.model)
    return found


def test_two_ranks_with_a_split_window(tmp_path):
    """Lightning calls consolidate_state_dict before it saves, so there is no glue."""
    assert_ranks_agree_and_resume_bitwise(on_ranks(2, ddp_runs, str(tmp_path)))
