"""Adjusters for texts, learned from whole trainings on real texts, half of them labelled by keyword rules.

    python benchmarks/text_adjusters.py learn sl [--generations 6] [--at-once 2]   # goes on where it was stopped
    python benchmarks/text_adjusters.py write sl --out adjusters                   # adjusters/sl-real-texts.safetensors
    python benchmarks/text_adjusters.py show

As :mod:`table_adjusters` does for tables, but with heads for classes of some sizes: rules give many texts to the class
that takes what they do not know, and what a label of such a class is worth is another matter. Learned on definitions
and packages (:mod:`real_texts`), by small networks of the kind that `narl train` has for texts; judged elsewhere, by
:mod:`text_steps`.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import whole_trainings
from judges import Judges
from narl import AdjustedLoss, losses
from narl.adjuster import packs
from narl.adjuster.packs import Pack
from narl.bench.tables import Table
from real_texts import CLASSES, OTHER_NOISE, Drawn, collection, counted, drawn
from whole_trainings import MOST, OWN, Numbers, Search, beginning, made

RESULTS = Path(__file__).parent.parent / "results" / "text-adjusters.jsonl"
LEARNED_ON = ("glosses", "packages")
CANDIDATES, ELITE, TASKS = 20, 6, 24
SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)
BATCH, DECAY, DROPPED = 100, 1e-4, 0.5
RATES = (1.5e-3, 7e-3)
DIM, CHANNELS, LONGEST = 24, 24, 16
TEXTS_SEEN = (15_000, 120_000)  # in a training: steps times BATCH
# Where the search begins, but for the hyperparameters' own numbers: near where a first one, which is not kept, came to.
BEGIN = {
    "log a": (0.5, 0.3),
    "m0": (0.0, 0.6),
    "mc": (0.0, 0.4),
    "b": (0.9, 0.8),
    "w": (2.5, 0.8),
    "wc": (-0.8, 0.4),
    "start": (0.06, 0.05),
}

SECTION = """\
## On texts

An adjuster of its own serves there, learned from whole trainings on real texts, half of them with the labels of keyword
rules: {candidates} candidates in each of {generations} generations were used on the same {tasks} freshly drawn sets of
WordNet's definitions and of Debian's lines about packages, each from the first step to the last, and the next
generation was drawn around the best of them. The first began near where a shorter search had come to, which is not
kept. The texts: {texts}.

Its heads are for classes of {sizes} times the mean class by the given labels: rules give much of
what they do not know to one class, whose labels are then worth less than others. A class gets the head whose size is
nearest to its own.

`narl train --loss {loss}` takes it on texts by itself, and `narl.AdjustedLoss.pretrained("{loss}", …, data="text")`
asks for it.

