"""The deep tasks of the league: deep problems with a part of the data to tune on and another part to report.

Nothing is regularized but by the optimizer's own weight decay, which the league tunes; the models of the paper's claims
keep the regularization that they had. The LSTMs and the small ResNet are not compiled.
"""

from collections.abc import Mapping
from dataclasses import replace
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
    "LeagueGPT",
    "LeagueLSTM",
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
    """A GPT of 25.6 M parameters on the bytes of Python sources, see `ggt_lab.data.python_sources`.

    It is evaluated on the first 262,144 bytes of the validation text and of the test text: a tenth of each. The whole
    texts would take more time than training does.
    """

    metric, with_test, dropout = "test_loss", True, 0.0
    batch = 32
    layers, width, heads = 8, 512, 8
    evaluated = 2**18

    def _read(self) -> Text:
        text = synthetic_text() if self.synthetic else load_python_sources()
        return replace(text, valid=text.valid[: self.evaluated], test=text.test[: self.evaluated])


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
    validation = 5000
    tiny: ClassVar[Mapping[str, Any]] = {**Cifar10VGG.tiny, "validation": 16}


@register_with_tiny("league-r4")
class LeagueR4(PTBWords):
    """The word LSTM of claim R4 with the batches and the clipping of AWD-LSTM; tuned on the validation text."""

    head = "embed.weight"  # the output weights are tied to it
    metric, with_test = "test_loss", True
    batch, clip = 20, 0.25
