"""What the paper's tables train, and CIFAR-10N: data sets, noise, models, schedules and methods, as data."""

from __future__ import annotations

from collections.abc import Sequence

from narl.bench.cells import Task
from narl.bench.protocol import SHORT, TRAINING, Protocol, Schedule
from narl.errors import UnknownNameError, nearest

ADJUSTED = ("A-GCE", "A-SL", "A-PolySoft", "A-JS")
TRANSFERRED = ("T-GCE", "T-SL", "T-PolySoft", "T-JS")
SYSTEMS = ("MentorNet", "Co-teaching", "DivideMix", "ELR+")
BOOSTED = ("A-GCE+", "A-SL+", "A-PolySoft+", "A-JS+")
FIXED = ("GCE", "SL", "PolySoft", "JS")
BASELINES = ("CE", "Forward", "MW-Net")
COMPARED = (*BASELINES, *FIXED, *ADJUSTED)


def _tasks(datasets: Sequence[str], **rates: Sequence[float]) -> tuple[Task, ...]:
    return tuple(Task(dataset, noise, rate) for dataset in datasets for noise in rates for rate in rates[noise])


_CIFARS = ("CIFAR-10", "CIFAR-100")
_LONG = {"CIFAR-10": Schedule(120, (80, 100)), "CIFAR-100": Schedule(150, (80, 120))}
_LONGER = {dataset: Schedule(300, ()) for dataset in (*_CIFARS, "CIFAR-10N")}
# As DivideMix and ELR+ were published, but for the learning rate: a cosine suits short trainings, too.
_SYSTEMS = {**TRAINING, "batch_size": 128, "learning_rate": 0.02, "schedule": "cosine"}
# As DivideMix (80 epochs, a tenth after 40) and ELR+ (learning rate 0.02, 100 epochs, a tenth after 50) were published
# for this data, both with crops of 227 pixels.
_WEB = {**TRAINING, "batch_size": 32, "clean_batch_size": 32, "learning_rate": 0.01, "image_size": 227}
_INSTANCE = {dataset: Schedule(120, (40, 80)) for dataset in _CIFARS}
# Candidates for fixed losses' hyperparameters are trained for some 5,000 steps on images.
_TUNING, _TUNING_LARGE = Schedule(10, (7, 8)), Schedule(5, (3, 4))
_CARRIED = ("CE", *FIXED, *TRANSFERRED)
_HUMAN = tuple(Task("CIFAR-10N", labels) for labels in ("aggregate", "random1", "worst"))

