"""param_groups puts every parameter of well-known layouts where people would put it by hand."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from ggt_lab.optimizers.paper_ggt import PaperGGT as GGT
from torch_ggt import param_groups

D, VOCABULARY, POSITIONS = 16, 96, 32


# ---- small copies of layouts, with the names that the libraries give -------------------------------------------------


class Named(nn.Module):
    """A module with these children and parameters."""

    def __init__(self, /, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Conv1D(Named):
    """The linear layer of GPT-2 in transformers: its weight is (in, out)."""

    def __init__(self, out, rows):
        super().__init__(weight=nn.Parameter(torch.randn(rows, out)), bias=nn.Parameter(torch.zeros(out)))


class RMSNorm(Named):
    """As in Llama."""

    def __init__(self):
        super().__init__(weight=nn.Parameter(torch.ones(D)))


def matrix(*shape):
    return nn.Parameter(torch.randn(shape))


def linear(rows, columns, *, bias=False):
    return nn.Linear(columns, rows, bias=bias)


def gpt2():
    attention = Named(c_attn=Conv1D(3 * D, D), c_proj=Conv1D(D, D))
    block = Named(ln_1=nn.LayerNorm(D), attn=attention, mlp=Named(c_fc=Conv1D(64, D), c_proj=Conv1D(D, 64)))
    inner = {"wte": nn.Embedding(VOCABULARY, D), "wpe": nn.Embedding(POSITIONS, D), "h": nn.ModuleList([block])}
    model = Named(transformer=Named(**inner), lm_head=linear(VOCABULARY, D))
    model.lm_head.weight = model.transformer.wte.weight
    return model


def llama():
    attention = Named(q_proj=linear(D, D), k_proj=linear(8, D), v_proj=linear(8, D), o_proj=linear(D, D))
    mlp = Named(gate_up_proj=linear(48, D), down_proj=linear(D, 24))
    layer = Named(self_attn=attention, mlp=mlp, input_layernorm=RMSNorm())
    layers = nn.ModuleList([layer, copy.deepcopy(layer)])
    model = Named(embed_tokens=nn.Embedding(VOCABULARY, D), layers=layers, norm=RMSNorm())
    return Named(model=model, lm_head=linear(VOCABULARY, D))


def bert():
    embeddings = Named(
        word_embeddings=nn.Embedding(VOCABULARY, D),
        position_embeddings=nn.Embedding(POSITIONS, D),
        token_type_embeddings=nn.Embedding(2, D),
        LayerNorm=nn.LayerNorm(D),
    )
    output = Named(dense=linear(D, D, bias=True), LayerNorm=nn.LayerNorm(D))
    attention = Named(**{"self": Named(query=linear(D, D)), "output": output})
    encoder = Named(layer=nn.ModuleList([Named(attention=attention, output=Named(dense=linear(D, 24)))]))
    decoder = linear(VOCABULARY, D, bias=True)
    decoder.weight = embeddings.word_embeddings.weight
    predictions = Named(bias=decoder.bias, transform=Named(dense=linear(D, D)), decoder=decoder)
    return Named(bert=Named(embeddings=embeddings, encoder=encoder), cls=Named(predictions=predictions))


def vit():
    attention = Named(qkv=linear(3 * D, D, bias=True), proj=linear(D, D))
    block = Named(norm1=nn.LayerNorm(D), attn=attention, mlp=Named(fc1=linear(64, D), fc2=linear(D, 64)))
    block.ls1 = Named(gamma=nn.Parameter(torch.ones(D)))
    model = Named(patch_embed=Named(proj=nn.Conv2d(3, D, 4, 4)), blocks=nn.Sequential(block), head=linear(10, D))
    model.cls_token, model.pos_embed = matrix(1, 1, D), matrix(1, 17, D)
    return model


def resnet():
    block = Named(conv1=nn.Conv2d(8, 8, 3, bias=False), bn1=nn.BatchNorm2d(8), conv2=nn.Conv2d(8, 8, 3, groups=4))
    return Named(conv1=nn.Conv2d(3, 8, 7, bias=False), layer1=nn.Sequential(block), fc=linear(10, 8, bias=True))


def convnext():
    block = Named(block=nn.Sequential(nn.Conv2d(8, 8, 7, groups=8), nn.LayerNorm((8, 5, 5)), linear(32, 8)))
    block.layer_scale = matrix(8, 1, 1)
    features = nn.Sequential(nn.Conv2d(3, 8, 4), nn.Sequential(block))
    return Named(features=features, classifier=nn.Sequential(nn.LayerNorm(8), linear(16, 8), linear(10, 16)))


def language_model(recurrent):
    return Named(encoder=nn.Embedding(VOCABULARY, D), rnn=recurrent, decoder=linear(VOCABULARY, 8, bias=True))


def mixture():
    experts = Named(gate_up_proj=matrix(4, 48, D), down_proj=matrix(4, D, 24), down_proj_bias=matrix(4, D))
    layer = Named(gate=Named(weight=matrix(4, D)), experts=experts)
    attention = nn.MultiheadAttention(D, 2, add_bias_kv=True)
    return Named(embed=nn.Embedding(VOCABULARY, D), layers=nn.ModuleList([Named(mlp=layer, attn=attention)]))


def audio():
    up = nn.ConvTranspose2d(8, 6, 2, groups=2)
    model = Named(conv=nn.Conv1d(4, 8, 3), up=up, one=linear(1, 8), norm=parametrizations.weight_norm(linear(9, 8)))
    model.filter, model.temperature = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64)), matrix()
    return model


def kinds_of(model, capsys, **options):
    """parameter → (kind, finish, decay), as the table shows it."""
    param_groups(model, show=True, **options)
    lines = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in capsys.readouterr().out.splitlines()
    ]
    assert lines[0] == ["parameter", "shape", "kind", "finish", "decay"]
    return {name: tuple(cells[1:]) for name, *cells in lines[1:]}


def expected(**names):
    """Every kind with the finish and decay that it has by default."""
    after = dict.fromkeys(("linear", "recurrent", "qkv", "gate, up", "convolution", "experts"), ("polar", "yes"))
    after |= dict.fromkeys(("embedding", "head", "convolution 1d", "depthwise", "complex"), ("adam", "yes"))
    after |= dict.fromkeys(("position", "norm", "bias", "vector", "scalar"), ("adam", "no"))
    found = {}
    for kind, parameters in names.items():
        words, _, split = kind.replace("_and_", ", ").replace("_1d", " 1d").partition("_by_")
        finish, decay = after[words]
        for parameter in parameters.split():
            found[parameter] = (words, f"{finish} ÷ {split}" if split else finish, decay)
    return found


LAYOUTS = {
    "GPT-2": (
        gpt2,
        {
            "embedding": "transformer.wte.weight",
            "position": "transformer.wpe.weight",
            "norm": "transformer.h.0.ln_1.weight transformer.h.0.ln_1.bias",
            "linear": "transformer.h.0.attn.c_attn.weight transformer.h.0.attn.c_proj.weight "
            "transformer.h.0.mlp.c_fc.weight transformer.h.0.mlp.c_proj.weight",
            "bias": "transformer.h.0.attn.c_attn.bias transformer.h.0.attn.c_proj.bias "
            "transformer.h.0.mlp.c_fc.bias transformer.h.0.mlp.c_proj.bias",
        },
    ),
    "ViT": (
        vit,
        {
            "position": "cls_token pos_embed",
            "convolution": "patch_embed.proj.weight",
            "bias": "patch_embed.proj.bias blocks.0.attn.qkv.bias",
            "norm": "blocks.0.norm1.weight blocks.0.norm1.bias",
            "qkv_by_3": "blocks.0.attn.qkv.weight",
            "linear": "blocks.0.attn.proj.weight blocks.0.mlp.fc1.weight blocks.0.mlp.fc2.weight",
            "vector": "blocks.0.ls1.gamma",
            "head": "head.weight",
        },
    ),
    "ResNet": (
        resnet,
        {
            "convolution": "conv1.weight layer1.0.conv1.weight",
            "norm": "layer1.0.bn1.weight layer1.0.bn1.bias",
            "convolution_by_4": "layer1.0.conv2.weight",
            "bias": "layer1.0.conv2.bias fc.bias",
            "head": "fc.weight",
        },
    ),
    "ConvNeXt": (
        convnext,
        {
            "convolution": "features.0.weight",
            "bias": "features.0.bias features.1.0.block.0.bias",
            "vector": "features.1.0.layer_scale",
            "depthwise": "features.1.0.block.0.weight",
            "norm": "features.1.0.block.1.weight features.1.0.block.1.bias classifier.0.weight classifier.0.bias",
            "linear": "features.1.0.block.2.weight classifier.1.weight",
            "head": "classifier.2.weight",
        },
    ),
    "BERT": (
        bert,
        {
            "embedding": "bert.embeddings.word_embeddings.weight bert.embeddings.token_type_embeddings.weight",
            "position": "bert.embeddings.position_embeddings.weight",
            "norm": "bert.embeddings.LayerNorm.weight bert.embeddings.LayerNorm.bias "
            "bert.encoder.layer.0.attention.output.LayerNorm.weight "
            "bert.encoder.layer.0.attention.output.LayerNorm.bias",
            "linear": "bert.encoder.layer.0.attention.self.query.weight "
            "bert.encoder.layer.0.attention.output.dense.weight bert.encoder.layer.0.output.dense.weight "
            "cls.predictions.transform.dense.weight",
            "bias": "bert.encoder.layer.0.attention.output.dense.bias cls.predictions.bias",
        },
    ),
    "Llama": (
        llama,
        {
            "embedding": "model.embed_tokens.weight",
            "linear": " ".join(f"2×model.layers.*.self_attn.{name}_proj.weight" for name in "qkvo")
            + " 2×model.layers.*.mlp.down_proj.weight",
            "gate_and_up_by_2": "2×model.layers.*.mlp.gate_up_proj.weight",
            "norm": "2×model.layers.*.input_layernorm.weight model.norm.weight",
            "head": "lm_head.weight",
        },
    ),
    "LSTM": (
        lambda: language_model(nn.LSTM(D, 12, proj_size=8)),
        {
            "embedding": "encoder.weight",
            "recurrent_by_4": "rnn.weight_ih_l0 rnn.weight_hh_l0",
            "recurrent": "rnn.weight_hr_l0",
            "bias": "rnn.bias_ih_l0 rnn.bias_hh_l0 decoder.bias",
            "head": "decoder.weight",  # it has as many rows as the embedding
        },
    ),
    "GRU cell": (
        lambda: language_model(nn.GRUCell(D, 8)),
        {
            "embedding": "encoder.weight",
            "recurrent_by_3": "rnn.weight_ih rnn.weight_hh",
            "bias": "rnn.bias_ih rnn.bias_hh decoder.bias",
            "head": "decoder.weight",
        },
    ),
    "MoE": (
        mixture,
        {
            "embedding": "embed.weight",
            "linear": "layers.0.mlp.gate.weight layers.0.attn.out_proj.weight",
            "experts": "layers.0.mlp.experts.gate_up_proj layers.0.mlp.experts.down_proj",
            "qkv_by_3": "layers.0.attn.in_proj_weight",
            "bias": "layers.0.mlp.experts.down_proj_bias layers.0.attn.in_proj_bias layers.0.attn.out_proj.bias "
            "layers.0.attn.bias_k layers.0.attn.bias_v",
        },
    ),
    "rare": (
        audio,
        {
            "complex": "filter",
            "scalar": "temperature",
            "convolution_1d": "conv.weight",
            "bias": "conv.bias up.bias",
            "convolution_by_2": "up.weight",
            "vector": "one.weight norm.parametrizations.weight.original0",
            "linear": "norm.parametrizations.weight.original1",
        },
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_of_a_layout(layout, capsys):
    make, names = LAYOUTS[layout]
    found = {name.replace(" × ", "×"): row for name, row in kinds_of(make(), capsys).items()}
    assert found == expected(**names)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("finish", ["polar", None])
def test_every_parameter_is_in_exactly_one_group(layout, finish):
    model = LAYOUTS[layout][0]()
    next(p for n, p in model.named_parameters() if "bias" in n or "norm" in n).requires_grad_(False)
    groups = param_groups(model, finish=finish)
    listed = [(n, p) for group in groups for n, p in zip(group["param_names"], group["params"], strict=True)]
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(listed) == len(wanted)
    assert all(wanted[name] is p for name, p in listed)
    options = [{k: v for k, v in group.items() if k not in ("params", "param_names")} for group in groups]
    assert all(one != other for i, one in enumerate(options) for other in options[:i])
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)  # an optimizer of torch takes them
    assert [group["param_names"] for group in optimizer.param_groups] == [group["param_names"] for group in groups]


def test_a_split_weight_is_its_gates_one_above_the_other():
    """What ``split`` says of an LSTM is what torch does: the rows of each gate give that gate."""
    lstm = nn.LSTM(5, 3, bias=False)
    (group,) = param_groups(lstm)
    assert group["split"] == 4
    (w_ih, w_hh), x, h, c = group["params"], torch.randn(1, 5), torch.randn(1, 3), torch.randn(1, 3)
    i, f, g, o = (a @ x[0] + b @ h[0] for a, b in zip(w_ih.chunk(4), w_hh.chunk(4), strict=True))
    cell = f.sigmoid() * c[0] + i.sigmoid() * g.tanh()
    torch.testing.assert_close(lstm(x, (h, c))[0][0], o.sigmoid() * cell.tanh())


def test_a_split_convolution_is_its_groups():
    convolution = nn.Conv2d(6, 4, 3, groups=2, bias=False)
    (group,) = param_groups(convolution)
    x = torch.randn(1, 6, 5, 5)
    parts = zip(group["params"][0].chunk(group["split"]), x.chunk(group["split"], 1), strict=True)
    torch.testing.assert_close(convolution(x), torch.cat([nn.functional.conv2d(part, w) for w, part in parts], 1))


def test_unequal_queries_and_keys_are_not_split():
    grouped, fused = Named(qkv_proj=linear(2 * D, D)), Named(Wqkv=linear(3 * D, D))
    assert "split" not in param_groups(grouped)[0]
    assert param_groups(fused)[0]["split"] == 3


# ---- options ---------------------------------------------------------------------------------------------------------


def test_learning_rate_and_decay_are_left_to_the_optimizer_unless_given():
    model = llama()
    for group in param_groups(model):
        assert "lr" not in group
        assert group.get("weight_decay") == (0.0 if "model.norm.weight" in group["param_names"] else None)
    optimizer = torch.optim.AdamW(param_groups(model), lr=1e-3, weight_decay=0.3)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.3}
    given = param_groups(model, lr=0.02, weight_decay=0.1)
    assert {group["lr"] for group in given} == {0.02}
    assert sorted({group["weight_decay"] for group in given}) == [0.0, 0.1]


def test_finish_none_is_for_all_and_no_finish_is_no_key():
    assert {group["finish"] for group in param_groups(vit(), finish="none")} == {"none"}
    assert {group["finish"] for group in param_groups(vit(), finish="adam")} == {"adam"}
    for options in ({"finish": None}, {"finish": "none"}, {"finish": "adam"}):
        assert all("split" not in group for group in param_groups(vit(), **options))
    assert all("finish" not in group for group in param_groups(vit(), finish=None))

    def own(step):
        return step

    assert {group["finish"] for group in param_groups(vit(), finish=own)} == {own, "adam"}


def test_matrices_for_muon_and_the_rest_for_adamw():
    """Both optimizers make one step of every parameter, each of its own."""
    model = vit()
    groups = param_groups(model, finish=None, weight_decay=0.1)
    muon = torch.optim.Muon([group for group in groups if group["role"] == "matrix"], lr=0.01)
    adamw = torch.optim.AdamW([group for group in groups if group["role"] != "matrix"], lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    muon.step()
    assert {n for n, p in model.named_parameters() if not p.equal(before[n])} == {
        *(f"blocks.0.{name}.weight" for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"))
    }
    adamw.step()
    assert not any(p.equal(before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("finish", ["polar", "polar_rows"])
def test_ggt_makes_a_step_of_every_layout(layout, finish):
    model = LAYOUTS[layout][0]()
    optimizer = GGT(param_groups(model, finish=finish), lr=1e-2, history="gradient", window=3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert all(p.isfinite().all() and not p.equal(before[name]) for name, p in model.named_parameters())


def test_groups_without_decay_and_finish_change_no_step_of_ggt():
    """One matrix for the whole model, however its parameters are grouped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 9)).double()
    twin = copy.deepcopy(model)
    optimizers = GGT(param_groups(model, finish=None, weight_decay=0.0)), GGT(twin.parameters())
    for _ in range(8):
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(one(torch.arange(9)), torch.arange(9)).backward()
            optimizer.step()
    for found, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


