"""LightningCLI and Hydra make GGT and whitened optimizers from files of strings and numbers."""

import pytest
import torch
from loops import BATCH, adamw, batches, flat, loss_of, plain_loop, relative_difference, small_model

from torch_ggt import GGT, whiten

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the packages are not ours

FILES = {
    "ggt": """
        {0}: torch_ggt.GGT
        {1}
          lr: 1e-2
          weight_decay: 0.0
          window: 3
          window_dtype: bfloat16
          betas: [0.8, 1.0]
    """,
    "whiten": """
        {0}: torch_ggt.integrations.Whitened
        {1}
          kind: torch.optim.AdamW
          whitening: {{window: 3, window_dtype: bfloat16}}
          options: {{lr: 1e-2, weight_decay: 0.0}}
    """,
}
EXPECTED = {
    "ggt": lambda params: GGT(params, lr=1e-2, weight_decay=0.0, window=3, window_dtype="bfloat16", betas=(0.8, 1.0)),
    "whiten": lambda params: whiten(adamw(params), window=3, window_dtype=torch.bfloat16),
}


def assert_is_the_loop_of(found, name):
    assert torch.equal(found, plain_loop(EXPECTED[name]))
    assert relative_difference(found, plain_loop(adamw)) > 1e-3


# ---- LightningCLI --------------------------------------------------------------------------------------------------


def run_cli(folder, text, in_model):
    pytest.importorskip("jsonargparse")
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.cli import LightningCLI, OptimizerCallable

    class Automatic(lightning.LightningModule):
        """LightningCLI writes configure_optimizers itself."""

        def __init__(self):
            super().__init__()
            self.model = small_model()

        def training_step(self, batch, _):
            return loss_of(self.model, *batch)

        def train_dataloader(self):
            return batches(BATCH)

    class ByCallable(Automatic):
        def __init__(self, optimizer: OptimizerCallable = torch.optim.SGD):
            super().__init__()
            self.make = optimizer

        def configure_optimizers(self):
            return self.make(self.parameters())

    indent = "  " if in_model else ""
    config = folder / "config.yaml"
    lines = text.format("class_path", "init_args:").replace("        ", "  " + indent)
    config.write_text(("model:\n" if in_model else "") + f"{indent}optimizer:{lines}\n")
    quiet = dict.fromkeys(
        ("enable_progress_bar", "enable_model_summary", "logger", "enable_checkpointing"),
        False,
    )
    cli = LightningCLI(
        ByCallable if in_model else Automatic,
        args=["fit", "--config", str(config)],
        trainer_defaults={"max_epochs": 2, "accelerator": "cpu", "default_root_dir": str(folder), **quiet},
        save_config_callback=None,
    )
    return flat(cli.model)


@pytest.mark.parametrize("in_model", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_lightning_cli(name, in_model, tmp_path):
    assert_is_the_loop_of(run_cli(tmp_path, FILES[name], in_model), name)


@pytest.mark.parametrize(
    ("name", "right", "wrong", "message"),
    [
        ("ggt", "window_dtype: bfloat16", "window_dtype: bf16", "window_dtype must be one of"),
        ("ggt", "torch_ggt.GGT", "torch_ggt.GTG", "torch_ggt.GTG"),
        ("ggt", "window: 3", "process_group: world", "torch.distributed is not initialized"),
        ("whiten", "window: 3", "process_group: world", "torch.distributed is not initialized"),
        ("whiten", "torch.optim.AdamW", "torch.optim.adamW", "did you mean 'AdamW'"),
        ("whiten", "{{window: 3, window_dtype: bfloat16}}", "3", "whitening"),
        ("whiten", "{{lr: 1e-2, weight_decay: 0.0}}", "{{Lr: 1e-2}}", "unexpected keyword argument 'Lr'"),
    ],
)
def test_wrong_strings_in_lightning_cli(name, right, wrong, message, tmp_path, capfd):
    assert right in FILES[name]
    with pytest.raises((RuntimeError, TypeError, ValueError, SystemExit)) as caught:
        run_cli(tmp_path, FILES[name].replace(right, wrong), in_model=True)
    assert message in str(caught.value) + capfd.readouterr().err


# ---- Hydra ---------------------------------------------------------------------------------------------------------


def by_hydra(text):
    hydra_utils = pytest.importorskip("hydra.utils")
    omegaconf = pytest.importorskip("omegaconf")
    lines = [line.strip() for line in text.format("_target_", "").splitlines() if line.strip()]
    return hydra_utils.instantiate(omegaconf.OmegaConf.create("\n".join([*lines, "_partial_: true"])))


@pytest.mark.parametrize("name", FILES)
def test_hydra(name):
    assert_is_the_loop_of(plain_loop(by_hydra(FILES[name])), name)


def test_whiten_of_an_optimizer_node_in_hydra():
    """``_target_: torch_ggt.whiten`` takes an optimizer that a node of its own describes and the script makes."""
    utils, omegaconf = pytest.importorskip("hydra.utils"), pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create("""
        optimizer: {_target_: torch.optim.AdamW, _partial_: true, lr: 1e-2, weight_decay: 0.0}
        whiten: {_target_: torch_ggt.whiten, window: 3, window_dtype: bfloat16}
    """)

    def make(params):
        return utils.instantiate(config.whiten, utils.instantiate(config.optimizer)(params))

    assert_is_the_loop_of(plain_loop(make), "whiten")


def test_wrong_strings_in_hydra():
    with pytest.raises(Exception, match="window_dtype must be one of"):
        by_hydra(FILES["ggt"].replace("bfloat16", "bf16"))(small_model().parameters())
    with pytest.raises(Exception, match="did you mean 'AdamW'"):
        by_hydra(FILES["whiten"].replace("AdamW", "Adamw"))(small_model().parameters())
