"""Draw the pictures of docs/method.md, which a reader moves on the site and which stand still anywhere else.

    python benchmarks/pictures.py

Writes SVG files and ``numbers.js`` into docs/pictures. Every number comes from ``narl.losses``, or from the adjuster of
a training in ``results/runs``; ``pictures.js`` only chooses among them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from narl import losses

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
RUN = ROOT / "results" / "runs" / "cifar-10" / "asymmetric-0.4" / "resnet32-short" / "a-gce-seed0.json"

P = [round((0.06 + 0.937 * k / 47) ** 2, 5) for k in range(48)]  # denser where curves are steep; ends below 1
STEPS = {  # the hyperparameter that the slider moves; what else the loss has is at its default
    "gce": ("q", [0.01, *(round(0.05 * k, 2) for k in range(1, 21))]),
    "js": ("pi1", [0.01, *(round(0.05 * k, 2) for k in range(1, 20)), 0.99]),
    "polysoft": ("lam", [round(0.5 * k, 1) for k in range(1, 25)]),
}
SYMBOLS = {"q": "q", "pi1": "π₁", "lam": "λ"}
NOTES = {"gce": "small: cross entropy, 1: MAE", "js": "small: cross entropy, near 1: MAE", "polysoft": "d = 2"}
FAMILIES = ("small classes", "middle classes", "large classes")
SNAPSHOTS = ("after a third of the training", "after two thirds", "at the end")


def curve(loss: str, p: Sequence[float], **hyperparameters: float) -> tuple[list[float], list[float]]:
    """A loss at the label's probabilities p, and its pull on the label's logit as a share of cross entropy's."""
    probability = torch.tensor(p, dtype=torch.float64)
    logits = torch.stack([probability.log(), (1 - probability).log()], dim=1).requires_grad_()
    labels = torch.zeros(len(p), dtype=torch.int64)
    values = losses.get(loss)(logits, labels, **hyperparameters)
    return _rounded(values), _rounded(_pull(values, logits) / _pull(losses.ce(logits, labels), logits))


def _pull(values: Tensor, logits: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(values.sum(), logits)
    return slope[:, 0]


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 4) + 0.0 for value in values.detach()]  # + 0.0: no minus zero


def numbers() -> dict[str, Any]:
    """What ``numbers.js`` holds."""
    found: dict[str, Any] = {"p": P, "ce": curve("ce", P), "mae": curve("mae", P), "losses": {}}
    for loss, (name, values) in STEPS.items():
        curves = [curve(loss, P, **{name: value}) for value in values]
        found["losses"][loss] = {
            "title": losses.get(loss).title,
            "name": SYMBOLS[name],
            "note": NOTES[loss],
            "values": values,
            "loss": [values for values, _ in curves],
            "pull": [pulls for _, pulls in curves],
        }
    found["adjuster"] = learned()
    return found


def learned() -> dict[str, Any]:
    """The functions from margin to q that a training has learned, by snapshot and family."""
    run = json.loads(RUN.read_text())
    found = run["adjuster"]
    inside = [k for k, margin in enumerate(found["margins"]) if -10 <= margin <= 10]
    return {
        "margins": [round(found["margins"][k], 3) for k in inside],
        "sizes": [round(size) for size in found["centres"]],
        "families": FAMILIES,
        "snapshots": SNAPSHOTS,
        "q": [[[round(row[k], 4) for k in inside] for row in curves["q"]] for curves in found["curves"]],
    }