_ALL = (
    Protocol(
        "table1",
        "Instance-independent noise",
        _tasks(_CIFARS, symmetric=(0.0, 0.2, 0.4, 0.6), asymmetric=(0.2, 0.4)),
        COMPARED,
        "resnet32",
        _LONG,
    ),
    Protocol(
        "table2",
        "Instance-dependent noise",
        _tasks(_CIFARS, instance=(0.2, 0.3, 0.4, 0.5)),
        COMPARED,
        "resnet34",
        _INSTANCE,
    ),
    Protocol(
        "table3",
        "With mixup and consistency, against systems",
        _tasks(_CIFARS, symmetric=(0.2, 0.5, 0.8, 0.9), asymmetric=(0.4,)),
        ("DivideMix", "ELR+", *BOOSTED),
        "preact_resnet18",
        _LONGER,
        training=dict(_SYSTEMS),
    ),
    Protocol(
        "systems",
        "Boosted losses and systems",
        (*_tasks(("CIFAR-10",), symmetric=(0.2, 0.5, 0.8, 0.9), asymmetric=(0.4,)), *_HUMAN),
        ("CE", "Mixup", "Co-teaching", "ELR+", "DivideMix", "A-GCE+", "A-SL+"),
        "preact_resnet18",
        _LONGER,
        training=dict(_SYSTEMS),
    ),
    Protocol(
        "table4",
        "Labels from the web",
        (Task("mini-WebVision", "real"),),
        (*SYSTEMS, *BOOSTED),
        "timm:inception_resnet_v2",
        {"mini-WebVision": Schedule(100, (50,))},
        training=dict(_WEB),
        short=Schedule(50, (25,)),
        also=("ILSVRC12",),
        metrics=("top1", "top5"),
    ),
    Protocol(
        "table5",
        "Transferred to TinyImageNet",
        _tasks(("TinyImageNet",), symmetric=(0.0, 0.2, 0.4, 0.6), asymmetric=(0.2, 0.4)),
        (*BASELINES, *FIXED, *TRANSFERRED),
        "preact_resnet18",
        {"TinyImageNet": Schedule(120, (80, 100))},
    ),
    Protocol(
        "table6",
        "Transferred to labels that are wrong by nature",
        (Task("ANIMAL-10N", "real"), Task("Food-101N", "real")),
        ("CE", "Forward", *FIXED, *TRANSFERRED),
        "resnet34",
        {"ANIMAL-10N": Schedule(120, (80, 100)), "Food-101N": Schedule(120, (80, 100))},
        clean=0,
    ),
    Protocol(
        "cifar10n",
        "Labels by people",
        _HUMAN,
        COMPARED,
        "resnet32",
        {"CIFAR-10N": Schedule(120, (80, 100))},
        tuning=_TUNING,
    ),
    Protocol(
        "figure5",
        "60 % asymmetric noise",
        _tasks(("CIFAR-10",), asymmetric=(0.6,)),
        (*FIXED, *ADJUSTED),
        "resnet32",
        _LONG,
    ),
    Protocol(
        "figure6",
        "What adjusters give right and wrong labels",
        _tasks(("CIFAR-10",), symmetric=(0.5,)),
        ("A-GCE", "A-SL", "A-JS"),
        "resnet32",
        _LONG,
    ),
    Protocol(
        "adjusters",
        "One adjuster from nine tasks",
        _tasks(("CIFAR-10",), **dict.fromkeys(("symmetric", "asymmetric", "instance"), (0.2, 0.4, 0.6))),
        ADJUSTED,
        "resnet32",
        {},
        own=SHORT,
        shared=True,
    ),
    Protocol(
        "transfer-tinyimagenet",
        "Transferred to other images",
        _tasks(("TinyImageNet-32",), symmetric=(0.0, 0.2, 0.4, 0.6), asymmetric=(0.2, 0.4)),
        _CARRIED,
        "resnet32",
        {"TinyImageNet-32": Schedule(120, (80, 100))},
        shipped=True,
        tuning=_TUNING_LARGE,
    ),
    Protocol(
        "transfer-cifar10n",
        "Transferred to labels by people",
        _HUMAN,
        _CARRIED,
        "resnet32",
        {"CIFAR-10N": Schedule(120, (80, 100))},
        shipped=True,
        tuning=_TUNING,
    ),
    Protocol(
        "transfer-trec",
        "Transferred to questions labelled by keyword rules",
        (Task("TREC", "weak"),),
        _CARRIED,
        "text_cnn",
        {},
        own=Schedule(30, ()),
        clean=180,
        training={},
        shipped=True,
    ),
    Protocol(
        "transfer-tables",
        "Transferred to tables of numbers",
        _tasks(("letter", "penbased"), **dict.fromkeys(("symmetric", "asymmetric", "instance"), (0.4,))),
        _CARRIED,
        "tabular",
        {},
        own=Schedule(30, ()),
        clean=260,
        training={"test": "0.2"},
        shipped=True,
    ),
)

PROTOCOLS = {protocol.name: protocol for protocol in _ALL}
TRANSFER = "transfer"
BUNDLES = {TRANSFER: tuple(protocol for protocol in _ALL if protocol.shipped)}


def parts(name: str) -> tuple[Protocol, ...]:
    """The protocols that a name stands for: one, or several that are shown together.

    Example:
        >>> [protocol.name for protocol in parts("table1")], len(parts("transfer"))
        (['table1'], 4)
    """
    if name in BUNDLES:
        return BUNDLES[name]
    if name not in PROTOCOLS:
        raise UnknownNameError(f"no table is called {name!r}: {nearest(name, [*PROTOCOLS, *BUNDLES])}")
    return (PROTOCOLS[name],)


def get(name: str) -> Protocol:
    """The protocol of that name.

    Example:
        >>> get("cifar10n").tasks[-1]
        Task(dataset='CIFAR-10N', noise='worst', rate=None)
    """
    if name not in PROTOCOLS:
        raise UnknownNameError(f"no table is called {name!r}: {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
