"""TensorBoard's and W&B's own writers, and what their files say afterwards."""

import json
import time

import pytest
from loops import MEMBERS, batches, loss_of, small_model

from torch_ggt.integrations import figures, write

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the packages are not ours


def train(writer, name):
    """Four steps; the figures of each."""
    model, found = small_model(), []
    optimizer = MEMBERS[name](model.parameters())
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        write(writer, optimizer, step)
        found.append(figures(optimizer))
    assert [each["rows"] for each in found] == [1, 2, 3, 3]
    return found


@pytest.mark.parametrize("name", MEMBERS)
def test_tensorboard(name, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        expected = train(writer, name)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"ggt/{key}" for key in expected[-1]}
    for key in expected[-1]:
        read = events.Scalars(f"ggt/{key}")
        assert [event.step for event in read] == [0, 1, 2, 3]
        assert [event.value for event in read] == pytest.approx([each[key] for each in expected], rel=1e-6)


@pytest.mark.parametrize("name", MEMBERS)
def test_wandb_offline(name, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=str(tmp_path), project="test") as run:
        expected = train(run, name)
    (file,) = tmp_path.rglob("*.wandb")
    patience = time.monotonic() + 20  # another process of W&B writes the file, and may write after the run has ended
    while len([*history(file)]) < len(expected) and time.monotonic() < patience:
        time.sleep(0.1)
    assert [{key: line[f"ggt/{key}"] for key in expected[-1]} for line in history(file)] == expected


def history(file):
    """The lines that W&B keeps in its file: records in pieces (checksum, length, kind), in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    written, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(written):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        end = place + 7 + int.from_bytes(written[place + 4 : place + 6], "little")
        record += written[place + 7 : end]
        if written[place + 6] in (1, 4):  # a whole record, or the last piece of one
            found, record = Record.FromString(record), b""
            if found.HasField("history"):
                yield {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in found.history.item}
        place = end
