"""Data: read right from every layout, and a damaged, cut-off or half-written file is never taken for whole."""

import functools
import gzip
import hashlib
import http.server
import io
import lzma
import resource
import tarfile
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from ggt_lab.data import (
    Crops,
    DataError,
    DownloadError,
    PublishedFile,
    cache_folder,
    cached,
    channel_statistics,
    crop_and_flip,
    download,
    draw_crops,
    load_cifar10,
    load_ptb_characters,
    load_ptb_words,
    medxz,
    normalize,
    pad_images,
    synthetic_images,
    synthetic_text,
)
from ggt_lab.data import cifar10 as cifar10_module
from ggt_lab.data import ptb as ptb_module
from ggt_lab.data.cifar10 import Release
from ggt_lab.data.published_files import data_file

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("GGT_DATA", raising=False)
    monkeypatch.setenv("GGT_CACHE", str(tmp_path / "cache"))


def published(name, content, *urls):
    return PublishedFile(name, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), urls)


def leftovers(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# --- synthetic releases -----------------------------------------------------------------------------------------------


def smooth_images(count, seed):
    """Like photographs, neighbours are alike; and some noise, so that every case of a predictor occurs."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 3, 4, 4)).repeat(8, 2).repeat(8, 3) + random.integers(
        -9, 9, (1, 3, 32, 32)
    )
    return images.clip(0, 255).astype(np.uint8), random.integers(0, 10, count).astype(np.uint8)


@pytest.fixture(scope="module")
def batches():
    contents = {}
    for number, name in enumerate(BATCHES):
        images, labels = smooth_images(3, number)
        contents[name] = np.concatenate([labels[:, None], images.reshape(3, -1)], 1).tobytes()
    return contents


def archive_of(batches, folder="cifar-10-batches-bin"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in [("readme.html", b"hello"), *batches.items()]:
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def release_of(batches, archive, *urls):
    return Release(
        published("cifar-10-binary.tar.gz", archive, *urls),
        tuple(published(name, content) for name, content in batches.items()),
    )


def pack(batch):
    """The medxz format, literally: one pixel after the other."""
    records = np.frombuffer(batch, np.uint8).reshape(-1, 3073)
    images = records[:, 1:].reshape(-1, 3, 32, 32).astype(int)
    planes = [images[:, 1], images[:, 0] - images[:, 1], images[:, 2] - images[:, 1]]
    stream = bytearray(records[:, 0].tobytes())
    for plane in planes:
        for image in plane:
            for row in range(32):
                residuals = []
                for column in range(32):
                    if row == 0 or column == 0:
                        before = image[row][column - 1] if column else image[row - 1][0] if row else 0
                    else:
                        left, up, corner = image[row][column - 1], image[row - 1][column], image[row - 1][column - 1]
                        before = sorted([left, up, left + up - corner])[1]  # MED is a median of three
                    residuals.append((image[row][column] - before) % 256)
                stream.extend(reversed(residuals) if row % 2 else residuals)
    return lzma.compress(bytes(stream))


def lay_out(folder, layout, batches, archive):
    folder.mkdir(parents=True)
    if layout == "archive":
        (folder / "cifar-10-binary.tar.gz").write_bytes(archive)
        return
    inner = {"bin": "cifar-10-batches-bin", "bin at the top": ".", "medxz": "cifar10"}[layout]
    (folder / inner).mkdir(exist_ok=True)
    for name, content in batches.items():
        if layout == "medxz":
            (folder / inner / name.replace(".bin", ".medxz")).write_bytes(pack(content))
        else:
            (folder / inner / name).write_bytes(content)


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


def assert_is_release(images, batches):
    records = [np.frombuffer(content, np.uint8).reshape(-1, 3073) for content in batches.values()]
    train, test = np.concatenate(records[:5]), records[5]
    assert images.train_images.shape == (15, 3, 32, 32)
    assert images.train_images.dtype == images.train_labels.dtype == np.uint8
    assert (images.train_labels == train[:, 0]).all()
    assert (images.test_labels == test[:, 0]).all()
    # One pixel by the authors' words: "the first 1024 entries contain the red values, ... row-major order".
    assert images.train_images[7, 2, 5, 9] == train[7, 1 + 2 * 1024 + 5 * 32 + 9]
    assert (images.test_images.reshape(3, -1) == test[:, 1:]).all()


@pytest.mark.parametrize("layout", ["archive", "bin", "bin at the top", "medxz"])
def test_cifar10_from_every_layout_and_then_from_the_cache(tmp_path, monkeypatch, batches, layout):
    archive = archive_of(batches)
    lay_out(tmp_path / "data", layout, batches, archive)
    release = release_of(batches, archive)
    monkeypatch.setenv("GGT_DATA", str(tmp_path / "data"))
    assert_is_release(load_cifar10(release=release), batches)
    assert leftovers(tmp_path / "cache") == ["cifar10-v1.npz"]
    monkeypatch.delenv("GGT_DATA")
    assert_is_release(load_cifar10(release=release), batches)


def test_medxz_refuses_what_is_cut_off(tmp_path, batches):
    packed = pack(batches["test_batch.bin"])
    assert medxz.decode(packed) == batches["test_batch.bin"]
    with pytest.raises(ValueError, match="not a whole xz stream"):
        medxz.decode(packed[:-9])
    with pytest.raises(ValueError, match="no whole number of images"):
        medxz.decode(lzma.compress(b"1234"))
    lay_out(tmp_path / "data", "medxz", batches, b"")
    damaged = tmp_path / "data" / "cifar10" / "data_batch_2.medxz"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"data_batch_2.medxz is damaged"):
        load_cifar10(tmp_path / "data", release=release_of(batches, b""))


@pytest.mark.parametrize("layout", ["archive", "bin", "medxz"])
def test_a_local_file_that_is_not_the_published_one(tmp_path, batches, layout):
    archive = archive_of(batches)
    other = {name: content[:-1] + b"\x07" for name, content in batches.items()}
    lay_out(tmp_path / "data", layout, other, archive_of(other))
    with pytest.raises(DataError, match=r"as published: expected sha256 [0-9a-f]{64} .*got [0-9a-f]{64}"):
        load_cifar10(tmp_path / "data", release=release_of(batches, archive))
    assert leftovers(tmp_path / "cache") == []


def test_a_local_archive_that_is_cut_off_and_then_replaced(tmp_path, batches):
    archive = archive_of(batches)
    lay_out(tmp_path / "data", "archive", batches, archive[:-100])
    release = release_of(batches, archive)
    with pytest.raises(
        DataError, match=rf"expected .*{len(archive)} bytes.*{len(archive) - 100} bytes\): it seems cut off"
    ):
        load_cifar10(tmp_path / "data", release=release)
    (tmp_path / "data" / "cifar-10-binary.tar.gz").write_bytes(archive)
    assert_is_release(load_cifar10(tmp_path / "data", release=release), batches)


def test_archives_with_the_wrong_things_in_them(tmp_path, batches):
    def load(archive):
        folder = tmp_path / hashlib.sha256(archive).hexdigest()
        lay_out(folder, "archive", {}, archive)
        return load_cifar10(folder, release=release_of(batches, archive))

    with pytest.raises(DataError, match=r"holds no test_batch.bin"):
        load(archive_of({name: content for name, content in batches.items() if name != "test_batch.bin"}))
    with pytest.raises(DataError, match="cannot be read as an archive"):
        load(b"no archive at all")
    with pytest.raises(DataError, match=r"is not data_batch_3.bin as published: expected sha256"):
        load(archive_of({**batches, "data_batch_3.bin": b"123"}))


def test_part_of_the_batches_is_an_error(tmp_path, batches):
    lay_out(tmp_path / "data", "bin", batches, b"")
    (tmp_path / "data" / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_4.bin; add what is missing"):
        load_cifar10(tmp_path / "data", release=release_of(batches, b""))


# --- Penn Treebank ----------------------------------------------------------------------------------------------------

SENTENCES = ("the", "cat", "<unk>", "sat", "<eos>", "on", "N", "mats", "<eos>")
WORDS = {
    "ptb.train.txt": " the cat <unk> sat \n on N mats \n",
    "ptb.valid.txt": " the mats sat \n",
    "ptb.test.txt": " <unk> on the N \n",
}
# As the published files are: a space after each character, a line end in place of the one after the last word.
CHARACTERS = {
    "ptb.char.train.txt": "t h e _ c a t _ < u n k > _ s a t \n o n _ N _ m a t s \n ",
    "ptb.char.valid.txt": "t h e _ m a t s _ s a t \n ",
    "ptb.char.test.txt": "< u n k > _ o n _ t h e _ N \n ",
}


@pytest.fixture
def treebank():
    """The arguments that describe a small treebank."""
    return {
        "word_files": [published(name, text.encode()) for name, text in WORDS.items()],
        "character_files": [published(name, text.encode()) for name, text in CHARACTERS.items()],
    }


def write_texts(folder, texts):
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())


@pytest.mark.parametrize(
    ("inner", "texts"),
    [("ptb-char", CHARACTERS), (".", CHARACTERS), ("ptb", WORDS), ("simple-examples/data", WORDS), (".", WORDS)],
)
def test_characters_from_character_files_or_spelled_out_from_words(tmp_path, treebank, inner, texts):
    write_texts(tmp_path / "data" / inner, texts)
    for _ in ("decoded", "cached"):
        text = load_ptb_characters(tmp_path / "data", **treebank)
        assert "".join(text.vocabulary[code] for code in text.train) == "the_cat_<unk>_sat\non_N_mats\n"
        assert "".join(text.vocabulary[code] for code in text.valid) == "the_mats_sat\n"
        assert "".join(text.vocabulary[code] for code in text.test) == "<unk>_on_the_N\n"
        assert text.train.dtype == np.uint8
        assert list(text.vocabulary) == sorted(set("the_cat_<unk>_sat\non_N_mats\n"))


def test_words(tmp_path, treebank):
    write_texts(tmp_path / "data" / "ptb", WORDS)
    text = load_ptb_words(tmp_path / "data", word_files=treebank["word_files"])
    assert [text.vocabulary[code] for code in text.train] == list(SENTENCES)
    assert [text.vocabulary[code] for code in text.test] == ["<unk>", "on", "the", "N", "<eos>"]
    assert len(text.vocabulary) == 8


def test_a_word_that_training_has_not(tmp_path):
    texts = {**WORDS, "ptb.valid.txt": " the dog \n"}
    write_texts(tmp_path / "data", texts)
    files = [published(name, text.encode()) for name, text in texts.items()]
    with pytest.raises(DataError, match=r"the valid text has tokens that the training text has not: \['dog'\]"):
        load_ptb_words(tmp_path / "data", word_files=files)


def test_a_changed_text_is_refused(tmp_path, treebank):
    write_texts(tmp_path / "data", {**WORDS, "ptb.test.txt": WORDS["ptb.test.txt"].upper()})
    with pytest.raises(DataError, match=r"ptb.test.txt is not ptb.test.txt as published: expected sha256"):
        load_ptb_words(tmp_path / "data", word_files=treebank["word_files"])


def test_neither_here_nor_there(tmp_path, treebank, batches):
    with pytest.raises(DataError, match=r"(?s)no local folder was named.*Two ways.*environment: GGT_DATA"):
        load_ptb_words(word_files=treebank["word_files"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"(?s)nothing of it in .*empty.*no address is known.*Two ways"):
        load_ptb_characters(tmp_path / "empty", **treebank)
    gone = (tmp_path / "gone.tar.gz").as_uri()
    with pytest.raises(DataError, match=r"(?s)CIFAR-10 is not here.*gone.tar.gz: URLError.*downloads 0 MB \(file:"):
        load_cifar10(release=release_of(batches, b"x", gone), progress=None)
    with pytest.raises(DataError, match=r"--data names .*nowhere, which is not a folder"):
        load_ptb_words(tmp_path / "nowhere")


def test_published_tables():
    """What is public knowledge of the published files."""
    release = cifar10_module.RELEASE
    assert release.archive.checksum == "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    assert [batch.name for batch in release.batches] == BATCHES
    assert {batch.size for batch in release.batches} == {30_730_000}
    files = [*ptb_module.WORD_FILES, *ptb_module.CHARACTER_FILES, *release.batches]
    assert all(len(file.checksum) == len("sha256:") + 64 for file in files)
    assert len({file.checksum for file in files}) == 12
    # Two bytes a character, and the text ends in a space of its own.
    assert [file.size for file in ptb_module.CHARACTER_FILES] == [2 * 5_017_482, 2 * 393_042, 2 * 442_423]


# --- downloads --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """A folder and the address under which it is served; /short/NAME promises more than it sends."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if not self.path.startswith("/short/"):
                super().do_GET()
                return
            content = (folder / self.path.removeprefix("/short/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])

    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


def test_download_with_progress_and_only_once(tmp_path, server):
    folder, address = server
    content = bytes(range(256)) * 4096
    (folder / "big.bin").write_bytes(content)
    file = published("big.bin", content, f"{address}/big.bin")
    told = []
    path = download(file, tmp_path / "cache", progress=lambda *progress: told.append(progress))
    assert path.read_bytes() == content
    assert told[-1] == ("big.bin", len(content), len(content))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    (folder / "big.bin").unlink()
    assert download(file, tmp_path / "cache", progress=None) == path  # not asked for again
    assert leftovers(tmp_path / "cache") == ["big.bin"]


def test_a_wrong_or_short_download_is_not_kept_and_a_second_run_recovers(tmp_path, server):
    folder, address = server
    content = b"the right thing" * 100
    (folder / "file.bin").write_bytes(b"another thing! " * 100)
    file = published("file.bin", content, f"{address}/file.bin")
    with pytest.raises(DownloadError, match=r"expected sha256 .*got .*Nothing was kept. Try again later.*GGT_DATA=DIR"):
        download(file, tmp_path / "cache", progress=None)
    assert leftovers(tmp_path / "cache") == []
    (folder / "file.bin").write_bytes(content)
    short = replace(file, urls=(f"{address}/short/file.bin",))
    with pytest.raises(DownloadError, match=r"\(750 bytes\): it seems cut off|IncompleteRead"):
        download(short, tmp_path / "cache", progress=None)
    with pytest.raises(DownloadError, match="HTTPError: HTTP Error 404"):
        download(replace(file, urls=(f"{address}/none",)), tmp_path / "cache", progress=None)
    assert leftovers(tmp_path / "cache") == []
    assert download(file, tmp_path / "cache", progress=None).read_bytes() == content


def test_the_next_address_is_tried_and_a_damaged_file_replaced(tmp_path, server):
    folder, address = server
    content = b"content"
    (folder / "file.bin").write_bytes(content)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file.bin").write_bytes(b"conte")
    local = (folder / "file.bin").as_uri()
    file = published("file.bin", content, f"{address}/none", "no address", local)
    assert download(file, tmp_path / "cache", progress=None).read_bytes() == content


def test_loaders_download(tmp_path, server, batches, treebank):
    folder, address = server
    archive = archive_of(batches)
    (folder / "cifar-10-binary.tar.gz").write_bytes(archive)
    release = release_of(batches, archive, f"{address}/cifar-10-binary.tar.gz")
    assert_is_release(load_cifar10(release=release, progress=None), batches)
    files = []
    for file in treebank["word_files"]:
        (folder / file.name).write_bytes(WORDS[file.name].encode())
        files.append(replace(file, urls=(f"{address}/{file.name}",)))
    spelled = load_ptb_characters(word_files=files, character_files=treebank["character_files"], progress=None)
    assert len(spelled.valid) == len("the_mats_sat\n")
    assert len(load_ptb_words(word_files=files, progress=None).valid) == 4


def test_progress_to_stderr(tmp_path, server, capsys):
    folder, address = server
    (folder / "file.bin").write_bytes(b"x" * 2_000_000)
    download(published("file.bin", b"x" * 2_000_000, f"{address}/file.bin"), tmp_path)
    assert capsys.readouterr().err.strip() == "file.bin: 2.0 MB downloaded"


# --- files that are whole or not there --------------------------------------------------------------------------------


def full_disk(limit):
    """From here on no file of this process may grow beyond ``limit`` bytes: writing fails as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


@pytest.fixture
def disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield full_disk
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_downloading(tmp_path, server, disk):
    folder, address = server
    content = b"x" * 3_000_000
    (folder / "file.bin").write_bytes(content)
    file = published("file.bin", content, f"{address}/file.bin", f"{address}/file.bin")
    disk(1_000_000)
    with pytest.raises(
        DataError, match=r"could not write .*no room on the disk.*Nothing was kept. Make room, or set GGT"
    ):
        download(file, tmp_path / "cache", progress=None)
    assert leftovers(tmp_path / "cache") == []
    disk(10_000_000)
    assert download(file, tmp_path / "cache", progress=None).read_bytes() == content


def test_a_full_disk_while_caching_keeps_what_was_there(tmp_path, disk):
    small, large = {"a": np.arange(10)}, {"a": np.zeros(1_000_000)}
    cached("things", lambda: small, tmp_path)
    disk(100_000)
    with pytest.raises(DataError, match="no room on the disk"):
        cached("other", lambda: large, tmp_path)
    assert leftovers(tmp_path) == ["things.npz"]
    assert (cached("things", pytest.fail, tmp_path)["a"] == small["a"]).all()


def test_a_writer_that_is_interrupted_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted():
        with data_file(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == ["file"]


def test_a_cache_folder_that_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="its folder is not a folder"):
        cached("things", lambda: {"a": np.zeros(1)}, tmp_path / "file" / "cache")


# --- the cache --------------------------------------------------------------------------------------------------------

ARRAYS = {"codes": np.arange(1000, dtype=np.uint8), "words": np.array(["a", "bc"]), "empty": np.zeros((0, 3))}


def same(first, second):
    return first.keys() == second.keys() and all(
        (first[key] == second[key]).all() and first[key].dtype == second[key].dtype for key in first
    )


def test_a_cache_is_made_once(tmp_path):
    assert same(cached("things", lambda: ARRAYS, tmp_path), ARRAYS)
    assert same(cached("things", pytest.fail, tmp_path), ARRAYS)


def test_the_cache_folder(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("GGT_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "torch-ggt")


DAMAGES = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-1],
    "one bit": lambda content: content.replace(bytes(range(100, 110)), bytes([101, *range(101, 110)]), 1),
    "something else": lambda content: b"hello" * 100,
    "a pickle": lambda content: b"\x80\x04N.",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again(tmp_path, damage):
    cached("things", lambda: ARRAYS, tmp_path)
    path = tmp_path / "things.npz"
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    assert path.read_bytes() != whole
    with pytest.warns(UserWarning, match=r"things.npz is damaged .*; making it again"):
        assert same(cached("things", lambda: ARRAYS, tmp_path), ARRAYS)
    assert same(cached("things", pytest.fail, tmp_path), ARRAYS)


def test_a_whole_file_with_another_content_is_damaged_too(tmp_path):
    """A valid .npz, every zip checksum right, but not what was written."""
    cached("things", lambda: ARRAYS, tmp_path)
    with np.load(tmp_path / "things.npz") as stored:
        forged = {**{name: stored[name] for name in stored.files}, "codes": np.zeros(1000, np.uint8)}
    np.savez(tmp_path / "things.npz", **forged)
    with pytest.warns(UserWarning, match="do not have the checksum"):
        assert same(cached("things", lambda: ARRAYS, tmp_path), ARRAYS)
    np.savez(tmp_path / "things.npz", **ARRAYS)
    with pytest.warns(UserWarning, match="KeyError"):
        assert same(cached("things", lambda: ARRAYS, tmp_path), ARRAYS)


# --- augmentation -----------------------------------------------------------------------------------------------------


def test_augmentation_against_one_image_at_a_time():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8, generator=generator)
    index = torch.randperm(50, generator=generator)[:40]
    crops = draw_crops(40, generator)
    augmented = crop_and_flip(pad_images(images), index, crops)
    assert augmented.dtype == torch.uint8
    for number in range(40):
        canvas = np.zeros((3, 40, 40), np.uint8)
        canvas[:, 4:36, 4:36] = images[index[number]].numpy()
        top, left = int(crops.top[number]), int(crops.left[number])
        expected = canvas[:, top : top + 32, left : left + 32]
        if crops.flip[number]:
            expected = np.flip(expected, 2)
        assert (augmented[number].numpy() == expected).all()


def test_draws_are_uniform_and_reproducible():
    crops = draw_crops(90_000, torch.Generator().manual_seed(1))
    for offsets in (crops.top, crops.left):
        counts = torch.bincount(offsets, minlength=9)
        assert len(counts) == 9
        assert (counts - 10_000).abs().max() < 500  # five standard deviations
    assert abs(int(crops.flip.sum()) - 45_000) < 750
    joint = torch.bincount(9 * crops.top + crops.left, minlength=81)
    assert joint.min() > 900  # the offsets are independent
    again = draw_crops(90_000, torch.Generator().manual_seed(1))
    assert torch.equal(crops.top, again.top)
    assert torch.equal(crops.flip, again.flip)
    part = crops[10:20]
    assert torch.equal(part.left, crops.left[10:20])
    assert isinstance(part.to(torch.device("cpu")), Crops)


def test_normalization():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    expected = (images.double() / 255 - torch.tensor([0.4914, 0.4822, 0.4465]).double()[:, None, None]) / torch.tensor(
        [0.2470, 0.2435, 0.2616]
    ).double()[:, None, None]
    normalized = normalize(images, *channel_statistics(torch.device("cpu")))
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized.double(), expected, rtol=1e-5, atol=1e-5)


# --- synthetic data ---------------------------------------------------------------------------------------------------


def test_synthetic_data_is_fixed_and_can_be_learnt():
    images, again = synthetic_images(), synthetic_images()
    assert (images.train_images == again.train_images).all()
    assert images.test_images.shape == (64, 3, 32, 32)
    # The nearest mean of a class is right nearly always.
    centres = np.stack([images.train_images[images.train_labels == label].mean(0) for label in range(10)])
    distances = ((images.test_images[:, None].astype(float) - centres) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == images.test_labels).mean() > 0.9
    text = synthetic_text()
    pairs = np.zeros((12, 12))
    np.add.at(pairs, (text.train[:-1], text.train[1:]), 1)
    joint = pairs / pairs.sum()
    marginal = joint.sum(1)
    conditional = -np.nansum(joint * np.log(joint / marginal[:, None], where=joint > 0, out=np.zeros_like(joint)))
    assert conditional < 0.6 * np.log(12)
