"""CIFAR-10 batches in a lossless format half as large as the published one; decoding needs numpy alone.

A file is an xz stream of the labels, then three planes G, R−G, B−G of all images. Each plane holds, modulo 256, what is
left of a pixel after its prediction from the pixels to the left (L), above (U) and above left (C),

    MED(L, U, C) = min(L, U) if C ≥ max(L, U);  max(L, U) if C ≤ min(L, U);  L + U − C otherwise;

odd rows are stored from right to left.
"""

import lzma

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode", "median_edge"]

_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE


def median_edge(left: NDArray[np.int16], up: NDArray[np.int16], corner: NDArray[np.int16]) -> NDArray[np.int16]:
    """The prediction MED(L, U, C), elementwise.

    Example:
        >>> one = lambda value: np.array([value], np.int16)
        >>> int(median_edge(one(10), one(20), one(15))[0])
        15
    """
    low, high = np.minimum(left, up), np.maximum(left, up)
    prediction: NDArray[np.int16] = np.where(corner >= high, low, np.where(corner <= low, high, left + up - corner))
    return prediction


def decode(packed: bytes) -> bytes:
    """The published binary batch: per image a label, then the red, green and blue planes.

    Raises:
        ValueError: the stream is cut off or is something else.
    """
    try:
        content = np.frombuffer(lzma.decompress(packed), np.uint8)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"not a whole xz stream ({error})") from error
    count, rest = divmod(len(content), _RECORD)
    if rest:
        raise ValueError(f"{len(content)} bytes are no whole number of images of {_RECORD} bytes")
    residuals = content[count:].reshape(3, count, _SIDE, _SIDE).copy()
    residuals[:, :, 1::2] = residuals[:, :, 1::2, ::-1]
    # Pixel by pixel over all images at once: pixels are sequential by nature, images are not.
    pending = np.ascontiguousarray(residuals.transpose(2, 3, 0, 1)).astype(np.int16)
    pixels = np.empty_like(pending)
    for row in range(_SIDE):
        for column in range(_SIDE):
            value = pending[row, column] + _prediction(pixels, row, column)
            green = value[0] & 255
            pixels[row, column, 0] = green
            # R−G and B−G lie in [−G, 255−G], which undoes the modulus.
            pixels[row, column, 1:] = ((value[1:] + green) & 255) - green
    green, red_less_green, blue_less_green = pixels.transpose(2, 3, 0, 1)
    batch = np.empty((count, _RECORD), np.uint8)
    batch[:, 0] = content[:count]
    planes = batch[:, 1:].reshape(count, 3, _SIDE, _SIDE)
    planes[:, 0], planes[:, 1], planes[:, 2] = red_less_green + green, green, blue_less_green + green
    return batch.tobytes()


def _prediction(pixels: NDArray[np.int16], row: int, column: int) -> NDArray[np.int16]:
    prediction: NDArray[np.int16]
    if row == 0 and column == 0:
        prediction = np.zeros_like(pixels[0, 0])
    elif row == 0:
        prediction = pixels[0, column - 1]
    elif column == 0:
        prediction = pixels[row - 1, 0]
    else:
        prediction = median_edge(pixels[row, column - 1], pixels[row - 1, column], pixels[row - 1, column - 1])
    return prediction
