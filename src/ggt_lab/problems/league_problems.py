"""The deep tasks of the league: deep problems with a part of the data to tune on and another part to report.

Nothing is regularized but by the optimizer's own weight decay, which the league tunes; the models of the paper's claims
keep the regularization that they had. Nothing is compiled: a league has many short runs, and each would wait for the
compiler.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from ggt_lab.data import Text, synthetic_text
from ggt_lab.data.python_sources import load_python_sources
from ggt_lab.models.small_resnet import SmallResNet
from ggt_lab.problems.deep_problem import register_with_tiny
from ggt_lab.problems.image_problems import Cifar10, Cifar10VGG, ImageProblem
from ggt_lab.problems.text_problems import PTBCharacters, PTBCharactersTransformer, PTBWords

__all__ = [
    "BytesGPT",
    "LeagueA1",
    "LeagueA2",
    "LeagueGPT",
    "LeagueLSTM",
    "LeagueR2",
    "LeagueR4",
    "LeagueShakeShake",
    "LeagueSmallResNet",
]


@register_with_tiny("league-gpt-ptb")
class LeagueGPT(PTBCharactersTransformer):
    """A GPT of 10.8 M parameters on PTB characters, without dropout; tuned on the validation text."""

    metric, with_test, dropout = "test_loss", True, 0.0
    batch, compiled = 32, False


@register_with_tiny("league-gpt-bytes")
class BytesGPT(PTBCharactersTransformer):
    """A GPT of 25.6 M parameters on the bytes of Python sources, see `ggt_lab.data.python_sources`."""

    metric, with_test, dropout = "test_loss", True, 0.0
    batch, compiled = 32, False
    layers, width, heads = 8, 512, 8

    def _read(self) -> Text:
        return synthetic_text() if self.synthetic else load_python_sources()


@register_with_tiny("league-lstm-ptb")
class LeagueLSTM(PTBCharacters):
    """The LSTM of claim R1 in batches of 128, without its regularization; tuned on the validation text."""

    metric, with_test, l2, dropout, weight_drop = "test_loss", True, 0.0, 0.0, 0.0
    batch, captured = 128, True


@register_with_tiny("league-shake-shake")
class LeagueShakeShake(Cifar10):
    """The CNN of claim C1; 5,000 training images are set aside to tune on."""

    validation = 5000
    tiny: ClassVar[Mapping[str, Any]] = {**Cifar10.tiny, "validation": 16}


@register_with_tiny("league-resnet")
class LeagueSmallResNet(ImageProblem):
    """A residual network of 0.7 M parameters; 5,000 training images are set aside to tune on."""

    epochs, width, blocks, validation = 4, 32, 2, 5000
    captured = True
    tiny: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch": 16, "width": 4, "blocks": 1, "validation": 16}

    def _make_model(self) -> nn.Module:
        return SmallResNet(self.width, self.blocks)


@register_with_tiny("league-a1")
class LeagueA1(Cifar10VGG):
    """The VGG-19 of claim A1; 5,000 training images are set aside to tune on."""

    head = "classify.7.weight"
    validation, compiled = 5000, False
    tiny: ClassVar[Mapping[str, Any]] = {**Cifar10VGG.tiny, "validation": 16}


@register_with_tiny("league-a2")
class LeagueA2(PTBCharactersTransformer):
    """The Transformer of claim A2, with its dropout and its batches; tuned on the validation text."""

    metric, with_test, compiled = "test_loss", True, False


@register_with_tiny("league-r2")
class LeagueR2(PTBCharacters):
    """The LSTM of claim R2: batches of 256, dropout, weight drop and penalty; tuned on the validation text."""

    metric, with_test = "test_loss", True
    batch, captured = 256, True


@register_with_tiny("league-r4")
class LeagueR4(PTBWords):
    """The word LSTM of claim R4 with the batches and the clipping of AWD-LSTM; tuned on the validation text."""

    head = "embed.weight"  # the output weights are tied to it
    metric, with_test = "test_loss", True
    batch, clip = 20, 0.25
