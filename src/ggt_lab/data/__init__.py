"""The paper's data: CIFAR-10 and the Penn Treebank, by words and by characters.

The one line that data follows: the decoded cache (`cache`), else a local folder, else a download (`download`), and
every file on that way is checked (`files`) before it is used. A folder is named by argument or by ``GGT_DATA``, the
cache by ``GGT_CACHE`` (``~/.cache/torch-ggt`` otherwise). What comes out are numpy arrays; `augment` works on them as
tensors, wherever they live.
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
