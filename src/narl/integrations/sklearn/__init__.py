"""A scikit-learn classifier that trains on wrongly labelled data, and says which labels are wrong."""

from narl.integrations.sklearn.classifier import NoiseAwareClassifier

__all__ = ["NoiseAwareClassifier"]
