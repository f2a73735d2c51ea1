"""``narl noise``: wrong labels on purpose, with the true ones kept beside them."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narl.cli.config import ConfigFile
from narl.cli.options import Categories, Id, Ignore, Image, Label, Layout, Numbers, Text, names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from narl.data.read import Columns
    from narl.data.samples import Inputs, Samples
    from narl.noise import Realised

_RATE = "Share of labels to change: 0.4 is 40 %. For asymmetric noise: of each class that --map names."
_LABEL_ARRAYS = ("y", "Y", "labels", "label", "target", "targets")


class Kind(str, Enum):
    """Kinds of noise, as a choice on the command line."""

    symmetric = "symmetric"
    asymmetric = "asymmetric"
    pair = "pair"
    hierarchical = "hierarchical"
    instance = "instance"
    matrix = "matrix"


def noise(
    source: Annotated[
        str,
        typer.Argument(
            help="Data with labels that are right: a CSV, TSV, JSONL, Parquet or .npz file; or a folder of images, "
            "CIFAR and whatever else narl train reads.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: in the format of SOURCE; for a folder a .csv with id, label and true_label, to be "
            "used with: narl train SOURCE --labels FILE.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            help="symmetric: to any other class; asymmetric: by --map; pair: to the next class; hierarchical: within a "
            "superclass; instance: by what the sample looks like; matrix: by --matrix."
        ),
    ] = Kind.symmetric,
    rate: Annotated[float | None, typer.Option(min=0.0, max=1.0, help=_RATE, show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other wrong labels.")] = 0,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="Which class is mistaken for which: 'truck:automobile,cat:dog', a .json file, or cifar10.",
            show_default=False,
        ),
    ] = None,
    matrix: Annotated[
        Path | None,
        typer.Option(
            help="Transition matrix: .csv, .npy or .json, a row a true class, in the order of the classes.",
            show_default=False,
        ),
    ] = None,
    superclasses: Annotated[
        str | None,
        typer.Option(help='A .json file such as {"pets": ["cat", "dog"]}, or cifar100.', show_default=False),
    ] = None,
    over_all_classes: Annotated[
        bool,
        typer.Option("--over-all-classes", help="Symmetric noise that may draw the true class, as in some papers."),
    ] = False,
    layout: Layout = "auto",
    label: Label = None,
    id_column: Id = None,
    text: Text = None,
    image: Image = None,
    numbers: Numbers = None,
    categories: Categories = None,
    ignore: Ignore = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    config: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Make some labels wrong, and keep the true ones beside them.

    narl noise train.csv --out noisy.csv --rate 0.4

    narl noise photos --out labels.csv --kind asymmetric --map 'lynx:cat,wolf:coyote' --rate 0.3

    The label column gets the new labels, a column true_label the old ones (in .npz: y and y_true); all the rest stays
    as it is. narl train then reports how well it finds the wrong ones. Each label moves on its own, so the realised
    rate is near the asked one, not equal to it; the same seed gives the same labels.
    """
    from narl.cli.output import check_new, print_json
    from narl.cli.relabelling import FORMATS, TRUE_LABEL, true_name
    from narl.cli.running import told_warnings
    from narl.data.read import Columns
    from narl.noise import realised

    path = Path(source)
    same_format = path.suffix.lower() in FORMATS and not path.is_dir()
    check_new(out, overwrite=overwrite, endings=[path.suffix.lower() if same_format else ".csv"], source=path)
    _check_options(kind, rate, mapping, matrix, superclasses, over_all_classes)
    columns = Columns(
        label=label,
        id=id_column,
        text=text,
        image=image,
        numbers=names(numbers),
        categories=names(categories),
        ignore=names(ignore),
    )
    with told_warnings():
        samples, name = _read(source, layout, columns, same_format)
        noisy = _corrupted(samples, kind, rate, seed, mapping, matrix, superclasses, over_all_classes)
    found = realised(samples.labels, noisy, len(samples.classes))
    if not dry_run:
        _write(path, out, name, samples, noisy)
    done = {
        "source": source,
        "out": None if dry_run else str(out),
        "kind": kind.value,
        "rate": rate,
        "seed": seed,
        "samples": len(samples),
        "classes": list(samples.classes),
        "changed": int((noisy != samples.labels).sum()),
        "realised_rate": found.rate,
        "realised_rate_by_class": _by_class(found, samples.classes),
        "label": name or "label",
        "true_label": true_name(path, name) if name else TRUE_LABEL,
    }
    if as_json:
        print_json(done)
        return
    for line in _lines(done, out, dry_run):
        print(line)


