"""How well a run finds wrong labels: narl's score beside other ways to rank them, on data whose truth is known.

    python benchmarks/audit.py run DATA [--tasks digits penbased letter trec] [--noise …] [--methods …] [--seeds 1]
        # runs what is missing in results/audit.jsonl
    python benchmarks/audit.py show
        # prints the Markdown tables of docs/audit.md

DATA holds letter.npz and penbased.npz (arrays x and y; UCI, by way of OpenML; the first 10,000 samples) and trec.npz
(text_train, y_train, weak_train: the questions with weak labels of the WRENCH collection); the digits are
scikit-learn's. Every method trains with the defaults of `narl train`, a tenth of the samples and a clean set apart.
Wrong labels are the positive class. Seed 0 chose the score and the threshold; it is not among the seeds here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl import audit, noise
from narl.audit.verdicts import Verdicts
from narl.data.read import Columns
from narl.train import planning, session
from narl.train.environment import environment
from narl.train.record import SampleRecord
from narl.train.settings import Settings

RESULTS = Path(__file__).parent.parent / "results" / "audit.jsonl"
CLEAN = {"digits": 100, "penbased": 200, "letter": 260, "trec": 180}
NOISE = {"symmetric 40 %": 0.4, "symmetric 10 %": 0.1, "pair 30 %": 0.3, "instance 30 %": 0.3, "none": 0.0}
TASKS = [(data, kind) for data in ("digits", "penbased", "letter") for kind in NOISE]
TASKS += [("trec", "symmetric 40 %"), ("trec", "instance 30 %"), ("trec", "keyword rules")]
METHODS = ("CE", "GCE", "A-GCE")
FOLDS = 5
CROSS_VALIDATED = (("digits", "GCE"), ("penbased", "GCE"))
SCORES = ("last margin", "mean margin", "late margins", "agreement", "running margin", "last hyperparameter", "narl")
Numbers = NDArray[np.float64]


def tables(name: str, kind: str, seed: int, data: Path, scratch: Path) -> dict[str, Any]:
    """Settings that name noisy data, written to a scratch folder."""
    rate = NOISE.get(kind, 0.0)
    if name == "trec":
        found = np.load(data / "trec.npz")
        texts, true = found["text_train"], found["y_train"]
        given = found["weak_train"] if kind == "keyword rules" else noisy(kind, true, rate, embedded(texts), seed)
        path = scratch / "trec.jsonl"
        rows = zip(texts.tolist(), given.tolist(), true.tolist(), strict=True)
        path.write_text("".join(json.dumps({"text": t, "label": f"c{g}", "true": f"c{y}"}) + "\n" for t, g, y in rows))
        return {
            "data": str(path),
            "columns": Columns(label="label", true_label="true", text="text"),
            "overlap": "drop",
        }
    if name == "digits":
        from sklearn.datasets import load_digits

        x, true = load_digits(return_X_y=True)
        x = x.astype(np.float32)
    else:
        arrays = np.load(data / f"{name}.npz")
        x, true = arrays["x"][:10_000], arrays["y"][:10_000]
    path = scratch / f"{name}.npz"
    np.savez(path, x=x, y=noisy(kind, true, rate, x, seed), y_true=true)
    return {"data": str(path)}


def noisy(kind: str, true: NDArray[Any], rate: float, features: NDArray[Any], seed: int) -> NDArray[Any]:
    """Labels with noise."""
    if not rate:
        return true
    if kind.startswith("instance"):
        return np.asarray(noise.instance(true, rate, features, seed=seed))
    return np.asarray(getattr(noise, kind.split()[0])(true, rate, seed=seed))


def embedded(texts: NDArray[Any]) -> NDArray[Any]:
    """Texts as twenty numbers each."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    return np.asarray(TruncatedSVD(20, random_state=0).fit_transform(TfidfVectorizer().fit_transform(texts)))


