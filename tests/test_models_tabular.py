"""The model of tables: against a loop over rows, exact hypergradients, what unknown values do, errors."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import narl
from narl import models
from narl.errors import DataError, OptionError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int, numbers: int, cardinalities: list[int], seed: int = 1) -> Tensor:
    generator = seeded(seed)
    codes = [torch.randint(count, (n, 1), generator=generator) for count in cardinalities]
    return torch.cat((torch.randn(n, numbers, generator=generator), *codes), dim=1)


@pytest.mark.parametrize(("numbers", "cardinalities"), [(3, [2, 120]), (4, []), (0, [5, 1])])
def test_it_computes_what_the_written_out_network_computes(numbers: int, cardinalities: list[int]) -> None:
    model = models.tabular(numbers, cardinalities, 3, hidden=(8, 6), generator=seeded()).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=seeded(2), dtype=torch.float64), alpha=0.1)
        tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
        assert [tuple(t.shape) for t in tables] == [(c, min(50, math.ceil(c / 2))) for c in cardinalities]
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        x = rows(7, numbers, cardinalities).double()
        expected = []
        for row in x:
            values = torch.cat([row[:numbers], *(t[int(c)] for t, c in zip(tables, row[numbers:], strict=True))])
            for layer in linear[:-1]:
                values = (layer.weight @ values + layer.bias).clamp(min=0)
            expected.append(linear[-1].weight @ values + linear[-1].bias)
        torch.testing.assert_close(model(x), torch.stack(expected))


def test_no_column_drowns_the_others_at_the_beginning() -> None:
    model = models.tabular(1, [40, 2000], 2, generator=seeded())
    for table in (m for m in model.modules() if isinstance(m, nn.Embedding)):
        assert float(table.weight.detach()[1:].square().sum(dim=1).mean()) == pytest.approx(1, abs=0.2)


def test_an_unseen_value_adds_nothing_until_it_is_learned() -> None:
    model = models.tabular(2, [6], 3, dropout=0.0, generator=seeded())
    numbers_only = torch.tensor([[0.3, -0.7, 0.0]])
    first = model.get_submodule("layer1.0")
    assert isinstance(first, nn.Linear)
    features = model.get_submodule("columns")(numbers_only)
    torch.testing.assert_close(first(features), numbers_only[:, :2] @ first.weight[:, :2].T + first.bias)
    model(numbers_only).square().sum().backward()
    table = model.get_submodule("columns.embeddings.0")
    assert isinstance(table, nn.Embedding)
    assert table.weight.grad is not None
    assert table.weight.grad[0].any()  # missing values may mean something


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_hypergradients_are_exact_by_forward_mode(dropout: float) -> None:
    model = models.tabular(4, [3, 7], 3, hidden=(16, 16), dropout=dropout, generator=seeded()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    adjuster = narl.Adjuster("sl", class_counts=[5, 5, 5]).double()
    with torch.no_grad():
        for parameter in adjuster.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=seeded(1), dtype=torch.float64), alpha=0.1)
    x, labels = rows(20, 4, [3, 7]).double(), torch.randint(3, (20,), generator=seeded(4))
    found = {}
    for kind in ("forward", "reverse", "auto"):
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("error", narl.NarlWarning)
            torch.manual_seed(7)
            gradients = narl.hypergradient(
                model, optimizer, adjuster, (x[:12], labels[:12]), (x[12:], labels[12:]), tangent=kind
            )
        found[kind] = torch.cat([gradient.flatten() for gradient in gradients])
    assert found["reverse"].norm() > 0
    assert (found["forward"] - found["reverse"]).norm() < 1e-9 * found["reverse"].norm()
    assert torch.equal(found["auto"], found["forward"])


def test_it_learns_what_only_two_categories_together_tell() -> None:
    x = rows(400, 1, [4, 4], seed=5)
    labels = ((x[:, 1] > 1) ^ (x[:, 2] > 1)).long()
    model = models.tabular(1, [4, 4], 2, hidden=(32, 32), dropout=0.0, generator=seeded())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    order = torch.cat([torch.randperm(300, generator=seeded(3)) for _ in range(15)])
    for batch in torch.split(order, 50):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), labels[batch]))
        optimizer.step()
    model.eval()
    assert (model(x[300:]).argmax(dim=1) == labels[300:]).float().mean() > 0.95


def test_parameter_count() -> None:
    model = models.tabular(5, [3, 300], 4)
    embedded = 3 * 2 + 300 * 50
    assert sum(p.numel() for p in model.parameters()) == embedded + (57 + 1) * 256 + 257 * 256 + 257 * 4


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 3), r"shape \(2, 3\): it takes one row a sample, 2 numbers, then 2 category codes"),
        (torch.zeros(4), r"shape \(4,\)"),
        (torch.tensor([[0.0, 0.0, 1.0, 5.0]]), "category column 1 has codes from 5 to 5 but the model knows 5"),
        (torch.tensor([[0.0, 0.0, -1.0, 0.0]]), "category column 0 has codes from -1 to -1 but the model knows 3"),
        (torch.tensor([[0.0, 0.0, math.nan, 0.0]]), "category column 0 has codes from nan to nan"),
    ],
)
def test_rows_of_another_table_are_refused(x: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        models.tabular(2, [3, 5], 2)(x)


def test_no_rows_give_no_logits() -> None:
    assert models.tabular(2, [3], 4)(torch.zeros(0, 3)).shape == (0, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numbers": -1}, "numbers must be a whole number of at least 0, got -1"),
        ({"cardinalities": 3}, r"cardinalities must be a sequence of counts such as \[3, 7\], got 3"),
        ({"cardinalities": [3, 0]}, r"cardinalities\[1\] must be a whole number of at least 1, got 0"),
        ({"numbers": 0, "cardinalities": []}, "a table without columns has nothing to classify by"),
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a whole number of at least 1, got 0"),
        ({"dropout": 1}, r"dropout must lie in \[0, 1\), got 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        models.get("tabular")(**{"numbers": 2, "cardinalities": [3], "num_classes": 2, **options})