def _check_options(
    kind: Kind, rate: float | None, mapping: str | None, matrix: Path | None, superclasses: str | None, over_all: bool
) -> None:
    """Each kind has what it needs, and nothing that it would pass over in silence."""
    from narl.errors import OptionError

    needed = {Kind.asymmetric: "--map", Kind.hierarchical: "--superclasses", Kind.matrix: "--matrix"}
    given = {"--map": mapping, "--superclasses": superclasses, "--matrix": matrix}
    examples = {
        "--map": "--map 'truck:automobile,cat:dog', or cifar10 for that data set's own",
        "--superclasses": "--superclasses FILE.json, or cifar100 for that data set's own",
        "--matrix": "--matrix FILE",
    }
    wanted = needed.get(kind)
    if wanted is not None and given[wanted] is None:
        raise OptionError(f"{kind.value} noise needs to know where labels go: give {examples[wanted]}")
    for flag, value in given.items():
        if value is not None and flag != wanted:
            raise OptionError(f"{flag} has no meaning for {kind.value} noise: leave it out, or choose another --kind")
    if over_all and kind is not Kind.symmetric:
        raise OptionError(f"--over-all-classes has no meaning for {kind.value} noise: leave it out")
    if kind is Kind.matrix and rate is not None:
        raise OptionError("--rate has no meaning for matrix noise: the matrix says how many labels move; leave it out")
    if kind is not Kind.matrix and rate is None:
        raise OptionError("how many labels shall be wrong? Give a share, such as --rate 0.4")


def _read(source: str, layout: str, columns: Columns, same_format: bool) -> tuple[Samples, str | None]:
    """The samples, and for a file to be copied the name of its label column or array."""
    from narl.cli.relabelling import TRUE_LABEL
    from narl.data.read import read_detected
    from narl.errors import DataError

    if same_format and Path(source).suffix.lower() == ".npz":
        columns = replace(columns, label=columns.label or _label_array(Path(source)))
    samples, columns = read_detected(source, part="train", layout=layout, columns=columns, ask_true_label=False)
    if samples.true_labels is not None or TRUE_LABEL in columns.ignore:
        raise DataError(
            f"{source} has true labels beside the given ones, so noise was made already: start from data without them"
        )
    if same_format and columns.label is None:
        raise DataError(f"it is not clear which array of {source} has the labels: say so with --label")
    return samples, columns.label if same_format else None


def _label_array(path: Path) -> str | None:
    """The array that has the labels; its name is then told to the reader, so that both mean the same one."""
    from narl.data.arrays import load

    arrays = load(path)
    of_parts = [form for name in _LABEL_ARRAYS for form in (f"{name}_train", f"train_{name}")]
    return next((name for name in (*of_parts, *_LABEL_ARRAYS) if name in arrays), None)


def _corrupted(
    samples: Samples,
    kind: Kind,
    rate: float | None,
    seed: int,
    mapping: str | None,
    matrix: Path | None,
    superclasses: str | None,
    over_all: bool,
) -> NDArray[np.int64]:
    from narl import noise as generators
    from narl.cli import noise_arguments as arguments

    labels, classes = samples.labels, samples.classes
    count = len(classes)
    if kind is Kind.matrix:
        assert matrix is not None
        return generators.transition(labels, arguments.matrix(matrix, classes), seed=seed)
    assert rate is not None
    if kind is Kind.asymmetric:
        assert mapping is not None
        return generators.asymmetric(labels, rate, arguments.class_map(mapping, classes), count, seed=seed)
    if kind is Kind.hierarchical:
        assert superclasses is not None
        groups = arguments.superclasses(superclasses, classes)
        return generators.hierarchical(labels, rate, groups, count, seed=seed)
    if kind is Kind.instance:
        return generators.instance(labels, rate, _looks(samples.inputs), count, seed=seed)
    if kind is Kind.pair:
        return generators.pair(labels, rate, count, seed=seed)
    return generators.symmetric(labels, rate, count, seed=seed, over_all_classes=over_all)


def _looks(inputs: Inputs) -> Any:
    """What instance noise looks at, ``(N, …)``."""
    from narl.cli.progress import Counting
    from narl.data.looks import looks
    from narl.data.samples import ImageFiles

    if not isinstance(inputs, ImageFiles):
        return looks(inputs)
    with Counting(len(inputs), "decoding images") as count:
        return looks(inputs, count)


def _write(source: Path, out: Path, label: str | None, samples: Samples, noisy: NDArray[np.int64]) -> None:
    from narl.cli.output import write_table, writing
    from narl.cli.relabelling import TRUE_LABEL, relabel

    if label is not None:
        with writing(out) as file:
            relabel(source, file, label, samples, noisy)
        return
    given, true = ([samples.classes[index] for index in labels.tolist()] for labels in (noisy, samples.labels))
    write_table(out, {"id": samples.ids.tolist(), "label": given, TRUE_LABEL: true})


def _by_class(found: Realised, classes: tuple[str, ...]) -> dict[str, float | None]:
    totals, kept = found.counts.sum(axis=1).tolist(), found.counts.diagonal().tolist()
    rates = (1 - stay / total if total else None for stay, total in zip(kept, totals, strict=True))
    return dict(zip(classes, rates, strict=True))


def _lines(done: dict[str, Any], out: Path, dry_run: bool) -> list[str]:
    from narl.data.class_labels import shortened

    asked = "" if done["rate"] is None else f"{done['rate']:.1%} asked, "
    one = done["changed"] == 1
    would = "would be" if dry_run else "is" if one else "are"
    return [
        f"{done['samples']:,} samples of {len(done['classes'])} classes: {shortened(done['classes'])}",
        f"{done['kind']} noise with seed {done['seed']}: {done['changed']:,} label{'' if one else 's'} {would} "
        f"wrong ({asked}{done['realised_rate']:.1%} realised)",
        f"{'would be written' if dry_run else 'written'} to {out}: new labels in {done['label']}, true ones in "
        f"{done['true_label']}",
    ]
