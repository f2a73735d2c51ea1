"""What narl raises. Every message names the thing, the reason and the way out.

All kinds are :class:`NarlError`, so one ``except`` catches them; each is also the built-in exception that Python users
would expect (``ValueError``, ``LookupError``, …).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NarlError(Exception):
    """Base of everything that narl raises on purpose."""


class LogitsError(NarlError, ValueError):
    """Class scores of the wrong shape or type, or with NaN or infinity in them."""


class LabelError(NarlError, ValueError):
    """Labels of the wrong type or shape, or outside ``0 … c - 1``."""


class HyperparameterError(NarlError, ValueError):
    """A loss's hyperparameter outside its range, or of a shape that does not fit the batch."""


class ClassCountsError(NarlError, ValueError):
    """Class counts that are not counts, or that don't fit the number of classes."""


class SampleIdsError(NarlError, ValueError):
    """Sample ids missing where they are needed, or not usable as ids."""


class UnknownNameError(NarlError, LookupError):
    """A name that is not registered."""


class DuplicateNameError(NarlError, ValueError):
    """A name that is registered already."""


class AdjusterFileError(NarlError, OSError):
    """A file that cannot be read or written as an adjuster."""


class CleanBatchError(NarlError, ValueError):
    """A clean batch that is empty or not a pair of inputs and labels."""


class ModelOutputError(NarlError, TypeError):
    """A model whose output is not one row of class scores a sample."""


class OptimizerError(NarlError, ValueError):
    """An optimiser that doesn't belong to the model, or whose update has no known derivative."""


class TangentError(NarlError, RuntimeError):
    """A model that the asked-for kind of tangent pass cannot differentiate."""


class NonFiniteError(NarlError, ArithmeticError):
    """A loss or a gradient became NaN or infinite."""


class NoiseError(NarlError, ValueError):
    """A noise rate, class map or transition matrix that makes no sense."""


class OptionError(NarlError, ValueError):
    """An argument outside the values it can take."""


class DataError(NarlError, ValueError):
    """Data that cannot be read as samples with labels: a file, a column, a row or an image that is not as it should."""


class OverlapError(NarlError, ValueError):
    """The same sample in two of the training, clean and test sets."""


class RunFolderError(NarlError, OSError):
    """A run folder that exists already, cannot be written, or is not one."""


class CheckpointError(NarlError, OSError):
    """A checkpoint that is truncated, changed or of another run."""


class ConfigError(NarlError, ValueError):
    """A configuration file that cannot be read, or with a key or value that means nothing."""


class ResultsError(NarlError, ValueError):
    """Measured results that are not there, or not as they should be."""


class MissingExtraError(NarlError, ImportError):
    """A feature whose optional packages are not installed."""


class ProcessError(NarlError, ConnectionError):
    """Processes that train together have lost each other."""


class ClusterError(NarlError, RuntimeError):
    """A cluster that is not there, does not answer, or refuses jobs."""


class AnswersError(NarlError, OSError):
    """People's answers about labels that are not there, or cannot be read or written."""


class NarlWarning(UserWarning):
    """Something that works but deserves to be known."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown ``name``: the nearest known one and the whole list.

    Example:
        >>> nearest("gcee", ["ce", "gce"])
        "did you mean 'gce'? Known: ce, gce"
    """
    names = sorted(known)
    spelling = {known_name.lower(): known_name for known_name in names}
    close = [spelling[found] for found in difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)]
    return f"did you mean {close[0]!r}? Known: {', '.join(names)}" if close else f"known: {', '.join(names)}"
