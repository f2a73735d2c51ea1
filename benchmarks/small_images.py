"""Small images with wrong labels, drawn from CIFAR-10's training images, and whole trainings on them side by side.

    python benchmarks/small_images.py run --data cifar10.npz --adjuster FILE [--adjuster …]   # what is missing
    python benchmarks/small_images.py run --data cifar10.npz --heavy --value js:pi1=0.01 …    # 60 % wrong, other values
    python benchmarks/small_images.py show

On each of six tasks of 10 and of 80 classes, residual networks that begin alike see the same batches, one with cross
entropy, and for each loss one as its paper has it and one with each given adjuster of it. What is found here serves
to choose what is shipped: images that results are reported on are not among these, nor are CIFAR-10's test images. More
than ten classes are made by turning the images and exchanging their colours (:mod:`turned`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import turned
from judges import Judges
from narl import AdjustedLoss, losses, noise
from narl.adjuster import packs
from narl.adjuster.worth import IGNORED
from narl.bench.tables import Table
from narl.errors import UnknownNameError
from narl.train.environment import environment

RESULTS = Path(__file__).parent.parent / "results" / "small-images.jsonl"
BATCH, TESTED, SHIFT = 100, 2000, 2
MOMENTUM, DECAY = 0.9, 5e-4
Images = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Task:
    """What is trained on: which images, whose labels are wrong how, for how long, by a network how wide."""

    classes: int
    rows: int
    epochs: int
    noise: str
    rate: float
    width: int = 16
    steps: bool = True
    seed: int = 0

    @property
    def name(self) -> str:
        """For tables.

        Example:
            >>> Task(80, 8000, 20, "pair", 0.4).name
            '80 classes, pair 0.4'
        """
        return f"{self.classes} classes, " + ("right labels" if self.noise == "clean" else f"{self.noise} {self.rate}")


NOISE = (("clean", 0.0), ("symmetric", 0.4), ("pair", 0.4))
TASKS = tuple(Task(classes, 8000, 16, *kind) for classes in (10, 80) for kind in NOISE)
HEAVY = tuple(Task(80, 8000, 16, *kind) for kind in (("clean", 0.0), ("symmetric", 0.6)))
Value = tuple[str, tuple[tuple[str, float], ...]]  # a loss with other hyperparameters than its paper's


@dataclass(frozen=True, eq=False)
class Drawn:
    """A task's data: images ``(N, 3, S, S)`` from 0 to 1, the given labels, and what is tested on."""

    x: Tensor
    given: Tensor
    wrong: Tensor
    x_test: Tensor
    y_test: Tensor


def read(path: Path) -> Images:
    """CIFAR-10's training images at half their size, ``(N, 16, 16, 3)``, and what they show."""
    with np.load(path) as given:
        images, labels = given["x_train"], given["y_train"].astype(np.int64)
    half = images.reshape(len(images), 16, 2, 16, 2, 3).mean(axis=(2, 4)).round().astype(np.uint8)
    return half, labels


def draw(task: Task, source: Images) -> Drawn:
    """The task's images: up to ten classes are some of CIFAR-10's, more are ways in which these are turned."""
    rng = np.random.default_rng([task.seed, task.classes, task.rows])
    images, labels = source
    ways = max(task.classes // 10, 1)
    if task.classes < 10:
        kept = rng.permutation(10)[: task.classes]
        chosen = np.flatnonzero(np.isin(labels, kept))
        labels = np.argsort(np.argsort(kept))[np.searchsorted(np.sort(kept), labels[chosen])]
        images = images[chosen]
    rows = rng.permutation(len(images))[: task.rows + TESTED]
    images, labels = images[rows], labels[rows]
    if ways > 1:
        every = np.linspace(0, turned.QUARTERS * len(turned.COLOURS), ways, endpoint=False).astype(int)
        images, labels = turned.turned(images, labels, task.seed, every.tolist())
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255)
    y = torch.from_numpy(labels)
    x_test, y_test = x[task.rows :], y[task.rows :]
    x, y = x[: task.rows], y[: task.rows]
    given = _with_noise(task, x, y)
    return Drawn(x, given, given != y, x_test, y_test)