def candidates(record: SampleRecord) -> dict[str, Numbers]:
    """Ways to rank labels by what a run recorded; low: likely wrong."""
    margins = record.read("margin").astype(np.float64)
    running = margins[0]
    for latest in margins[1:]:
        running = 0.9 * running + 0.1 * latest
    found = {
        "last margin": margins[-1],
        "mean margin": margins.mean(axis=0),
        "late margins": margins[len(margins) // 2 :].mean(axis=0),
        "agreement": (margins > 0).mean(axis=0) + 1e-6 * margins.mean(axis=0),
        "running margin": running,
    }
    return found | ({"last hyperparameter": -record.read("q", -1 + record.written)} if "q" in record.fields else {})


def ranking(score: Numbers, wrong: NDArray[np.bool_]) -> list[float]:
    """Area under the ROC curve, average precision, and the best F1 of any threshold."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    if not wrong.any():
        return []
    hits = wrong[np.argsort(score, kind="stable")].cumsum()
    best = (2 * hits / (np.arange(1, len(wrong) + 1) + wrong.sum())).max()
    return [round(float(x), 5) for x in (roc_auc_score(wrong, -score), average_precision_score(wrong, -score), best)]


def judged(verdicts: Verdicts, true: NDArray[np.int64]) -> dict[str, Any]:
    """What became of the verdicts."""
    wrong, said, found = verdicts.given != true, verdicts.noise, verdicts.wrong
    matrix = np.zeros_like(said.matrix)
    np.add.at(matrix, (true, verdicts.given), 1)
    matrix /= matrix.sum(axis=1, keepdims=True)
    covered = (said.matrix_low - 1e-9 <= matrix) & (matrix <= said.matrix_high + 1e-9)
    f1 = 2 * (found & wrong).sum() / max(found.sum() + wrong.sum(), 1)
    values = {
        "f1": f1,
        "flagged": found.mean(),
        "rate": wrong.mean(),
        "low": said.low,
        "high": said.high,
        "matrix_error": np.abs(matrix - said.matrix).sum(axis=1).mean() / 2,
        "matrix_covered": covered.mean(),
        "suggested_right": (verdicts.suggested == true).mean(),
        "given_right": 1 - wrong.mean(),
        "suggested_right_of_wrong": (verdicts.suggested[wrong] == true[wrong]).mean() if wrong.any() else None,
        "calibration_error": None if verdicts.probability is None else calibration(verdicts.probability, wrong),
        "uncalibrated_error": calibration(1 - verdicts.score, wrong),
    }
    return {name: None if value is None else round(float(value), 5) for name, value in values.items()}


def calibration(chance: Numbers, wrong: NDArray[np.bool_], bins: int = 15) -> float:
    """The expected calibration error: how far chances are from frequencies, on average."""
    place = np.minimum((chance * bins).astype(np.int64), bins - 1)
    sums = [np.bincount(place, values, minlength=bins) for values in (chance, wrong.astype(np.float64))]
    return float(np.abs(sums[0] - sums[1]).sum() / len(wrong))


def one(name: str, kind: str, method: str, seed: int, data: Path) -> dict[str, Any]:
    """Train one and judge it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = tables(name, kind, seed, data, Path(folder))
        settings = Settings(
            **asked, test="0.1", clean=str(CLEAN[name]), method=method, seed=seed, device="cpu", threads=1
        )
        plan = planning.plan(settings)
        run = Path(folder, "run")
        session.start(plan, run, tensorboard=False)
        train = plan.sets.train
        assert train.true_labels is not None
        true = train.true_labels.astype(np.int64)
        wrong = train.labels != true
        verdicts = audit.from_run(run, device="cpu")
        ranked = {kind: ranking(score, wrong) for kind, score in candidates(SampleRecord.open(run)).items()}
        ranked["narl"] = ranking(verdicts.score, wrong)
        result = {"data": name, "noise": kind, "method": method, "seed": seed, "samples": len(train), "ranked": ranked}
        result["judged"] = judged(verdicts, true)
        if (name, method) in CROSS_VALIDATED:
            folds = audit.from_folds(run, FOLDS, device="cpu")
            assert folds is not None
            result["folds"] = {"ranked": ranking(folds.score, wrong), "judged": judged(folds, true)}
    return {**result, "recipe": plan.describe()["recipe"], "environment": environment("cpu")}


def results() -> list[dict[str, Any]]:
    """What there is so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(data: Path, wanted: list[str], kinds: list[str], methods: list[str], seeds: list[int]) -> None:
    """Run what is missing."""
    done = {(row["data"], row["noise"], row["method"], row["seed"]) for row in results()}
    tasks = [task for task in TASKS if task[0] in wanted and task[1] in kinds]
    cases = [(*task, method, seed) for seed in seeds for task in tasks for method in methods]
    missing = [case for case in cases if case not in done]
    for number, case in enumerate(missing, start=1):
        row = one(*case, data)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{number} of {len(missing)}: {', '.join(map(str, case))}", flush=True)


def show() -> None:
    """The tables of docs/audit.md."""
    found = sorted(results(), key=lambda row: (*_place(row), row["seed"]))
    noisy_rows = [row for row in found if row["judged"]["rate"] > 0]
    plain = [row for row in noisy_rows if row["noise"] != "keyword rules"]
    counts = [sum(row["method"] == method for row in plain) for method in METHODS]
    heads = [f"{method} ({count} runs): AUROC | AP" for method, count in zip(METHODS, counts, strict=True)]
    print("| score | " + " | ".join(heads) + " |\n|---|" + "---|" * 2 * len(METHODS))
    for score in SCORES:
        cells = [
            _mean([r["ranked"][score][k] for r in plain if r["method"] == m and score in r["ranked"]], "{:.3f}")
            for m in METHODS
            for k in (0, 1)
        ]
        print(f"| {score} | " + " | ".join(cells) + " |")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "AUROC": lambda row: f"{row['ranked']['narl'][0]:.3f}",
        "AP": lambda row: f"{row['ranked']['narl'][1]:.3f}",
        "F1": lambda row: f"{row['judged']['f1']:.3f}",
        "best F1": lambda row: f"{row['ranked']['narl'][2]:.3f}",
        "rate": lambda row: f"{row['judged']['rate']:.1%}",
        "estimate": lambda row: "{flagged:.1%} ({low:.1%} – {high:.1%})".format(**row["judged"]),
        "suggestions right": lambda row: f"{row['judged']['suggested_right']:.1%}",
    }
    print("\n| data | noise | method | " + " | ".join(columns) + " |\n|---|---|---|" + "---|" * len(columns))
    for row in noisy_rows:
        print(
            f"| {row['data']} | {row['noise']} | {row['method']} | "
            + " | ".join(f(row) for f in columns.values())
            + " |"
        )
    inside = [row["judged"]["low"] <= row["judged"]["rate"] <= row["judged"]["high"] for row in plain]
    lost = [row["ranked"]["narl"][2] - row["judged"]["f1"] for row in plain]
    print(f"\nF1 below that of the best threshold: {_mean(lost, '{:.3f}')} (at most {max(lost, default=0):.3f})")
    print(f"rate inside its interval: {sum(inside)} of {len(inside)} runs")
    for name in ("matrix_covered", "matrix_error", "calibration_error", "uncalibrated_error"):
        print(f"{name}: {_mean([r['judged'][name] for r in plain if r['judged'][name] is not None], '{:.3f}')}")
    clean = [row["judged"]["flagged"] for row in found if not row["judged"]["rate"]]
    most = max(clean, default=0)
    print(f"flagged where nothing is wrong: {_mean(clean, '{:.3f}')} (at most {most:.3f}, {len(clean)} runs)")
    print("\n| data | noise | record: AUROC | F1 | calibration error | 5 folds: AUROC | F1 | calibration error |")
    print("|---|---|---|---|---|---|---|---|")
    for row in (row for row in noisy_rows if "folds" in row):
        pairs = [(row["ranked"]["narl"], row["judged"]), (row["folds"]["ranked"], row["folds"]["judged"])]
        cells = [f"{r[0]:.3f} | {j['f1']:.3f} | {j['calibration_error']:.3f}" for r, j in pairs]
        print(f"| {row['data']} | {row['noise']} | " + " | ".join(cells) + " |")


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return TASKS.index((row["data"], row["noise"])), METHODS.index(row["method"])


def _mean(values: list[float], form: str) -> str:
    return form.format(statistics.mean(values)) if values else "–"


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--tasks", nargs="+", default=list(CLEAN), choices=list(CLEAN))
    parser.add_argument("--noise", nargs="+", default=[*NOISE, "keyword rules"], choices=[*NOISE, "keyword rules"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    options = parser.parse_args()
    if options.what == "show":
        show()
    elif options.data is None:
        parser.error("run needs the folder of the data")
    else:
        run(options.data, options.tasks, options.noise, options.methods, options.seeds)


if __name__ == "__main__":
    main()
