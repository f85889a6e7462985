"""Deep problems: data in the right order, honest numbers, and a resumed run that is the run."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ggt_lab.data import Text, channel_statistics, normalize
from ggt_lab.optimizers.specs import optimizer_factory
from ggt_lab.problems import problem_class, problem_names
from ggt_lab.problems.deep_problem import derived_seed
from ggt_lab.runs.short_run import train

CPU = torch.device("cpu")
NAMES = ["cifar10", "cifar10-vgg", "ptb-chars", "ptb-chars-transformer", "ptb-words"]
every_problem = pytest.mark.parametrize("name", NAMES)


def tiny(name, seed=0, **changes):
    cls = problem_class(f"{name}-tiny")
    return type(cls.__name__, (cls,), changes)(seed, CPU)


def advance(problem, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = problem.loss()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_names():
    assert {*NAMES, *(f"{name}-tiny" for name in NAMES)} <= set(problem_names())


@every_problem
def test_tiny_is_the_same_problem_with_other_attributes(name):
    small, full = problem_class(f"{name}-tiny"), problem_class(name)
    assert issubclass(small, full)
    assert small.synthetic
    assert not full.synthetic
    assert small.loss is full.loss
    assert all(hasattr(full, attribute) for attribute in full.tiny)
    problem = tiny(name)
    assert problem.steps == problem.epochs * problem.steps_per_epoch
    assert 2 <= problem.steps < 60
    assert sum(parameter.numel() for parameter in problem.parameters()) < 100_000


@every_problem
def test_a_scale_of_gradients_changes_neither_them_nor_the_loss(name):
    plain, scaled = (tiny(name, l2=1e-3, gradient_scale=scale) for scale in (1.0, 2.0**13))
    for _ in range(2):
        losses = [problem.loss() for problem in (plain, scaled)]
        assert losses[0].item() == losses[1].item()
        for problem, loss in zip((plain, scaled), losses, strict=True):
            problem.model.zero_grad()
            loss.backward()
        for ours, theirs in zip(scaled.parameters(), plain.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)  # a power of two is exact


@every_problem
def test_a_whole_run(name):
    outcome = train(tiny(name), optimizer_factory("Adam"), 1e-2, evaluations=2)
    assert outcome.status == "done"
    first, middle, last = outcome.curve
    assert "train_loss" not in first  # no step was made yet
    if name == "cifar10-vgg":  # nothing learns that in eight steps, which is the point of claim A1
        assert last["train_loss"] == pytest.approx(math.log(10), rel=0.2)
    else:
        assert last["train_loss"] < middle["train_loss"]
    metric = problem_class(name).metric
    assert all(metric in point for point in outcome.curve)


@every_problem
def test_every_parameter_has_a_gradient(name):
    problem = tiny(name)
    problem.loss()
    problem.loss().backward()  # the second step: at the first, an LSTM's hidden state is zero
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in problem.parameters())


def gradients(problem):
    return [parameter.grad.clone() for parameter in problem.parameters()]


@every_problem
def test_gradients_taken_are_those_of_the_loss(name):
    one, other = tiny(name), tiny(name)
    for _ in range(3):
        one.model.zero_grad()
        one.loss().backward()
        other.take_gradients()
        assert all(torch.equal(*pair) for pair in zip(gradients(one), gradients(other), strict=True))
    assert one.evaluate() == other.evaluate()


@every_problem
def test_l2_is_minimized_and_not_reported(name):
    plain, penalized = tiny(name, l2=0.0), tiny(name, l2=0.1)
    plain.take_gradients()
    penalized.take_gradients()
    for parameter, without, with_it in zip(plain.parameters(), gradients(plain), gradients(penalized), strict=True):
        torch.testing.assert_close(with_it, without + 0.1 * parameter.detach())
    assert plain.evaluate() == penalized.evaluate()
    with pytest.raises(ValueError, match=r"differs in l2 \(0.0 there, 0.1 here\)"):
        penalized.load_state_dict(plain.state_dict())


@every_problem
def test_a_clipped_gradient_keeps_its_direction(name):
    plain, loose, tight = (tiny(name, clip=clip) for clip in (0.0, 1e3, 1e-3))
    for problem in (plain, loose, tight):
        problem.take_gradients()
    whole, same, short = (torch.cat([g.flatten() for g in gradients(p)]) for p in (plain, loose, tight))
    torch.testing.assert_close(same, whole)
    torch.testing.assert_close(short, whole * 1e-3 / whole.norm(), rtol=1e-3, atol=1e-9)
    assert plain.evaluate() == tight.evaluate()
    with pytest.raises(ValueError, match=r"differs in clip \(0.0 there, 0.001 here\)"):
        tight.load_state_dict(plain.state_dict())


def test_images_laid_out_for_tensor_cores_are_the_same_images():
    other, plain = tiny("cifar10", channels_last=True), tiny("cifar10", channels_last=False)
    (images, labels), (same, same_labels) = other._begin_step(), plain._begin_step()
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, same)
    assert torch.equal(labels, same_labels)
    torch.testing.assert_close(other.loss(), plain.loss())


@every_problem
def test_a_seed_fixes_start_order_and_noise_whatever_else_is_drawn(name):
    def losses(seed, disturb):
        problem = tiny(name, seed)
        taken = []
        for number in range(5):
            if disturb:
                torch.rand(number + 1)
                problem.evaluate()
            taken.append(problem.loss().item())
        return taken

    assert losses(3, False) == losses(3, True)
    assert losses(3, False) != losses(4, False)


@every_problem
@pytest.mark.parametrize("when", ["in an epoch", "between epochs"])
def test_a_resumed_run_is_the_run_bitwise(name, when):
    def start():
        problem = tiny(name)
        return problem, torch.optim.Adam(problem.parameters(), lr=1e-2)

    whole, optimizer = start()
    per_epoch = whole.steps_per_epoch
    at = {"in an epoch": per_epoch + 2, "between epochs": per_epoch}[when]
    advance(whole, optimizer, at)
    saved = io.BytesIO()
    torch.save({"problem": whole.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    kept = whole.state_dict()
    after = advance(whole, optimizer, per_epoch + 1)
    numbers = whole.evaluate()

    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    for problem_state in (state["problem"], kept):  # from a file; and what was kept in memory has not changed since
        torch.rand(7)
        resumed, optimizer = start()
        resumed.load_state_dict(problem_state)
        optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # Adam would change what it was given
        assert resumed.step == at
        assert advance(resumed, optimizer, per_epoch + 1) == after
        assert resumed.evaluate() == numbers
        for ours, theirs in zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs)


def test_derived_seeds_do_not_meet():
    seeds = {derived_seed(seed, purpose, number) for seed in range(10) for purpose in (1, 2) for number in range(100)}
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_another_runs_state_is_refused():
    problem = tiny("ptb-chars")
    problem.loss()
    before = problem.state_dict()
    with pytest.raises(ValueError, match=r"it differs in seed \(1 there, 0 here\)"):
        problem.load_state_dict(tiny("ptb-chars", seed=1).state_dict())
    with pytest.raises(ValueError, match=r"differs in problem \('TinyPTBWords' there, 'TinyPTBCharacters' here\)"):
        problem.load_state_dict(tiny("ptb-words").state_dict())
    assert problem.state_dict()["step"] == before["step"]


@every_problem
def test_the_training_loss_is_the_mean_since_the_last_evaluation(name):
    problem = tiny(name, l2=0.0)
    assert "train_loss" not in problem.evaluate()
    first = [problem.loss().item() for _ in range(3)]
    numbers = problem.evaluate()
    assert numbers["train_loss"] == pytest.approx(np.mean(first), rel=1e-6)
    if "train_perplexity" in numbers:
        assert numbers["train_perplexity"] == pytest.approx(math.exp(np.mean(first)), rel=1e-5)
    second = problem.loss().item()
    assert problem.evaluate()["train_loss"] == pytest.approx(second)
    assert "train_loss" not in problem.evaluate()


@every_problem
def test_no_step_waits_for_the_device(name):
    """No operation of a step, forward or backward, reads a value back or has an output whose shape is data."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            assert operation.overloadpacket not in (
                torch.ops.aten._local_scalar_dense,
                torch.ops.aten.nonzero,
                torch.ops.aten.masked_select,
                torch.ops.aten.equal,
            )
            return operation(*arguments, **(options or {}))

    problem = tiny(name)
    problem.loss()  # an epoch's start may copy its order over
    with Watch():
        problem.loss().backward()
        with pytest.raises(AssertionError):
            problem.evaluate()  # the watch does see