def _with_noise(task: Task, x: Tensor, y: Tensor) -> Tensor:
    if task.noise == "clean":
        return y.clone()
    if task.noise == "instance":
        return noise.instance(y, task.rate, x.flatten(1), task.classes, seed=task.seed)
    make: Callable[..., Tensor] = getattr(noise, task.noise)
    return make(y, task.rate, num_classes=task.classes, seed=task.seed)


class Networks:
    """Residual networks of seven convolutions that begin alike, side by side: one grouped convolution for all."""

    def __init__(self, classes: int, width: int, count: int, generator: torch.Generator, device: str) -> None:
        self.count, self.weights, self.norms = count, [], []
        self._plan = [(3, width, 1)]
        for stage, stride in ((1, 1), (2, 2), (4, 2)):
            before = self._plan[-1][1]
            self._plan += [(before, stage * width, stride), (stage * width, stage * width, 1)]
        for into, out, _ in self._plan:
            weight = torch.empty(out, into, 3, 3)
            nn.init.kaiming_normal_(weight, generator=generator)
            self.weights.append(self._for_all(weight, device))
            for start in (1.0, 0.0):
                self.weights.append(self._for_all(torch.full((out,), start), device))
            self.norms.append((torch.zeros(count * out, device=device), torch.ones(count * out, device=device)))
        head = torch.empty(4 * width, classes)
        nn.init.normal_(head, std=0.01, generator=generator)
        self.weights += [self._for_all(head[None], device), self._for_all(torch.zeros(1, 1, classes), device)]

    def _for_all(self, weight: Tensor, device: str) -> Tensor:
        return weight.repeat(self.count, *[1] * (weight.dim() - 1)).to(device).requires_grad_()

    def __call__(self, x: Tensor, training: bool = True) -> Tensor:
        """Logits, ``(count, N, c)``."""
        values = self._layer(0, x, training, relu=True)
        for block in range(1, len(self._plan), 2):
            inner = self._layer(block, values, training, relu=True)
            values = functional.relu(self._layer(block + 1, inner, training) + self._shortcut(block, values))
        pooled = values.mean(dim=(2, 3)).view(len(x), self.count, -1).transpose(0, 1).float()
        return torch.baddbmm(self.weights[-1], pooled, self.weights[-2])

    def _layer(self, number: int, x: Tensor, training: bool, relu: bool = False) -> Tensor:
        weight, gain, bias = self.weights[3 * number : 3 * number + 3]
        groups = 1 if number == 0 else self.count
        values = functional.conv2d(x, weight, stride=self._plan[number][2], padding=1, groups=groups)
        mean, variance = self.norms[number]
        values = functional.batch_norm(values, mean, variance, gain, bias, training)
        return functional.relu(values) if relu else values

    def _shortcut(self, block: int, x: Tensor) -> Tensor:
        """As it is, or every second pixel, with channels of zeros beside it, as ResNets for CIFAR-10 have it."""
        into, out, stride = self._plan[block]
        if into == out:
            return x
        parts = x[:, :, ::stride, ::stride]
        parts = parts.reshape(len(x), self.count, into, *parts.shape[2:])
        return functional.pad(parts, (0, 0, 0, 0, 0, out - into)).flatten(1, 2)


