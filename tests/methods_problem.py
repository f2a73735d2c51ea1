"""A problem small enough to train every method on in a moment, and how to run one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import narl
from narl.models.committee import Networks
from narl.train import methods
from narl.train.methods import Method, MethodSpec, Setting

CLASSES, FEATURES, SAMPLES, BATCH = 3, 5, 48, 16
TOTAL = 9


def data(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels of which two fifths are wrong, and true labels."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(FEATURES, CLASSES, generator=generator)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    y = (x @ truth).argmax(1)
    wrong = torch.rand(SAMPLES, generator=generator) < 0.4
    return x, torch.where(wrong, (y + 1) % CLASSES, y), y


def batches(count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    x, noisy, _ = data()
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randperm(SAMPLES, generator=generator)[:BATCH] for _ in range(count)]
    return [(x[r], noisy[r], r) for r in rows]


def model_of(seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, CLASSES))


def setting_of(
    name: str | None = None,
    *,
    clean: bool = True,
    total: int = TOTAL,
    model: nn.Module | None = None,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Setting:
    """The setting, with the networks that the method of that name asks for."""
    networks = Networks() if name is None else methods.get(name).networks_for(options or {})
    seeds = iter(range(3, 100))
    model = networks.of(lambda: model_of(next(seeds))) if model is None else model
    x, noisy, true = data()

    def draw() -> tuple[Tensor, Tensor]:
        return x[:20], true[:20]

    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9),
        "class_counts": torch.bincount(noisy, minlength=CLASSES),
        "clean": draw if clean else None,
        "total_steps": total,
        "num_samples": SAMPLES,
        "generator": torch.Generator().manual_seed(5),
        "labels": noisy,
        "batch_size": BATCH,
        "epochs": total * BATCH // SAMPLES,
    }
    return Setting(**{**given, **changes})


def adjusters_of(loss: str, margin: str = "running", count: int = 3) -> list[narl.Adjuster]:
    """Snapshots with curves of their own, as if learned on data with other classes."""
    generator = torch.Generator().manual_seed(11)
    made = [narl.Adjuster(loss, [90, 80, 10, 10], margin=margin, generator=generator) for _ in range(count)]
    for adjuster in made:
        nn.init.normal_(adjuster.heads.weight, std=0.3, generator=generator)
    return made


def options_of(spec: MethodSpec) -> dict[str, Any]:
    """What a method cannot do without."""
    return {"adjusters": adjusters_of(str(spec.loss))} if spec.needs_adjuster else {}


def built(name: str, setting: Setting | None = None, **options: Any) -> Method:
    spec = methods.get(name)
    return spec.build(setting or setting_of(name, options=options), **{**options_of(spec), **options})


def shown(method: Method, x: Tensor) -> Any:
    """A batch as the loop would give it: a tuple of views, if the method wants some."""
    return tuple(x + 0.01 * number for number, _ in enumerate(method.views)) if method.views else x


def run(method: Method, some: list[tuple[Tensor, Tensor, Tensor]]) -> list[narl.StepReport]:
    return [method.step(shown(method, x), y, ids) for x, y, ids in some]


def interrupted(make: Callable[[], tuple[Setting, Method]], stop: int, total: int) -> None:
    """Assert that a run that is stopped, written down and built again ends bitwise where an uninterrupted one does."""
    setting, method = make()
    expected = run(method, batches(total))

    halted_setting, halted = make()
    run(halted, batches(total)[:stop])
    kept = copy.deepcopy(
        (halted_setting.model.state_dict(), halted_setting.optimizer.state_dict(), halted.state_dict())
    )
    assert_plain(kept[2])
    resumed_setting, resumed = make()
    resumed_setting.model.load_state_dict(kept[0])
    resumed_setting.optimizer.load_state_dict(kept[1])
    resumed.load_state_dict(kept[2])
    found = run(resumed, batches(total)[stop:])

    assert_same(resumed_setting.model.state_dict(), setting.model.state_dict())
    assert_same(resumed.state_dict(), method.state_dict())
    for ours, theirs in zip(found, expected[stop:], strict=True):
        assert_same(vars(ours), vars(theirs))


def assert_plain(tree: object) -> None:
    if isinstance(tree, dict):
        assert all(isinstance(key, (str, int)) for key in tree)
        for value in tree.values():
            assert_plain(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            assert_plain(value)
    else:
        assert tree is None or isinstance(tree, (str, int, float, bool, Tensor))


def assert_same(ours: Any, theirs: Any) -> None:
    """Bitwise, NaN equal to NaN."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.nan_to_num(123.0), theirs.nan_to_num(123.0))
    else:
        assert ours == theirs