def watch_inputs(problem):
    """Everything that the model is given from now on."""
    seen = []
    problem.model.register_forward_pre_hook(lambda _, arguments: seen.append(arguments))
    return seen


# --- text -------------------------------------------------------------------------------------------------------------


def test_recurrent_batches_read_on_where_the_last_one_ended():
    problem = tiny("ptb-chars")
    seen = watch_inputs(problem)
    for _ in range(problem.steps_per_epoch):
        problem.loss()
    columns = torch.cat([codes for codes, _ in seen])
    assert columns.shape == (problem.steps_per_epoch * problem.length, problem.batch)
    text = problem.train.tolist()
    around = text + text  # an epoch may start anywhere and goes around the end
    strings = [",".join(map(str, column.tolist())) for column in columns.t()]
    assert all(string in ",".join(map(str, around)) for string in strings)
    # Neighbouring columns are neighbouring pieces of text: together they are a permutation of nearly all of it.
    rows = len(text) // problem.batch
    start = next(s for s in range(len(text)) if around[s : s + len(columns)] == columns[:, 0].tolist())
    for number, column in enumerate(columns.t()):
        where = (start + number * rows) % len(text)
        assert around[where : where + len(columns)] == column.tolist()
    # Hidden states go on within an epoch, and start from nothing with the next.
    assert seen[0][1] is None
    assert all(hidden is not None for _, hidden in seen[1:])
    problem.loss()
    assert not any(hidden.any() for hidden in seen[-1][1])
    assert not torch.equal(seen[-1][0], seen[0][0])  # another start