{table}
"""


class Networks:
    """Convolutions over one and two words, that begin alike and are trained side by side on the same batches."""

    def __init__(self, vocabulary: int, classes: int, count: int, generator: torch.Generator) -> None:
        def drawn_weights(*shape: int, fan: int) -> Tensor:
            weights = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan)
            return weights.repeat(count, 1, 1).requires_grad_()

        words = torch.randn(vocabulary, DIM, generator=generator)
        words[0] = 0.0  # padding
        self.words = words.repeat(count, 1).requires_grad_()
        self.one = drawn_weights(DIM, CHANNELS, fan=DIM)
        self.two = [drawn_weights(DIM, CHANNELS, fan=2 * DIM) for _ in range(2)]
        self.bias = drawn_weights(1, 2 * CHANNELS, fan=2 * DIM)
        self.head, self.level = (drawn_weights(rows, classes, fan=2 * CHANNELS) for rows in (2 * CHANNELS, 1))
        self.count, self._vocabulary, self._generator = count, vocabulary, generator

    def parameters(self) -> list[Tensor]:
        """What is trained."""
        return [self.words, self.one, *self.two, self.bias, self.head, self.level]

    def leave_padding(self) -> None:
        """Have the next step leave what padding is as it is."""
        assert self.words.grad is not None
        self.words.grad[:: self._vocabulary] = 0.0

    def __call__(self, ids: Tensor, training: bool = False) -> Tensor:
        """Logits, ``(count, N, c)``."""
        ids = ids[:, : int((ids > 0).sum(1).max())]
        rows, length = ids.shape
        of_all = (ids.flatten() + self._vocabulary * torch.arange(self.count).unsqueeze(1)).flatten()
        words = F.embedding(of_all, self.words).view(self.count, rows * length, DIM)
        reached = torch.bmm(words, torch.cat([self.one, *self.two], dim=2)).view(self.count, rows, length, -1)
        one, first, second = reached.chunk(3, dim=3)
        nowhere = torch.zeros(rows, length, 1).masked_fill_((ids == 0).unsqueeze(2), -math.inf)
        pairs = first + F.pad(second[:, :, 1:], (0, 0, 0, 1))
        found = torch.cat([(values + nowhere).max(dim=2).values for values in (one, pairs)], dim=2)
        found = (found + self.bias).relu()
        if training:
            kept = torch.rand(found.shape[1:], generator=self._generator) >= DROPPED
            found = found * kept / (1 - DROPPED)
        return torch.baddbmm(self.level, found, self.head)


def side_by_side(
    texts: Drawn,
    loss: str,
    fixed: Sequence[str],
    adjusted: Sequence[AdjustedLoss],
    epochs: int,
    rate: float,
    seed: int,
) -> list[float]:
    """Mean accuracy of the last five epochs: of trainings with cross entropy, with a loss as it is, and adjusted.

    Args:
        texts: to train and to test on.
        loss: name of the loss.
        fixed: names of losses without adjuster: ``"CE"`` and the loss's own.
        adjusted: the others; they come after the fixed ones.
        epochs: of the training.
        rate: learning rate at its beginning.
        seed: of weights and batches.
    """
    generator, robust = torch.Generator().manual_seed(seed), losses.get(loss)
    x, vocabulary = texts.encoded(LONGEST)
    given, true = torch.from_numpy(texts.given), torch.from_numpy(texts.true)
    networks = Networks(vocabulary, texts.classes, len(fixed) + len(adjusted), generator)
    optimizer = torch.optim.AdamW(networks.parameters(), lr=rate, weight_decay=DECAY, fused=True)
    judges = Judges(adjusted, texts.rows)
    steps, step, right = math.ceil(texts.rows / BATCH) * epochs, 0, []
    for epoch in range(epochs):
        for ids in torch.split(torch.randperm(texts.rows, generator=generator), BATCH):
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            labels, logits = given[ids], networks(x[ids], training=True)
            values = [
                losses.ce(logits[k], labels) if name == "CE" else robust(logits[k], labels)
                for k, name in enumerate(fixed)
            ]
            own = logits[len(fixed) :]
            judges.turn(step / steps)
            chosen = judges(torch.tensor(step / steps), own.detach(), labels, ids)
            values.append(robust(own.flatten(0, 1), labels.repeat(len(own)), **chosen))
            optimizer.zero_grad()
            torch.autograd.backward(torch.cat(values).sum() / len(ids))
            networks.leave_padding()
            optimizer.step()
            step += 1
        if epochs - epoch <= 5:
            with torch.no_grad():
                said = torch.cat([networks(part).argmax(2) for part in torch.split(x[texts.rows :], 500)], dim=1)
            right.append((said == true[texts.rows :]).double().mean(1))
    return [round(float(mean), 5) for mean in torch.stack(right).mean(0)]


Job = tuple[str, list[Numbers], int]


def task(rng: np.random.Generator) -> tuple[str, str, int, int, int, float]:
    """A collection, what labels, how many classes and texts, for how many epochs, and at which learning rate."""
    seen, rate = (low * (high / low) ** rng.random() for low, high in (TEXTS_SEEN, RATES))
    rows = int(rng.integers(1000, 5000))
    kind = "rules" if rng.random() < 0.5 else str(rng.choice(OTHER_NOISE))
    return str(rng.choice(LEARNED_ON)), kind, int(rng.choice(CLASSES)), rows, max(6, round(seen / rows)), rate


def worth(job: Job) -> dict[str, Any]:
    """What trainings on some texts are worth: with cross entropy, with the fixed loss, and with each candidate."""
    torch.set_num_threads(1)
    loss, candidates, seed = job
    rng = np.random.default_rng(seed)
    name, kind, classes, rows, epochs, rate = task(rng)
    texts = drawn(collection(name), rng, kind, classes, rows)
    counts = torch.bincount(torch.from_numpy(texts.given[: texts.rows]), minlength=classes)
    criteria = [AdjustedLoss(made(loss, numbers, SIZES), counts) for numbers in candidates]
    last5 = side_by_side(texts, loss, ["CE", losses.get(loss).title], criteria, epochs, rate, seed)
    return {"noise": "clean" if kind == "right" else kind, "classes": classes, "last5": last5}


def search(loss: str) -> Search:
    """The search for a loss's numbers."""
    begin = beginning(loss, by_size=True)
    begin |= {name: (*found, *begin[name][2:]) for name, found in BEGIN.items()}
    return Search(loss, RESULTS, begin, CANDIDATES, ELITE, over_both=True, least=-2 * MOST)