@dataclass(frozen=True)
class Panel:
    """Axes of one drawing. ``pictures.js`` reads their ranges from the file."""

    name: str
    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_title: str
    y_title: str

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 260, 50, 10, 26, 44

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point stands in the drawing."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.WIDTH - self.LEFT - self.RIGHT)
        up = (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.HEIGHT - self.TOP - self.BOTTOM)
        return round(self.LEFT + across, 1), round(self.HEIGHT - self.BOTTOM - up, 1)

    def line(self, x: Sequence[float], y: Sequence[float], kind: str) -> str:
        """A curve, cut off at the frame."""
        points = " ".join(f"{a:g},{b:g}" for a, b in (self.at(*point) for point in zip(x, y, strict=True)))
        return f'<polyline class="{kind}" clip-path="url(#{self.name}-frame)" points="{points}"/>'

    def words(self, x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
        """A word at a place in the axes' units."""
        a, b = self.at(x, y)
        return f'<text class="{kind}" x="{a:g}" y="{b:g}" text-anchor="{anchor}">{text}</text>'

    def svg(self, description: str, contents: Sequence[str]) -> str:
        """The file."""
        left, bottom = self.at(self.x[0], self.y[0])
        right, top = self.at(self.x[1], self.y[1])
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="narl-picture" data-panel="{self.name}" '
            f'data-x="{self.x[0]:g} {self.x[1]:g}" data-y="{self.y[0]:g} {self.y[1]:g}" '
            f'data-frame="{left:g} {right:g} {bottom:g} {top:g}" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
            f'role="img" aria-labelledby="{self.name}-title {self.name}-text">',
            f'<title id="{self.name}-title">{self.title}</title>',
            f'<desc id="{self.name}-text">{description}</desc>',
            f"<style>{STYLE}</style>",
            f'<clipPath id="{self.name}-frame"><rect x="{left:g}" y="{top:g}" width="{right - left:g}" '
            f'height="{bottom - top:g}"/></clipPath>',
            f'<text class="head" x="{left:g}" y="14">{self.title}</text>',
        ]
        for tick in self.x_ticks:
            a, _ = self.at(tick, self.y[0])
            parts.append(f'<line class="grid" x1="{a:g}" y1="{bottom:g}" x2="{a:g}" y2="{top:g}"/>')
            parts.append(f'<text x="{a:g}" y="{bottom + 15:g}" text-anchor="middle">{_number(tick)}</text>')
        for tick in self.y_ticks:
            _, b = self.at(self.x[0], tick)
            parts.append(f'<line class="grid" x1="{left:g}" y1="{b:g}" x2="{right:g}" y2="{b:g}"/>')
            parts.append(f'<text x="{left - 6:g}" y="{b + 4:g}" text-anchor="end">{_number(tick)}</text>')
        middle = (left + right) / 2
        parts.append(f'<text x="{middle:g}" y="{self.HEIGHT - 8}" text-anchor="middle">{self.x_title}</text>')
        across = (top + bottom) / 2
        parts.append(
            f'<text transform="translate(11 {across:g}) rotate(-90)" text-anchor="middle">{self.y_title}</text>'
        )
        return "\n".join([*parts, *contents, "</svg>", ""])


STYLE = (
    ".narl-picture{color:#222;--narl-a:#0072b2;--narl-b:#b34d00;--narl-c:#00795a}"
    "@media(prefers-color-scheme:dark){.narl-picture{color:#ddd;--narl-a:#6ab8ee;--narl-b:#f0a35e;--narl-c:#4fd0a5}}"
    ".narl-picture text{font:12px system-ui,sans-serif;fill:currentColor}.narl-picture .head{font-weight:600}"
    ".narl-picture .grid{stroke:currentColor;stroke-opacity:.14}"
    ".narl-picture polyline{fill:none;stroke:currentColor;stroke-width:1.3;stroke-opacity:.7}"
    ".narl-picture .ce{stroke-dasharray:5 3}.narl-picture .mae{stroke-dasharray:1.5 3}"
    ".narl-picture .now,.narl-picture .one,.narl-picture .two,.narl-picture .three{stroke-width:2.6;stroke-opacity:1}"
    ".narl-picture .now,.narl-picture .three{stroke:var(--narl-b)}.narl-picture .one{stroke:var(--narl-a)}"
    ".narl-picture .two{stroke:var(--narl-c)}.narl-picture .one{stroke-dasharray:7 3}"
    ".narl-picture .two{stroke-dasharray:2 3}.narl-picture text.now,.narl-picture text.three{fill:var(--narl-b)}"
    ".narl-picture text.one{fill:var(--narl-a)}.narl-picture text.two{fill:var(--narl-c)}"
    ".narl-picture text{stroke:none!important}.narl-picture .here{stroke:currentColor;stroke-width:1.5}"
)
KINDS = ("one", "two", "three")


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def pictures() -> dict[str, str]:
    """The files by name, drawn from :func:`numbers`."""
    found = numbers()
    gce = found["losses"]["gce"]
    start = gce["values"].index(0.7)
    drawn = {}
    for number, (name, title, top, ticks, y_title) in enumerate(
        [
            ("loss", "Loss of a sample", 5.0, (0, 1, 2, 3, 4, 5), "loss"),
            ("pull", "Its pull on the classifier", 1.05, (0, 0.25, 0.5, 0.75, 1), "gradient over CE's"),
        ]
    ):
        panel = Panel(
            name, title, (0, 1), (0, top), (0, 0.25, 0.5, 0.75, 1), ticks, "probability p of the label", y_title
        )
        places = {
            "loss": {"ce": (0.1, 2.55), "mae": (0.02, 0.62), "now": (0.98, 4.6)},
            "pull": {"ce": (0.02, 0.93), "mae": (0.72, 0.6), "now": (0.98, 0.06)},
        }[name]
        drawn[name] = panel.svg(
            f"{title} against the probability of its label: cross entropy (dashed), MAE (dotted) and GCE with q = 0.7.",
            [
                panel.line(found["p"], found["ce"][number], "ce"),
                panel.line(found["p"], found["mae"][number], "mae"),
                panel.line(found["p"], gce[name][start], "now"),
                panel.words(*places["ce"], "CE", "ce"),
                panel.words(*places["mae"], "MAE", "mae"),
                panel.words(*places["now"], "GCE, q = 0.7", "now", "end"),
            ],
        )
    return {**drawn, **_of_the_adjuster(found)}