def test_hidden_states_are_cut_from_the_graph():
    problem = tiny("ptb-chars")
    problem.loss().backward()
    problem.loss().backward()  # raises if it reaches back into the first
    assert all(not tensor.requires_grad for tensor in problem.state_dict()["hidden"])


def test_windows_are_the_text_in_random_order():
    problem = tiny("ptb-chars-transformer")
    seen = watch_inputs(problem)
    for _ in range(problem.steps_per_epoch):
        problem.loss()
    windows = torch.cat([codes for (codes,) in seen])
    assert windows.shape == (problem.steps_per_epoch * problem.batch, problem.length)
    text = problem.train.tolist()
    around = text + text[: problem.length]
    starts = [
        {start for start in range(len(text)) if around[start : start + problem.length] == window}
        for window in windows.tolist()
    ]
    assert all(starts)
    offsets = [next(iter(found)) for found in starts if len(found) == 1]
    assert len(set(offsets)) == len(offsets) > 0.9 * len(windows)  # no window twice
    assert offsets != sorted(offsets)


@pytest.mark.parametrize("name", ["ptb-chars", "ptb-chars-transformer", "ptb-words"])
def test_targets_are_the_next_tokens(name):
    """On a text that counts, the loss of a model that knows how to count is zero."""

    class Counting(problem_class(f"{name}-tiny")):
        l2 = 0.0

        def _read(self):
            count = np.arange(2000) % 10
            return Text(count, count[:401], count, tuple("0123456789"))

        def _make_model(self):
            class Counter(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.scale = torch.nn.Parameter(torch.tensor(100.0))

                def forward(self, codes, hidden=()):
                    logits = self.scale * functional.one_hot((codes + 1) % 10, 10).float()
                    return logits if name == "ptb-chars-transformer" else (logits, hidden or ())

            return Counter()

    problem = Counting(0, CPU)
    assert max(problem.loss().item() for _ in range(problem.steps_per_epoch)) < 1e-6
    numbers = problem.evaluate()
    assert numbers["validation_loss"] < 1e-6
    assert numbers["validation_perplexity"] == pytest.approx(1.0)


def literal_recurrent_loss(problem):
    """Nats per token: each of the pieces of the validation text token by token, after the end of the piece before."""
    stream = problem.validation.long()
    count = len(stream) - 1
    width = math.ceil(count / problem.evaluation_batch)
    context = min(problem.evaluation_context, width)
    rows = math.ceil(count / width)
    padded = torch.cat([stream[:-1], torch.zeros(rows * width - count, dtype=torch.int64)])
    total = 0.0
    for begin in range(0, count, width):
        end_before = begin if begin else rows * width
        _, hidden = problem.model(padded[end_before - context : end_before, None])
        for position in range(begin, min(begin + width, count)):
            logits, hidden = problem.model(stream[position].view(1, 1), hidden)
            total -= logits.log_softmax(-1)[0, 0, stream[position + 1]].item()
    return total / count


def literal_window_loss(problem):
    stream = problem.validation.long()
    count = len(stream) - 1
    total = 0.0
    for begin in range(0, count, problem.length):
        end = min(begin + problem.length, count)
        logits = problem.model(stream[begin:end][None]).log_softmax(-1)[0]
        total -= sum(logits[k, stream[begin + k + 1]].item() for k in range(end - begin))
    return total / count


@pytest.mark.parametrize(
    ("name", "literal"),
    [
        ("ptb-chars", literal_recurrent_loss),
        ("ptb-words", literal_recurrent_loss),
        ("ptb-chars-transformer", literal_window_loss),
    ],
)
@pytest.mark.parametrize("length", [400, 401, 397, 30])
def test_validation_counts_every_token_once(name, literal, length):
    """Whether the text divides into rows or not."""
    problem = tiny(name)
    problem.evaluation_batch, problem.evaluation_context = 7, 20
    problem.validation = torch.cat([problem.validation, problem.validation])[:length]
    advance(problem, torch.optim.Adam(problem.parameters(), lr=1e-2), 5)
    numbers = problem.evaluate()
    with torch.no_grad():
        expected = literal(problem)
    assert numbers["validation_loss"] == pytest.approx(expected, rel=1e-5)
    assert numbers["validation_perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_a_diverged_model_has_an_infinite_perplexity():
    problem = tiny("ptb-chars")
    with torch.no_grad():
        problem.model.out.bias[0] = 1e6
    numbers = problem.evaluate()
    assert numbers["validation_loss"] > 1000
    assert numbers["validation_perplexity"] == math.inf


# --- images -----------------------------------------------------------------------------------------------------------


def test_an_epoch_shows_every_image_once_with_its_label_and_epochs_differ():
    class Numbered(problem_class("cifar10-vgg-tiny")):
        """Every pixel of an image, padding included, is its number; its label is the last digit of that."""

        def _load(self):
            super()._load()
            numbers = torch.arange(64)
            self.padded = numbers[:, None, None, None].expand(64, 3, 40, 40).to(torch.uint8)
            self.labels = numbers % 10

        def _make_model(self):
            class Reader(torch.nn.Module):
                """Reads the number and is sure of its last digit."""

                def __init__(self):
                    super().__init__()
                    self.scale = torch.nn.Parameter(torch.tensor(100.0))

                def forward(self, images):
                    numbers = ((images * 0.2435 + 0.4822) * 255).round()[:, 1, 5, 5].long()
                    seen.append(numbers)
                    return self.scale * functional.one_hot(numbers % 10, 10).float()

            return Reader()

    seen = []
    problem = Numbered(0, CPU)
    orders = []
    for _ in range(2):
        assert max(problem.loss().item() for _ in range(problem.steps_per_epoch)) < 1e-6
        orders.append(torch.cat(seen).tolist())
        seen.clear()
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert orders[0] != orders[1]


def test_images_are_cropped_and_flipped_anew_each_epoch():
    problem = tiny("cifar10-vgg")
    originals = normalize(problem.padded[:, :, 4:36, 4:36], *channel_statistics(CPU))
    seen = watch_inputs(problem)
    views = []
    for _ in range(2):
        seen.clear()
        for _ in range(problem.steps_per_epoch):
            problem.loss()
        shown, order = torch.cat([images for (images,) in seen]), problem._order
        views.append(shown[order.argsort()])
    for view in views:
        assert view.shape == originals.shape
        assert sum(torch.equal(*pair) for pair in zip(view, originals, strict=True)) < 5  # 1 in 162 expected
    assert sum(torch.equal(*pair) for pair in zip(*views, strict=True)) < 5


def test_test_numbers_against_one_image_at_a_time():
    problem = tiny("cifar10")
    advance(problem, torch.optim.Adam(problem.parameters(), lr=1e-2), 5)
    problem.evaluation_batch = 10  # the last batch is not full
    numbers = problem.evaluate()
    losses, right = [], 0
    with torch.no_grad():
        for image, label in zip(problem.test_images, problem.test_labels, strict=True):
            logits = problem.model(normalize(image[None], *channel_statistics(CPU)))[0]
            losses.append(-logits.log_softmax(0)[label].item())
            right += int(logits.argmax()) == int(label)
    assert numbers["test_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert numbers["test_accuracy"] == right / 32
