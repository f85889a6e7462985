"""The paper's data: CIFAR-10 and the Penn Treebank, by words and by characters.

Data comes from the cache of decoded arrays (`cache`), else from a local folder, else from a download (`download`).
Every file is checked before it is used (`published_files`). An argument or ``GGT_DATA`` names the local folder, and
``GGT_CACHE`` names the cache (``~/.cache/torch-ggt`` by default). The result is numpy arrays; `augment` works on them
as tensors.
"""

from ggt_lab.data.augment import Crops, channel_statistics, crop_and_flip, draw_crops, normalize, pad_images
from ggt_lab.data.cache import cache_folder, cached
from ggt_lab.data.cifar10 import Images, load_cifar10
from ggt_lab.data.download import download
from ggt_lab.data.ptb import Text, load_ptb_characters, load_ptb_words
from ggt_lab.data.published_files import DataError, DownloadError, PublishedFile
from ggt_lab.data.synthetic_data import synthetic_images, synthetic_text

__all__ = [
    "Crops",
    "DataError",
    "DownloadError",
    "Images",
    "PublishedFile",
    "Text",
    "cache_folder",
    "cached",
    "channel_statistics",
    "crop_and_flip",
    "download",
    "draw_crops",
    "load_cifar10",
    "load_ptb_characters",
    "load_ptb_words",
    "normalize",
    "pad_images",
    "synthetic_images",
    "synthetic_text",
]
