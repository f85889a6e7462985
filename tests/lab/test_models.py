"""Models: parameter counts by formula, outputs against slow literal versions, gradients by finite differences."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from ggt_lab.models import VGG19, CharLSTM3, CharTransformer, ShakeShake26, WordLSTM
from ggt_lab.models.lstm import DropConnectLSTM, locked_dropout
from ggt_lab.models.shake_shake import ShakeBlock, ShiftedSkip, shake
from ggt_lab.models.vgg import CONVOLUTIONS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def lstm_parameters(inputs, width):
    """Four gates, each with a matrix for the input, one for the state, and two biases."""
    return 4 * (width * inputs + width * width + 2 * width)


def conv_norm(inputs, outputs, side):
    return side * side * inputs * outputs + 2 * outputs


def check_gradients(model, function):
    """Finite differences over all parameters of a float64 model."""
    parameters = tuple(model.parameters())
    names = [name for name, _ in model.named_parameters()]

    def of(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), function)

    assert torch.autograd.gradcheck(of, parameters, fast_mode=True)


# --- LSTMs ------------------------------------------------------------------------------------------------------------


def lstm_loop(x, weights, h, c):
    """One layer of LSTM by the book; weights are (w_ih, w_hh, b_ih, b_hh), gates i, f, g, o."""
    w_ih, w_hh, b_ih, b_hh = weights
    outputs = []
    for x_t in x:
        i, f, g, o = (x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), h, c


def test_char_lstm_parameters():
    layers = lstm_parameters(128, 500) + 2 * lstm_parameters(500, 500)
    assert count(CharLSTM3(50)) == 50 * 128 + layers + 501 * 50 == 5_299_450


def test_char_lstm_against_a_loop_over_time():
    model = CharLSTM3(7, embedding=3, width=5).double()
    codes = torch.randint(0, 7, (9, 2))
    before = tuple(torch.randn(3, 2, 5, dtype=torch.float64) for _ in range(2))
    logits, (h, c) = model(codes, before)
    x = model.embed.weight[codes]
    for layer in range(3):
        x, h_last, c_last = lstm_loop(x, model.layers[0].all_weights[layer], before[0][layer], before[1][layer])
        torch.testing.assert_close(h[layer], h_last)
        torch.testing.assert_close(c[layer], c_last)
    torch.testing.assert_close(logits, x @ model.out.weight.T + model.out.bias)


def test_char_lstm_with_dropout_is_the_same_model_layer_by_layer():
    together, apart = CharLSTM3(7, 3, 5).double(), CharLSTM3(7, 3, 5, dropout=0.5).double().eval()
    assert count(together) == count(apart)
    with torch.no_grad():
        for ours, theirs in zip(apart.parameters(), together.parameters(), strict=True):
            ours.copy_(theirs)
    codes = torch.randint(0, 7, (9, 2))
    before = tuple(torch.randn(3, 2, 5, dtype=torch.float64) for _ in range(2))
    for hidden in (None, before):
        torch.testing.assert_close(apart(codes, hidden), together(codes, hidden))


@pytest.mark.parametrize("make", [lambda: CharLSTM3(7, 3, 5), lambda: WordLSTM(7, 4, 5, 3)])
def test_a_text_in_two_pieces_is_the_text(make):
    model = make().double().eval()
    codes = torch.randint(0, 7, (10, 2))
    whole, last = model(codes)
    first, hidden = model(codes[:4])
    second, hidden = model(codes[4:], hidden)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(hidden, last)


def test_char_lstm_dropout_is_of_every_layer_and_in_training_only():
    codes = torch.randint(0, 7, (5, 2))

    def is_random(after_dropout):
        model = CharLSTM3(7, 3, 40, dropout=0.5, dropout_output=0.5)
        with torch.no_grad():
            for name in {"layers.1.weight_ih_l0", "layers.2.weight_ih_l0"} - {after_dropout}:
                model.get_parameter(name).zero_()  # then what is dropped before it cannot show
            if after_dropout != "out.weight":
                model.dropout_output.p = 0.0
        return not torch.equal(model(codes)[0], model(codes)[0])

    assert is_random("out.weight")
    assert is_random("layers.2.weight_ih_l0")
    assert not is_random("layers.1.weight_ih_l0")  # what comes of it goes no further
    assert not is_random("none")
    model = CharLSTM3(7, 3, 40, dropout=0.5, dropout_output=0.5).eval()
    assert torch.equal(model(codes)[0], model(codes)[0])


def test_char_lstm_drops_recurrent_weights_of_every_layer_and_in_training_only():
    model = CharLSTM3(7, 3, 40, weight_drop=0.5)
    assert count(model) == count(CharLSTM3(7, 3, 40))
    codes = torch.randint(0, 7, (5, 2))
    model(codes)[0].square().sum().backward()
    for layer in model.layers:
        assert 0.4 < (layer.weight_hh_l0.grad == 0).double().mean() < 0.6
    model.eval()
    assert torch.equal(model(codes)[0], model(codes)[0])


def test_gradients_of_the_lstms():
    codes = torch.randint(0, 5, (4, 2))
    for model in (CharLSTM3(5, 3, 2).double(), WordLSTM(5, 3, 4, 2).double().eval()):
        parameters = dict(model.named_parameters())

        def logits(*values, model=model, parameters=parameters):
            return torch.func.functional_call(model, dict(zip(parameters, values, strict=True)), (codes,))[0]

        assert torch.autograd.gradcheck(logits, tuple(parameters.values()), fast_mode=True)


def test_word_lstm_parameters():
    layers = lstm_parameters(400, 1150) + lstm_parameters(1150, 1150) + lstm_parameters(1150, 400)
    assert count(WordLSTM(10_000)) == 10_000 * 400 + layers + 10_000 == 24_221_600


def test_word_lstm_against_a_loop_over_time():
    model = WordLSTM(7, embedding=3, width=5, layers=3).double().eval()
    codes = torch.randint(0, 7, (6, 2))
    logits, hidden = model(codes)
    x = model.embed.weight[codes]
    for number, layer in enumerate(model.layers):
        zeros = x.new_zeros(2, layer.hidden_size)
        x, h, c = lstm_loop(x, layer.all_weights[0], zeros, zeros)
        torch.testing.assert_close(hidden[2 * number][0], h)
        torch.testing.assert_close(hidden[2 * number + 1][0], c)
    torch.testing.assert_close(logits, x @ model.embed.weight.T + model.out_bias)


def test_weight_drop_is_an_lstm_with_dropped_recurrent_weights():
    layer = DropConnectLSTM(3, 50, weight_drop=0.3).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    zeros = x.new_zeros(1, 2, 50)
    torch.manual_seed(5)
    output, _ = layer(x, (zeros, zeros))
    torch.manual_seed(5)
    w_ih, w_hh, *biases = layer.all_weights[0]
    dropped = functional.dropout(w_hh, 0.3)
    assert 0.25 < (dropped == 0).double().mean() < 0.35
    torch.testing.assert_close(output, lstm_loop(x, (w_ih, dropped, *biases), zeros[0], zeros[0])[0])
    torch.manual_seed(5)
    assert torch.equal(layer(x)[0], output)
    (gradient,) = torch.autograd.grad(output.square().sum(), w_hh)
    assert torch.equal(gradient == 0, dropped == 0)
    plain = copy.deepcopy(layer).eval()
    torch.testing.assert_close(plain(x, (zeros, zeros))[0], lstm_loop(x, layer.all_weights[0], zeros[0], zeros[0])[0])


def test_locked_dropout_has_one_mask_for_all_times():
    x = torch.ones(6, 50, 40)
    dropped = locked_dropout(x, 0.25, True)
    assert torch.equal(dropped, dropped[:1].expand(6, 50, 40))
    kept = dropped[0] != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(dropped[0][kept], torch.full((int(kept.sum()),), 1 / 0.75))
    assert locked_dropout(x, 0.25, False) is x


def test_a_dropped_word_is_dropped_wherever_it_occurs():
    none = {"dropout": 0.0, "dropout_between": 0.0, "dropout_input": 0.0, "weight_drop": 0.0}
    model = WordLSTM(200, 4, 5, 2, dropout_words=0.5, **none)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model(torch.arange(200).repeat(2)[:, None])
    first, second = seen[0][:200, 0], seen[0][200:, 0]
    assert torch.equal(first, second)
    gone = (first == 0).all(1)
    assert 70 < gone.sum() < 130
    torch.testing.assert_close(first[~gone], 2 * model.embed.weight[~gone])


# --- Shake-Shake ------------------------------------------------------------------------------------------------------


def test_shake_shake_parameters():
    total = conv_norm(3, 16, 3) + 128 * 10 + 10
    inputs = 16
    for width in (32, 64, 128):
        for _ in range(4):
            total += 2 * (conv_norm(inputs, width, 3) + conv_norm(width, width, 3))
            if inputs != width:
                total += conv_norm(inputs, width, 1)
            inputs = width
    assert count(ShakeShake26()) == total == 2_923_162


def test_shake_shake_has_26_layers_and_halves_the_image_twice():
    model = ShakeShake26()
    blocks = [module for module in model.modules() if isinstance(module, ShakeBlock)]
    assert 1 + 2 * len(blocks) + 1 == 26
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 128, 8, 8)


def test_shake_mixes_forward_by_alpha_and_backward_by_beta():
    first, second = (torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    alpha, beta = torch.rand(2, 4, 1, 1, 1, dtype=torch.float64)
    upstream = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    mixed = shake(first, second, alpha, beta)
    for image in range(4):
        literal = alpha[image] * first[image] + (1 - alpha[image]) * second[image]
        torch.testing.assert_close(mixed[image], literal)
    to_first, to_second = torch.autograd.grad(mixed, (first, second), upstream)
    torch.testing.assert_close(to_first, beta * upstream)
    torch.testing.assert_close(to_second, (1 - beta) * upstream)
    assert torch.autograd.gradcheck(lambda a, b: shake(a, b, alpha, alpha), (first, second))  # β = α: a true gradient


def literal_branch(branch, x, stride):
    """ReLU, convolution, batch normalization, twice, with the statistics of the batch."""
    for number, step in ((1, stride), (4, 1)):
        x = functional.conv2d(x.clamp(min=0), branch[number].weight, stride=step, padding=1)
        x = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    return x


@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (6, 1), (6, 2)])
def test_a_block_against_its_literal_version(inputs, stride):
    """Forward with α in the weights, backward with β in the same graph: two passes, as the author's code does it."""
    block = ShakeBlock(inputs, 4, stride).double()
    x = torch.randn(5, inputs, 8, 8, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    output = block(x)
    torch.manual_seed(3)
    alpha, beta = torch.rand(2, 5, 1, 1, 1, dtype=torch.float64)

    def literal(weight):
        if inputs == 4:
            skip = x
        else:
            positive = x.clamp(min=0)
            shifted = torch.zeros_like(positive)
            shifted[:, :, 1:, 1:] = positive[:, :, :-1, :-1]
            paths = [
                torch.einsum("oi,bihw->bohw", conv.weight[:, :, 0, 0], functional.avg_pool2d(image, 1, stride))
                for conv, image in ((block.skip.straight, positive), (block.skip.shifted, shifted))
            ]
            skip = torch.cat(paths, 1)
            mean, variance = skip.mean((0, 2, 3), keepdim=True), skip.var((0, 2, 3), correction=0, keepdim=True)
            skip = (skip - mean) / (variance + 1e-5).sqrt()
        first, second = literal_branch(block.first, x, stride), literal_branch(block.second, x, stride)
        return skip + weight * first + (1 - weight) * second

    torch.testing.assert_close(output, literal(alpha))
    upstream = torch.randn_like(output)
    wanted = [x, block.first[1].weight, block.second[4].weight]
    for actual, expected in zip(
        torch.autograd.grad(output, wanted, upstream), torch.autograd.grad(literal(beta), wanted, upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_the_shifted_path_sees_other_pixels():
    skip = ShiftedSkip(1, 2, stride=2).eval()
    with torch.no_grad():
        skip.straight.weight.fill_(1.0)
        skip.shifted.weight.fill_(1.0)
    image = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    straight, shifted = skip(image)[0]
    torch.testing.assert_close(straight, torch.tensor([[1.0, 3.0], [9.0, 11.0]]), rtol=1e-4, atol=0)
    torch.testing.assert_close(shifted, torch.tensor([[0.0, 0.0], [0.0, 6.0]]), rtol=1e-4, atol=0)


def test_evaluation_is_the_mean_of_the_branches():
    block = ShakeBlock(4, 4, 1).double()
    x = torch.randn(3, 4, 8, 8, dtype=torch.float64)
    assert not torch.equal(block(x), block(x))
    block.eval()
    torch.testing.assert_close(block(x), x + 0.5 * block.first(x) + 0.5 * block.second(x))


def test_shakes_differ_between_images():
    block = ShakeBlock(4, 4, 1)
    x = torch.randn(1, 4, 8, 8).repeat(6, 1, 1, 1)
    outputs = block(x).detach()  # of six times the same image
    assert len({round(value, 4) for value in outputs[:, 0, 0, 0].tolist()}) == 6


def test_gradients_of_shake_shake():
    model = ShakeShake26(base=2, blocks=1).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # away from zero, where ReLU has no derivative
            nn.init.normal_(module.bias)
    check_gradients(model, (torch.randn(2, 3, 8, 8, dtype=torch.float64),))


# --- VGG --------------------------------------------------------------------------------------------------------------


def test_vgg_parameters_and_layers():
    model = VGG19()
    channels = [3, *[channels for group in CONVOLUTIONS for channels in group]]
    convolutions = sum((9 * inputs + 1) * outputs for inputs, outputs in itertools.pairwise(channels))
    assert count(model) == convolutions + 2 * 513 * 512 + 513 * 10 == 20_554_826
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == 19
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_vgg_against_its_literal_version():
    groups = [[2, 3], [4], [5], [6, 4], [7]]
    model = VGG19(groups, hidden=8).double().eval()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    values = [parameter for name, parameter in model.named_parameters()]
    x = images
    for group in groups:
        for _ in group:
            x = functional.conv2d(functional.pad(x, (1, 1, 1, 1)), values.pop(0), values.pop(0)).clamp(min=0)
        x = x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
    x = x.flatten(1)
    for _ in range(2):
        x = (x @ values.pop(0).T + values.pop(0)).clamp(min=0)
    torch.testing.assert_close(model(images), x @ values.pop(0).T + values.pop(0))
    assert not values


def test_gradients_of_vgg():
    model = VGG19([[2], [2], [2], [2], [2]], hidden=3).double().eval()
    check_gradients(model, (torch.randn(2, 3, 32, 32, dtype=torch.float64),))


# --- Transformer ------------------------------------------------------------------------------------------------------


def test_transformer_parameters():
    layer = 3 * 384 * 385 + 384 * 385 + 4 * 384 * 385 + 384 * (4 * 384 + 1) + 2 * 2 * 384
    assert count(CharTransformer(50)) == 6 * layer + (50 + 256) * 384 + 2 * 384 + 385 * 50 == 10_784_306


def test_transformer_against_torchs_own_layers():
    model = CharTransformer(9, context=12, layers=2, width=8, heads=2, dropout=0.3).double().eval()
    codes = torch.randint(0, 9, (3, 10))
    x = model.tokens.weight[codes] + model.positions.weight[:10]
    future = torch.triu(torch.ones(10, 10, dtype=torch.bool), 1)
    for layer in model.layers:
        theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).double()
        pairs = {
            theirs.self_attn.in_proj_weight: layer.attention.queries_keys_values.weight,
            theirs.self_attn.in_proj_bias: layer.attention.queries_keys_values.bias,
            theirs.self_attn.out_proj.weight: layer.attention.out.weight,
            theirs.self_attn.out_proj.bias: layer.attention.out.bias,
            theirs.linear1.weight: layer.widen.weight,
            theirs.linear1.bias: layer.widen.bias,
            theirs.linear2.weight: layer.narrow.weight,
            theirs.linear2.bias: layer.narrow.bias,
        }
        with torch.no_grad():
            for their, our in pairs.items():
                our.normal_(0, 0.5)  # far from the start, so that every part shows
                their.copy_(our)
        x = theirs(x, src_mask=future)
    expected = functional.layer_norm(x, (8,)) @ model.out.weight.T + model.out.bias
    torch.testing.assert_close(model(codes), expected)


def test_no_logit_depends_on_a_later_token():
    model = CharTransformer(9, context=12, layers=3, width=8, heads=2).double().eval()
    codes = torch.randint(0, 9, (1, 12))
    before = model(codes)
    for position in range(12):
        changed = codes.clone()
        changed[0, position] = (codes[0, position] + 1) % 9
        after = model(changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.allclose(after[:, position:], before[:, position:])


def test_transformer_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="heads must divide the width; got width 10 and 3 heads"):
        CharTransformer(9, width=10, heads=3)
    with pytest.raises(ValueError, match="13 tokens is longer than the context of 12"):
        CharTransformer(9, context=12, layers=1, width=4, heads=1)(torch.zeros(1, 13, dtype=torch.int64))


def test_gradients_of_the_transformer():
    model = CharTransformer(5, context=4, layers=2, width=4, heads=2).double().eval()
    check_gradients(model, (torch.randint(0, 5, (2, 4)),))


def test_transformer_dropout_is_in_training_only():
    model = CharTransformer(9, context=12, layers=1, width=8, heads=2, dropout=0.5)
    codes = torch.randint(0, 9, (1, 12))
    assert not torch.equal(model(codes), model(codes))
    model.eval()
    assert torch.equal(model(codes), model(codes))
