"""whiten in the training loops of other packages: the optimizer sees the dense formula, and runs resume bitwise.

Each test needs its package and is skipped without it: pip install lightning accelerate transformers schedulefree
pytorch_optimizer.
"""

import copy
import io
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_whiten import Dense

from torch_ggt import whiten

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of those packages are not ours


def flat(tensors):
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def small_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 4, generator=generator), torch.randn(64, 2, generator=generator)


def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16)


def lightning_fit(model, optimizer, _):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return (self.model(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return optimizer

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", gradient_clip_val=0.5, accumulate_grad_batches=2, **quiet
    )
    trainer.fit(Module(), loader())


def accelerate_loop(model, optimizer, _):
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, loader(), scheduler)
    for _ in range(3):
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - y).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def trainer_train(model, optimizer, folder):
    transformers = pytest.importorskip("transformers")

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x=None, labels=None):
            out = self.model(x)
            return {"loss": (out - labels).square().mean(), "logits": out}

    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=8,
        per_device_train_batch_size=16,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
    )
    rows = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    transformers.Trainer(WithLoss(), arguments, train_dataset=rows, optimizers=(optimizer, None)).train()


@pytest.mark.parametrize("run", [lightning_fit, accelerate_loop, trainer_train])
def test_the_optimizer_sees_the_dense_formula(run, tmp_path, monkeypatch):
    """The first moment of AdamW with β₁ = 0 is the gradient that it saw."""
    model = small_model()
    optimizer = whiten(torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.0, 0.9)), window=4)
    raw, seen = [], []
    make_step = optimizer.whitening._step

    def note_raw_gradients(closure):
        raw.append(flat(p.grad for p in model.parameters()))
        return make_step(closure)

    monkeypatch.setattr(optimizer.whitening, "_step", note_raw_gradients)
    optimizer.register_step_post_hook(
        lambda o, args, kwargs: seen.append(flat(o.state[p]["exp_avg"] for p in model.parameters()))
    )
    run(model, optimizer, tmp_path)
    dense = Dense(4, keep_norm=False)
    for gradient, found in zip(raw, seen, strict=True):
        expected = dense(gradient)
        assert (found - expected).norm() < 2e-6 * expected.norm()
    assert len(seen) >= 6
    assert (seen[-1] - raw[-1]).norm() > 0.1 * raw[-1].norm()


@pytest.mark.parametrize(
    ("package", "name"),
    [("schedulefree", "AdamWScheduleFree"), ("pytorch_optimizer", "SOAP"), ("pytorch_optimizer", "Shampoo")],
)
def test_optimizers_of_other_packages_are_changed_and_resume_bitwise(package, name):
    kind = getattr(pytest.importorskip(package), name)

    def make(model):
        optimizer = whiten(kind(model.parameters(), lr=1e-2), window=4)
        if hasattr(optimizer, "train"):  # schedule-free optimizers have modes
            optimizer.train()
        return optimizer

    def train(model, optimizer, steps):
        x, y = data()
        for step in steps:
            part = slice(16 * (step % 4), 16 * (step % 4) + 16)
            optimizer.zero_grad()
            (model(x[part]) - y[part]).square().mean().backward()
            optimizer.step()

    model = small_model()
    optimizer = make(model)
    train(model, optimizer, range(8))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = copy.deepcopy(model)
    again = make(twin)
    again.load_state_dict(torch.load(file, weights_only=False))
    train(model, optimizer, range(8, 14))
    train(twin, again, range(8, 14))
    assert torch.equal(flat(model.parameters()), flat(twin.parameters()))
    alone = small_model()
    plain = kind(alone.parameters(), lr=1e-2)
    if hasattr(plain, "train"):
        plain.train()
    train(alone, plain, range(14))
    assert (flat(alone.parameters()) - flat(model.parameters())).norm() > 1e-4
