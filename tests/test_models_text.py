"""Text models: against loops over words and windows, whatever the padding; exact hypergradients; errors."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import narl
from narl import models
from narl.errors import DataError, OptionError

NAMES = ("text_cnn", "text_transformer")
VOCABULARY = 30


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(name: str, **options: object) -> nn.Sequential:
    return models.get(name)(vocabulary=VOCABULARY, num_classes=4, dim=16, generator=seeded(), **options)


EVALUATED = {name: make(name).double().eval() for name in NAMES}


def logits(name: str, ids: list[int], padding: int = 0) -> Tensor:
    with torch.no_grad():
        output: Tensor = EVALUATED[name](torch.tensor([ids + [0] * padding]))
    return output


texts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)


@pytest.mark.parametrize("name", NAMES)
@given(ids=texts, padding=st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_the_logits_do_not_depend_on_how_much_padding_follows(name: str, ids: list[int], padding: int) -> None:
    torch.testing.assert_close(logits(name, ids), logits(name, ids, padding), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(batch=st.lists(texts, min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_a_text_does_not_see_the_others_of_its_batch(name: str, batch: list[list[int]]) -> None:
    together = torch.tensor([ids + [0] * (12 - len(ids)) for ids in batch])
    with torch.no_grad():
        expected = torch.cat([logits(name, ids) for ids in batch])
        torch.testing.assert_close(EVALUATED[name](together), expected, rtol=1e-9, atol=1e-9)


@given(ids=texts)
@settings(max_examples=20, deadline=None)
def test_text_cnn_is_the_maximum_over_windows_of_words(ids: list[int]) -> None:
    model = EVALUATED["text_cnn"]
    features = []
    with torch.no_grad():
        vectors = [model.get_parameter("maxima.embedding.weight")[i] for i in ids]
        beyond = [torch.zeros(16, dtype=torch.float64)] * 3
        for convolution in model.get_submodule("maxima.convolutions").children():
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            width = convolution.kernel_size[0]
            for pattern, bias in zip(convolution.weight, convolution.bias, strict=True):
                reached = [
                    sum(pattern[:, j] @ (vectors + beyond)[start + j] for j in range(width)) + bias
                    for start in range(len(ids))
                ]
                features.append(max(0.0, *(float(value) for value in reached)))
        expected = model.get_submodule("head")(torch.tensor([features], dtype=torch.float64))
    torch.testing.assert_close(logits("text_cnn", ids, padding=2), expected)


def transformer_oracle(model: nn.Sequential, ids: list[int]) -> Tensor:
    """One text, word by word and head by head."""
    weights: dict[str, Tensor] = {key.removeprefix("encoder."): value for key, value in model.state_dict().items()}
    dim, heads = 16, 4
    size = dim // heads

    def norm(x: Tensor, key: str) -> Tensor:
        return (x - x.mean()) / torch.sqrt(x.var(correction=0) + 1e-5) * weights[f"{key}.weight"] + weights[
            f"{key}.bias"
        ]

    def linear(x: Tensor, key: str) -> Tensor:
        return weights[f"{key}.weight"] @ x + weights[f"{key}.bias"]

    words = []
    for place, token in enumerate(ids):
        angles = [place / 10000 ** (2 * i / dim) for i in range(dim // 2)]
        position = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
        words.append(weights["embedding.weight"][token] + position / 4)
    for layer in range(2):
        name = f"layers.{layer}"
        split = [linear(norm(x, f"{name}.attention_norm"), f"{name}.queries_keys_values") for x in words]
        attended = []
        for row in split:
            parts = []
            for head in range(heads):
                span = slice(head * size, (head + 1) * size)
                scores = torch.stack([row[:dim][span] @ key[dim : 2 * dim][span] for key in split]) / math.sqrt(size)
                shares = scores.exp() / scores.exp().sum()
                parts.append(sum(share * value[2 * dim :][span] for share, value in zip(shares, split, strict=True)))
            attended.append(torch.cat([part for part in parts if isinstance(part, Tensor)]))
        words = [x + linear(a, f"{name}.mix") for x, a in zip(words, attended, strict=True)]
        for number, x in enumerate(words):
            wide = linear(norm(x, f"{name}.widening_norm"), f"{name}.widen")
            bell = 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
            words[number] = x + linear(wide * bell, f"{name}.narrow")
    mean = torch.stack([norm(x, "norm") for x in words]).mean(dim=0)
    return linear(mean, "head").unsqueeze(0)


@given(ids=texts, seed=st.integers(0, 2**20))
@settings(max_examples=10, deadline=None)
def test_text_transformer_is_the_written_out_encoder(ids: list[int], seed: int) -> None:
    model = make("text_transformer").double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and branches as after some training
            parameter.add_(torch.randn(parameter.shape, generator=seeded(seed), dtype=torch.float64), alpha=0.2)
        torch.testing.assert_close(model(torch.tensor([[*ids, 0]])), transformer_oracle(model, ids))


@pytest.mark.parametrize("name", NAMES)
def test_a_text_without_words_has_finite_logits_and_gradients(name: str) -> None:
    model = make(name)
    output = model(torch.tensor([[0, 0, 0], [3, 4, 0]]))
    output.square().sum().backward()
    assert output.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_row_for_padding_never_learns() -> None:
    for name in NAMES:
        model = make(name)
        model(torch.tensor([[3, 4, 0], [5, 0, 0]])).square().sum().backward()
        (table,) = [m for m in model.modules() if isinstance(m, nn.Embedding)]
        assert table.weight.grad is not None
        assert not table.weight.grad[0].any()
        assert table.weight.grad[3].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_hypergradients_are_exact_by_forward_mode(name: str, dropout: float) -> None:
    model = make(name, dropout=dropout).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    adjuster = narl.Adjuster("gce", class_counts=[5, 5, 5, 5]).double()
    with torch.no_grad():
        for parameter in adjuster.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=seeded(1), dtype=torch.float64), alpha=0.1)
    lengths = torch.randint(1, 9, (20, 1), generator=seeded(2))
    ids = torch.randint(1, VOCABULARY, (20, 8), generator=seeded(3)) * (torch.arange(8) < lengths)
    labels = torch.randint(4, (20,), generator=seeded(4))
    found = {}
    for kind in ("forward", "reverse", "auto"):
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("error", narl.NarlWarning)
            torch.manual_seed(7)
            gradients = narl.hypergradient(
                model, optimizer, adjuster, (ids[:12], labels[:12]), (ids[12:], labels[12:]), tangent=kind
            )
        found[kind] = torch.cat([gradient.flatten() for gradient in gradients])
    assert found["reverse"].norm() > 0
    assert (found["forward"] - found["reverse"]).norm() < 1e-9 * found["reverse"].norm()
    assert torch.equal(found["auto"], found["forward"])


@pytest.mark.parametrize("name", NAMES)
def test_they_learn_which_word_decides(name: str) -> None:
    model = models.get(name)(vocabulary=VOCABULARY, num_classes=2, dim=32, generator=seeded())
    ids = torch.randint(4, VOCABULARY, (200, 10), generator=seeded(1))
    labels = torch.arange(200) % 2
    ids[torch.arange(200), torch.randint(10, (200,), generator=seeded(2))] = 2 + labels
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        order = torch.cat([torch.randperm(160, generator=seeded(3)) for _ in range(25)])
        for batch in torch.split(order, 40):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(ids[batch]), labels[batch]))
            optimizer.step()
    model.eval()
    assert (model(ids[160:]).argmax(dim=1) == labels[160:]).float().mean() > 0.9


def test_parameter_counts() -> None:
    windows = sum((16 * width + 1) * 7 for width in (1, 5))
    cnn = make("text_cnn", windows=[1, 5], channels=7)
    assert sum(p.numel() for p in cnn.parameters()) == 16 * VOCABULARY + windows + (14 + 1) * 4
    layer = 2 * 2 * 16 + 17 * 3 * 16 + 17 * 16 + 17 * 64 + 65 * 16
    encoder = make("text_transformer", layers=3)
    assert sum(p.numel() for p in encoder.parameters()) == 16 * VOCABULARY + 3 * layer + 2 * 16 + 17 * 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[1, VOCABULARY]]), r"token ids run from 1 to 30 but the model's vocabulary has 30"),
        (torch.tensor([[-1, 2]]), r"token ids run from -1 to 2"),
        (torch.zeros(2, 3), r"shape \(2, 3\) and type torch.float32: it takes token ids"),
        (torch.zeros(5, dtype=torch.int64), r"shape \(5,\) and type torch.int64: it takes token ids"),
        (torch.zeros(2, 0, dtype=torch.int64), r"shape \(2, 0\)"),
    ],
)
def test_what_are_no_token_ids_is_refused(name: str, ids: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(name)(ids)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("text_cnn", {"windows": ()}, r"windows must be a sequence of widths such as \(2, 3, 4\), got \(\)"),
        ("text_cnn", {"windows": 3}, "windows must be a sequence"),
        ("text_cnn", {"windows": (3, 0)}, r"windows\[1\] must be a whole number of at least 1, got 0"),
        ("text_cnn", {"channels": 0}, "channels must be a whole number of at least 1, got 0"),
        ("text_cnn", {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ("text_cnn", {"dropout": "0.5"}, r"dropout must lie in \[0, 1\), got '0.5'"),
        ("text_cnn", {"vocabulary": 1}, "vocabulary must be a whole number of at least 2, got 1"),
        ("text_transformer", {"heads": 3}, "dim must be even and a multiple of heads = 3, got 16"),
        ("text_transformer", {"dim": 5, "heads": 5}, "dim must be even and a multiple of heads = 5, got 5"),
        ("text_transformer", {"layers": 0}, "layers must be a whole number of at least 1, got 0"),
        ("text_transformer", {"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        models.get(name)(**{"vocabulary": VOCABULARY, "num_classes": 4, "dim": 16, **options})