def test_overrides():
    model = llama()
    overrides = {r"mlp\.": {"lr": 0.5}, r"down_proj": {"lr": 0.1, "weight_decay": 0.0}, "q_proj": {"role": "rest"}}
    overrides["gate_up"] = {"split": 1}
    groups = param_groups(model, overrides=overrides)
    of = {name: group for group in groups for name in group["param_names"]}
    assert of["model.layers.0.mlp.gate_up_proj.weight"]["lr"] == 0.5
    assert of["model.layers.0.mlp.gate_up_proj.weight"]["split"] == 1
    assert of["model.layers.1.mlp.down_proj.weight"]["lr"] == 0.1  # the last one counts
    assert of["model.layers.1.mlp.down_proj.weight"]["weight_decay"] == 0.0
    assert of["model.layers.0.self_attn.q_proj.weight"] is of["lm_head.weight"]  # decays as it did, by Adam
    assert "lr" not in of["lm_head.weight"]
    tied = param_groups(gpt2(), overrides={"lm_head": {"lr": 7.0}})
    assert [g["param_names"] for g in tied if g.get("lr") == 7.0] == [["transformer.wte.weight"]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lm_haed": {}}, "'lm_haed' is found in the name of no trainable parameter; the closest names are 'lm_head"),
        ({"lm_head": {"params": []}}, "must hold options, not params"),
        (
            {"lm_head": {"role": "leader"}},
            "role must be 'matrix', 'stack' or 'rest', got 'leader' for 'lm_head.weight'",
        ),
    ],
)
def test_overrides_that_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        param_groups(llama(), overrides=overrides)