def _of_the_adjuster(found: dict[str, Any]) -> dict[str, str]:
    adjuster, gce = found["adjuster"], found["losses"]["gce"]
    rows, margins = adjuster["q"][-1], adjuster["margins"]
    low = margins.index(-5.0)
    panel = Panel(
        "margin", "From margin to q", (-10, 10), (0, 1.05), (-10, -5, 0, 5, 10), (0, 0.25, 0.5, 0.75, 1),
        "margin of the label", "q",
    )  # fmt: skip
    sizes = [f"{name}, {size:,}" for name, size in zip(FAMILIES, adjuster["sizes"], strict=True)]
    here, bottom = panel.at(-5, 0)
    _, top = panel.at(-5, 1.05)
    contents = [panel.line(margins, row, kind) for row, kind in zip(rows, KINDS, strict=True)]
    contents += [
        panel.words(9.6, 0.9 - 0.11 * k, text, kind, "end")
        for k, (text, kind) in enumerate(zip(sizes, KINDS, strict=True))
    ]
    contents.append(f'<line class="here" x1="{here:g}" y1="{bottom:g}" x2="{here:g}" y2="{top:g}"/>')
    text = "q against the margin for three families of classes; the large classes alone are given a large q, below 0."
    first = panel.svg(text, contents)
    panel = Panel(
        "adjusted", "The loss that comes of it", (0, 1), (0, 5), (0, 0.25, 0.5, 0.75, 1), (0, 1, 2, 3, 4, 5),
        "probability p of the label", "loss",
    )  # fmt: skip
    values = [row[low] for row in rows]
    contents = [panel.line(found["p"], between(gce, value), kind) for value, kind in zip(values, KINDS, strict=True)]
    contents += [
        panel.words(0.98, 4.55 - 0.5 * k, f"q = {value:.2f}", kind, "end")
        for k, (value, kind) in enumerate(zip(values, KINDS, strict=True))
    ]
    text = "The loss against the probability of the label for a sample of each family with the margin −5."
    return {"margin": first, "adjusted": panel.svg(text, contents)}


def between(gce: dict[str, Any], q: float) -> list[float]:
    """GCE at any q, between the two nearest curves; ``pictures.js`` does the same."""
    values = gce["values"]
    k = max(k for k in range(len(values) - 1) if values[k] <= max(q, values[0]))
    share = (max(q, values[0]) - values[k]) / (values[k + 1] - values[k])
    return [a + share * (b - a) for a, b in zip(gce["loss"][k], gce["loss"][k + 1], strict=True)]


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / f"{name}.svg").write_text(text)
    packed = json.dumps(numbers(), ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "numbers.js").write_text(f"// Written by benchmarks/pictures.py\nwindow.narlNumbers = {packed};\n")


if __name__ == "__main__":
    main()
