"""Two sets of samples as one."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from narl.data.samples import ImageFiles, Images, Inputs, Samples, Table, Texts
from narl.errors import DataError


def joined(first: Samples, second: Samples) -> Samples:
    """The samples of both, those of the first set in front.

    Args:
        first: N samples; their classes are the result's.
        second: M samples of the same classes, with ids that the first has not.

    Returns:
        N + M samples. True labels are known if the first set's are; for a sample of the second without one, its label
        is taken for true.

    Raises:
        DataError: the sets cannot be one: images of different sizes, tables of different columns.

    Example:
        >>> def samples(*texts):
        ...     inputs = Texts(np.array(texts, object))
        ...     return Samples(inputs, np.zeros(len(texts), np.int64), ("any",), np.array(texts))
        >>> joined(samples("a", "b"), samples("c")).ids.tolist()
        ['a', 'b', 'c']
    """
    true = None
    if first.true_labels is not None:
        own = second.labels if second.true_labels is None else second.true_labels
        true = np.concatenate([first.true_labels, np.where(own >= 0, own, second.labels)])
    return replace(
        first,
        inputs=_inputs(first.inputs, second.inputs),
        labels=np.concatenate([first.labels, second.labels]),
        ids=np.concatenate([first.ids, second.ids]),
        true_labels=true,
    )


def _inputs(first: Inputs, second: Inputs) -> Inputs:
    if isinstance(first, Texts) and isinstance(second, Texts):
        return Texts(np.concatenate([first.texts, second.texts]))
    if isinstance(first, Table) and isinstance(second, Table):
        return _tables(first, second)
    if isinstance(first, ImageFiles) and isinstance(second, ImageFiles):
        paths = second.paths
        if second.root != first.root:  # a whole path, put behind any folder, stays what it is
            paths = np.array([os.path.abspath(second.path(row)) for row in range(len(second))])
        return ImageFiles(first.root, np.concatenate([first.paths, paths]))
    if isinstance(first, Images) and isinstance(second, Images):
        kinds = [f"{'×'.join(map(str, one.pixels.shape[1:]))} {one.pixels.dtype}" for one in (first, second)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"images of {kinds[0]} and of {kinds[1]} cannot be one set: bring them to one size and type"
            )
        return Images(np.concatenate([first.pixels, second.pixels]))
    raise DataError(
        f"{_words(first)} and {_words(second)} cannot be one set: give both in the same form, or name samples by ids"
    )


def _tables(first: Table, second: Table) -> Table:
    for own, other in ((first.number_names, second.number_names), (first.category_names, second.category_names)):
        missing = sorted(set(own) - set(other))
        if missing:
            raise DataError(f"a table without the column {missing[0]!r} cannot be joined to one that has it: add it")
    numbers = [second.number_names.index(name) for name in first.number_names]
    categories = [second.category_names.index(name) for name in first.category_names]
    return replace(
        first,
        numbers=np.concatenate([first.numbers, second.numbers[:, numbers]]),
        categories=np.concatenate([first.categories, second.categories[:, categories]]),
    )


def _words(inputs: Inputs) -> str:
    if isinstance(inputs, ImageFiles):
        return "image files"
    return "images in arrays" if isinstance(inputs, Images) else f"{inputs.kind}s"
