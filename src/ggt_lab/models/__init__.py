"""The networks of the paper, and one for differential equations.

The paper leaves much open; each module says what we chose.
Models are plain `torch.nn.Module`. They know nothing of data, losses or optimizers.
"""

from ggt_lab.models.lstm import CharLSTM3, Hidden, WordLSTM
from ggt_lab.models.shake_shake import ShakeShake26
from ggt_lab.models.tanh_network import TanhNetwork
from ggt_lab.models.transformer import CharTransformer
from ggt_lab.models.vgg import VGG19

__all__ = ["VGG19", "CharLSTM3", "CharTransformer", "Hidden", "ShakeShake26", "TanhNetwork", "WordLSTM"]
