"""Samples with noisy labels: where they are read from, how they are held, encoded and augmented."""

from narl.data.columns import Columns
from narl.data.samples import ImageFiles, Images, Inputs, Samples, Table, Texts, Unlabelled

__all__ = ["Columns", "ImageFiles", "Images", "Inputs", "Samples", "Table", "Texts", "Unlabelled"]
