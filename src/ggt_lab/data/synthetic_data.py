"""Small made-up data: deep experiments run on it from end to end, in seconds and without files."""

import numpy as np

from ggt_lab.data.cifar10 import Images
from ggt_lab.data.ptb import Text

__all__ = ["synthetic_images", "synthetic_text"]


def synthetic_images(train: int = 128, test: int = 64, *, seed: int = 0) -> Images:
    """Images of ten classes; each class is a random pattern of low resolution, with noise."""
    random = np.random.default_rng(seed)
    patterns = random.integers(40, 216, (10, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = random.integers(0, 10, count).astype(np.uint8)
        noise = random.integers(-40, 40, (count, 3, 32, 32))
        return (patterns[labels] + noise).astype(np.uint8), labels

    return Images(*draw(train), *draw(test))


def synthetic_text(vocabulary: int = 12, length: int = 2000, *, seed: int = 0) -> Text:
    """A Markov chain. Every token has two likely successors. ``length`` tokens to train, a fifth to validate."""
    random = np.random.default_rng(seed)
    successors = random.integers(0, vocabulary, (vocabulary, 2))

    def draw(count: int) -> np.ndarray:
        stream = np.zeros(count, np.int16)
        for position in range(1, count):
            likely = random.random() < 0.9
            choice = successors[stream[position - 1], random.integers(2)] if likely else random.integers(vocabulary)
            stream[position] = choice
        return stream

    return Text(draw(length), draw(length // 5), draw(length // 5), tuple(f"t{code}" for code in range(vocabulary)))