def learn(loss: str, generations: int, at_once: int) -> None:
    """Make the generations that are missing."""
    with multiprocessing.Pool(at_once) as pool:
        search(loss).learn(generations, functools.partial(_on_texts, pool, loss), "cpu")


def _on_texts(
    pool: Any, loss: str, generation: int, candidates: list[Numbers], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """What the candidates of a generation are worth on its texts."""
    jobs: list[Job] = [(loss, candidates, int(rng.integers(10**9))) for _ in range(TASKS)]
    found = []
    for row in pool.imap(worth, jobs):
        found.append(row)
        if len(found) % 6 == 0:
            print(f"{loss}, generation {generation}: {len(found)} of {TASKS} sets of texts", flush=True)
    return found


def write(loss: str, out: Path) -> Path:
    """The file of what the newest generation came to, to serve on texts."""
    done = search(loss).results()
    if not done:
        raise SystemExit(f"nothing was learned of {loss} yet: text_adjusters.py learn {loss}")
    out.mkdir(parents=True, exist_ok=True)
    snapshots = made(loss, done[-1]["mean"], SIZES)
    for snapshot in snapshots:
        snapshot.data = "text"
    words = (
        "WordNet's definitions and Debian's packages, 2 to 15 classes: labels by rules; right; symmetric and pair noise"
    )
    section = SECTION.format(
        candidates=CANDIDATES,
        generations=len(done),
        tasks=TASKS,
        texts=", ".join(map(counted, LEARNED_ON)),
        sizes=", ".join(f"{size:g}" for size in SIZES),
        loss=loss,
        table=_table("Each generation on texts of its own", whole_trainings.lines_of(loss, done)).markdown(),
    )
    path = out / f"{loss}-real-texts.safetensors"
    packs.write(path, Pack(snapshots, trained_on=words, about={"section": section}))
    return path


def tables() -> list[Table]:
    """How the search went."""
    lines = [line for loss in OWN for line in whole_trainings.lines_of(loss, search(loss).results())]
    return [_table("Adjusters for texts, learned from whole trainings", lines)]


def _table(title: str, lines: Sequence[tuple[str, ...]]) -> Table:
    return whole_trainings.table(title, lines, f"{TASKS} sets of texts")


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("learn", "write", "show"))
    parser.add_argument("loss", nargs="?", choices=tuple(OWN))
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("adjusters"))
    given = parser.parse_args()
    if given.loss is None and given.what != "show":
        parser.error(f"{given.what} needs a loss: one of {', '.join(OWN)}")
    if given.what == "learn":
        learn(given.loss, given.generations, given.at_once)
    elif given.what == "write":
        print(write(given.loss, given.out))
    else:
        print("\n\n".join(table.markdown() for table in tables()))


if __name__ == "__main__":
    main()