def test_models_that_are_refused():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got generator"):
        param_groups(llama().parameters())
    with pytest.raises(ValueError, match="no trainable parameters"):
        param_groups(llama().requires_grad_(False))
    with pytest.raises(ValueError, match=r"'0\.weight' has no shape yet; run the model once"):
        param_groups(nn.Sequential(nn.LazyLinear(3)))


def test_wrapped_and_parametrized_models_have_the_kinds_of_the_model(capsys):
    model = Named(module=Named(rnn=nn.GRU(5, 4), lm_head=linear(7, 4)))  # as DistributedDataParallel has it
    parametrizations.spectral_norm(model.module.lm_head)
    parametrizations.spectral_norm(model.module.rnn, "weight_hh_l0")
    found = kinds_of(Named(_orig_mod=model), capsys)  # as torch.compile has it
    prefix = "_orig_mod.module"
    assert found[f"{prefix}.lm_head.parametrizations.weight.original"] == ("head", "adam", "yes")
    assert found[f"{prefix}.rnn.parametrizations.weight_hh_l0.original"] == ("recurrent", "polar ÷ 3", "yes")


def test_the_table_is_at_most_100_columns_wide(capsys):
    model = llama()
    for name in ("a_module_with_a_long_name", "another_one"):
        model = Named(**{f"{name}_that_goes_on_and_on_and_on_for_ever": model})
    param_groups(model, weight_decay=0.1, show=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 100
    assert any(line.startswith("…") and "norm.weight" in line and line.endswith("no") for line in lines)
    assert any(line.endswith("0.1") for line in lines)


def test_the_examples_of_the_page_run_and_print_what_it_shows(capsys):
    page = (Path(__file__).parent.parent / "docs" / "param_groups.md").read_text()
    names, printed, compared = {}, "", 0
    for kind, code in re.findall(r"^```(python|text)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if kind == "python":
            exec(compile(code, "docs/param_groups.md", "exec"), names)
            printed = capsys.readouterr().out
        else:
            assert printed == code
            compared += 1
    assert compared == 5