class Trainings:
    """All trainings of a task, step by step: the first with cross entropy, then each loss as it is, and adjusted.

    Args:
        task: what is trained on.
        drawn: its data.
        adjusted: by the name of a loss, the adjusted forms of it; none: only as it is.
        device: where.
        values: losses with values of their own, last.
    """

    def __init__(
        self,
        task: Task,
        drawn: Drawn,
        adjusted: Mapping[str, Sequence[AdjustedLoss]],
        device: str = "cpu",
        values: Sequence[Value] = (),
    ) -> None:
        self.task, self._device, self._values = task, device, [(losses.get(name), dict(own)) for name, own in values]
        generator = torch.Generator().manual_seed(task.seed)
        count = 1 + sum(1 + len(criteria) for criteria in adjusted.values()) + len(values)
        self._networks = Networks(task.classes, task.width, count, generator, device)
        self._losses = [(losses.get(name), len(criteria)) for name, criteria in adjusted.items()]
        rows = len(drawn.given)
        self._judges = [Judges(criteria, rows, device) if criteria else None for criteria in adjusted.values()]
        self.batches = rows // BATCH
        self.steps = task.epochs * self.batches
        mean, spread = drawn.x.mean(dim=(0, 2, 3), keepdim=True), drawn.x.std(dim=(0, 2, 3), keepdim=True)
        self._x = functional.pad((drawn.x - mean) / spread, [SHIFT] * 4).to(device)
        self._x_test, self._y_test = ((drawn.x_test - mean) / spread).to(device), drawn.y_test.to(device)
        self._given = drawn.given.to(device)
        orders = [torch.randperm(rows, generator=generator)[: self.batches * BATCH] for _ in range(task.epochs)]
        self._ids = torch.cat(orders).view(self.steps, BATCH).to(device)
        shifts = torch.randint(2 * SHIFT + 1, (self.steps, BATCH, 2), generator=generator)
        flips = torch.rand(self.steps, BATCH, generator=generator) < (0.5 if task.classes <= 10 else 0.0)
        self._shifts, self._flips = shifts.to(device), flips.to(device)
        self._rates = torch.tensor([self._rate(step) for step in range(self.steps)], device=device)
        self._progress = torch.arange(self.steps, device=device) / self.steps
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._speeds = [torch.zeros_like(weight) for weight in self._networks.weights]

    def _rate(self, step: int) -> float:
        done = step / self.steps
        if self.task.steps:
            return 0.1 if done < 2 / 3 else 0.01 if done < 5 / 6 else 0.001
        return 0.1 * (1 + math.cos(math.pi * done)) / 2

    def run(self) -> list[float]:
        """Train; the mean of each training's accuracies after the last five epochs."""
        right = []
        advance = self._advance if self._device == "cpu" else self._captured()
        for step in range(self.steps):
            for judges in self._judges:
                if judges is not None:
                    judges.turn(step / self.steps)
            advance()
            left = self.steps - 1 - step
            if left % self.batches == 0 and left < 5 * self.batches:
                right.append(self._accuracy())
        return [round(float(mean), 5) for mean in torch.stack(right).mean(0)]

    def _captured(self) -> Callable[[], None]:
        """The step as a CUDA graph; what was done to prepare it is undone."""
        for judges in self._judges:
            if judges is not None:
                judges.turn(0.0)
        changed = [*self._networks.weights, *self._speeds, *(part for pair in self._networks.norms for part in pair)]
        changed += [self._step, *(one for judges in self._judges if judges is not None for one in judges.remembered)]
        before = [tensor.detach().clone() for tensor in changed]
        apart = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):
            for _ in range(3):
                self._advance()
        torch.cuda.current_stream().wait_stream(apart)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        with torch.no_grad():
            for tensor, was in zip(changed, before, strict=True):
                tensor.copy_(was)
        return graph.replay

    def _advance(self) -> None:
        step = self._step
        ids, rate, progress = self._ids[step], self._rates[step], self._progress[step]
        labels = self._given[ids]
        with self._half():
            logits = self._networks(self._batch(ids, self._shifts[step], self._flips[step]))
        values = [losses.ce(logits[0], labels)]
        begin = 1
        for (robust, count), judges in zip(self._losses, self._judges, strict=True):
            values.append(robust(logits[begin], labels))
            if judges is not None:
                own = logits[begin + 1 : begin + 1 + count]
                values.append(judges.losses(progress, own, labels, ids))
            begin += 1 + count
        for number, (robust, own_values) in enumerate(self._values, begin):
            values.append(robust(logits[number], labels, **own_values))
        slopes = torch.autograd.grad(torch.cat(values).sum() / len(ids), self._networks.weights)
        with torch.no_grad():
            torch._foreach_mul_(self._speeds, MOMENTUM)
            torch._foreach_add_(self._speeds, slopes)
            torch._foreach_add_(self._speeds, self._networks.weights, alpha=DECAY)
            torch._foreach_sub_(self._networks.weights, torch._foreach_mul(self._speeds, rate))
            step.add_(1)

    def _batch(self, ids: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
        side = self._x_test.shape[-1]
        along = torch.arange(side, device=ids.device)
        down = shifts[:, :1] + along
        right = shifts[:, 1:] + torch.where(flips.unsqueeze(1), side - 1 - along, along)
        return self._x[ids[:, None, None], :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)

    def _half(self) -> contextlib.AbstractContextManager[Any]:
        if self._device == "cpu":
            return contextlib.nullcontext()
        return torch.autocast("cuda", torch.bfloat16)

    @torch.no_grad()
    def _accuracy(self) -> Tensor:
        with self._half():
            found = torch.cat([self._networks(part, training=False) for part in torch.split(self._x_test, 500)], dim=1)
        return (found.argmax(2) == self._y_test).double().mean(1).cpu()


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(
    source: Images,
    files: Sequence[Path],
    tasks: Sequence[Task],
    *,
    serves: str = "from",
    margin: str | None = None,
    device: str = "cpu",
    values: Sequence[Value] = (),
    noise_rate: str | None = None,
) -> None:
    """Train on tasks with what has no result there yet."""
    how = (", until" if serves == "until" else "") + HOW[margin] + ("" if noise_rate is None else ESTIMATED)
    read_from = {path: packs.read(path) for path in files}
    for task in tasks:
        known = {(row["name"], row["digest"]) for row in results() if row["task"] == asdict(task)}
        asked: dict[str, list[tuple[str, str]]] = {}
        forms: dict[str, list[AdjustedLoss]] = {}
        drawn = draw(task, source)
        counts = torch.bincount(drawn.given, minlength=task.classes)
        for path, pack in read_from.items():
            loss = pack.snapshots[0].robust_loss.name
            called = path.name.removesuffix(".safetensors")
            named = called + how, pack.digest
            if named not in known:
                asked.setdefault(loss, []).append(named)
                criterion = AdjustedLoss(
                    pack.snapshots, counts, serves=serves, margin=margin, noise_rate=noise_rate or IGNORED
                )
                forms.setdefault(loss, []).append(criterion)
        others = [value for value in values if (_called(value), "") not in known]
        if not asked and not others:
            continue
        began = time.perf_counter()
        found = iter(Trainings(task, drawn, forms, device, others).run())
        rows = [("CE", "", next(found))]
        for loss, named_ones in asked.items():
            rows += [(losses.get(loss).title, "", next(found)), *((*one, next(found)) for one in named_ones)]
        rows += [(_called(value), "", next(found)) for value in others]
        seconds = round(time.perf_counter() - began)
        with RESULTS.open("a") as file:
            for name, digest, last5 in rows:
                if (name, digest) not in known:
                    row = {"task": asdict(task), "name": name, "digest": digest, "last5": last5, "seconds": seconds}
                    file.write(json.dumps({**row, "environment": environment(device)}) + "\n")
        print(f"{task.name}, seed {task.seed}: " + ", ".join(f"{n} {100 * a:.1f}" for n, _, a in rows), flush=True)


def tables() -> list[Table]:
    """Accuracies by task, means over seeds; and what other values of a loss do where most labels are wrong."""
    by_name: dict[str, dict[str, dict[int, float]]] = {}
    for row in results():  # of a file that was made again, and of what two processes have trained, the newest counts
        task = Task(**row["task"])
        by_name.setdefault(row["name"], {}).setdefault(task.name, {})[task.seed] = 100 * row["last5"]
    heavy = {name: found for name, found in by_name.items() if HEAVY[-1].name in found}
    usual = {name: found for name, found in by_name.items() if VALUE not in name}
    note = (
        f"Test accuracy, %, mean of the last five epochs. Networks of seven convolutions, {TASKS[0].rows} images of "
        f"16 × 16 pixels, {TASKS[0].epochs} epochs."
    )
    made = [_table("Small images", usual, TASKS, note)]
    return made + ([_table("Small images, most labels wrong", heavy, HEAVY, note)] if heavy else [])


def _table(title: str, by_name: Mapping[str, dict[str, dict[int, float]]], tasks: Sequence[Task], note: str) -> Table:
    columns = [task.name for task in tasks]
    lines = []
    for name in sorted(by_name, key=_place):
        found = by_name[name]
        cells = [f"{np.mean(list(found[column].values())):.1f}" if column in found else "–" for column in columns]
        lines.append((_in_words(name), *cells))
    return Table(title, ("", *columns), tuple(lines), (note,))


VALUE = " = "  # in what a loss with values of its own is called


def _called(value: Value) -> str:
    """For results.

    Example:
        >>> _called(("js", (("pi1", 0.01),)))
        'JS, pi1 = 0.01'
    """
    name, own = value
    return ", ".join(
        [losses.get(name).title, *(f"{hyperparameter}{VALUE}{number:g}" for hyperparameter, number in own)]
    )


def _value(text: str) -> Value:
    """What the command line names.

    Example:
        >>> _value("sl:gamma1=1,gamma2=0.5")
        ('sl', (('gamma1', 1.0), ('gamma2', 0.5)))
    """
    name, _, own = text.partition(":")
    try:
        pairs = [pair.partition("=") for pair in own.split(",")]
        value = losses.get(name).name, tuple((hyperparameter, float(number)) for hyperparameter, _, number in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no loss with its values: give js:pi1=0.01 or the like") from None
    except UnknownNameError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


ESTIMATED = ", noise estimated"
HOW = {None: "", "latest": ", latest margin", "running": ", running margin", "auto": ", samples not named"}
FORMS = {
    "input=margin+progress": "nine tasks",
    "lifted": "nine tasks, margins lifted",
    "prepared": "nine tasks, prepared",
}


def _place(name: str) -> tuple[bool, str, bool, str]:
    """Cross entropy, then each loss before its adjusters."""
    loss = name.partition("-")[0].partition(",")[0]
    return name != "CE", loss.lower(), loss != name, name


def _in_words(name: str) -> str:
    """What an adjuster's file is called in tables.

    Example:
        >>> _in_words("gce-lifted, until"), _in_words("GCE"), _in_words("sl-mine")
        ('T-GCE: nine tasks, margins lifted, until', 'GCE', 'T-SL: mine')
    """
    loss, dash, form = name.partition("-")
    if not dash or VALUE in name:
        return name
    form, comma, serves = form.partition(",")
    form = form.partition("~")[0]
    return f"T-{losses.get(loss).title}: {FORMS.get(form, form)}{comma}{serves}"


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    return int(number), int(count)


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--data", type=Path, help="CIFAR-10 as npz")
    parser.add_argument("--adjuster", type=Path, action="append", default=[])
    parser.add_argument("--classes", type=int, choices=(10, 80), help="those tasks alone")
    parser.add_argument("--heavy", action="store_true", help="80 classes, right labels and 60 % wrong ones")
    parser.add_argument("--value", type=_value, action="append", default=[], metavar="LOSS:NAME=NUMBER,…")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--serves", choices=("from", "until"), default="from", help="as of AdjustedLoss")
    parser.add_argument("--margin", choices=[name for name in HOW if name], help="else as each was learned")
    parser.add_argument("--noise-rate", choices=("estimated",), help="as of AdjustedLoss")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", type=_part, default=(0, 1), metavar="K/N", help="every N-th task from the K-th")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.what == "show":
        print("\n\n".join(table.markdown() for table in tables()))
    elif given.data is None or not (given.adjuster or given.value):
        parser.error("run needs --data, and at least one --adjuster or --value")
    elif (given.heavy and given.classes == 10) or (given.value and not given.heavy):
        parser.error("--value is for --heavy, which has 80 classes")
    else:
        chosen = [task for task in (HEAVY if given.heavy else TASKS) if given.classes in (None, task.classes)]
        tasks = [replace(task, seed=seed) for seed in range(given.seeds) for task in chosen]
        torch.set_num_threads(given.threads)
        first, every = given.part
        how = {"serves": given.serves, "margin": given.margin, "device": given.device, "values": given.value}
        run(read(given.data), given.adjuster, tasks[first::every], noise_rate=given.noise_rate, **how)


if __name__ == "__main__":
    main()
