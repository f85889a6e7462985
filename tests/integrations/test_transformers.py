"""The Trainer of Hugging Face: GGT and whiten train, log and resume in it, on one process and on two."""

import pytest
import torch
from loops import (
    BATCH,
    BATCHES,
    EPOCHS,
    MEMBERS,
    STEPS,
    assert_ranks_agree_and_resume_bitwise,
    assert_training_is_that_of_the_plain_loop,
    data,
    flat,
    like_torchrun,
    small_model,
)
from ranks import on_ranks
from torch import nn

transformers = pytest.importorskip("transformers")
from torch_ggt import GGT  # noqa: E402
from torch_ggt.integrations import Whitened, figures  # noqa: E402
from torch_ggt.integrations.transformers import WindowCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the package are not ours

# What one writes instead of optim="adamw_torch": the optimizers of `loops.MEMBERS`, as class and options.
CLASSES = {
    "ggt": lambda **group: (GGT, {"lr": 1e-2, "window": 3, **group}),
    "whiten": lambda **group: (Whitened, {"kind": "AdamW", "lr": 1e-2, "whitening": {"window": 3, **group}}),
}


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = small_model()

    def forward(self, x=None, labels=None):
        out = self.model(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class InOrder(transformers.Trainer):
    """The Trainer, with the batches of the plain loop."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def arguments(folder, batch_size=BATCH, **options):
    return transformers.TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=batch_size,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **{"save_strategy": "no", "logging_steps": 2, **options},
    )


def trainer_of(args, optimizer, callbacks=(), **options):
    rows = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    return InOrder(
        WithLoss(),
        args,
        train_dataset=rows,
        eval_dataset=rows[:BATCH],
        optimizer_cls_and_kwargs=optimizer,
        callbacks=list(callbacks),
        **options,
    )


@pytest.mark.parametrize("name", MEMBERS)
def test_training_and_resuming(name, tmp_path):
    args = arguments(tmp_path, save_strategy="epoch")
    trainer = trainer_of(args, CLASSES[name]())
    trainer.train()
    whole = flat(trainer.model.model)
    assert_training_is_that_of_the_plain_loop(whole, name)
    trainer = trainer_of(args, CLASSES[name]())
    trainer.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-{BATCHES}")
    assert trainer.state.global_step == STEPS
    assert torch.equal(whole, flat(trainer.model.model))


@pytest.mark.parametrize("name", MEMBERS)
def test_the_callback_logs_what_figures_says(name, tmp_path):
    noted = []

    class Writer:
        def log(self, values, step):
            noted.append((step, values))

    trainer = trainer_of(arguments(tmp_path), CLASSES[name](), [WindowCallback(Writer(), every=4)])
    trainer.train()
    expected = {f"ggt/{key}": value for key, value in figures(trainer.optimizer).items()}
    assert expected["ggt/rows"] == 3
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6, 8]
    assert [entry["ggt/rows"] for entry in logged] == [2, 3, 3, 3]
    assert expected.items() <= logged[-1].items()
    assert [step for step, _ in noted] == [4, 8]
    assert noted[-1][1] == expected


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="every must be an integer of at least 1, got every=True"):
        WindowCallback(every=True)
    trainer = trainer_of(arguments(tmp_path), (torch.optim.AdamW, {}), [WindowCallback()])
    with pytest.raises(TypeError, match=r"AdamW has no window: use torch_ggt.GGT, or torch_ggt.whiten\(AdamW"):
        trainer.train()


def ddp_runs(folder):
    like_torchrun()
    found = {}
    for name in MEMBERS:

        def run(group, strategy, resume=None, name=name):
            saving = {"eval_strategy": "epoch", "metric_for_best_model": "loss"} if strategy == "best" else {}
            args = arguments(f"{folder}/{name}", BATCH // 2, save_strategy=strategy, **saving)
            trainer = trainer_of(args, CLASSES[name](**group), [WindowCallback()])
            trainer.train(resume_from_checkpoint=resume and f"{folder}/{name}/{resume}")
            assert trainer.args.world_size == 2
            return flat(trainer.model.model)

        split, checkpoint = {"process_group": "world"}, f"checkpoint-{BATCHES}"
        strategy = "epoch" if name == "ggt" else "best"  # two of the ways to save
        whole = run(split, strategy)
        found[name] = whole, run(split, strategy, checkpoint), run({}, "no")
    with pytest.raises(ValueError, match="save_on_each_node=True saves on several ranks"):
        trainer_of(arguments(folder, save_on_each_node=True), CLASSES["ggt"](**split), [WindowCallback()]).train()
    return found


def test_two_ranks_with_a_split_window(tmp_path):
    assert_ranks_agree_and_resume_bitwise(on_ranks(2, ddp_runs, str(tmp_path)))
