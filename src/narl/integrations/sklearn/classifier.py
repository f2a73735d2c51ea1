"""The estimator: scikit-learn's contract around narl's training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from narl.audit.judging import judge
from narl.data.samples import Inputs
from narl.errors import DataError, LabelError
from narl.integrations.sklearn import choices, inputs, networks, targets
from narl.integrations.sklearn.training import Problem, Record, Trained, train
from narl.train import methods
from narl.train.batches import Part, mixed, steps_per_epoch
from narl.train.environment import usable_device

_STREAM_STEPS = 3000  # a stream has no length: its adjuster learns as fast as in a run of so many steps


class NoiseAwareClassifier(ClassifierMixin, BaseEstimator):
    """A neural network for labels of which some are wrong, with scikit-learn's interface.

    Given some samples whose labels are right, ``fit(X, y, clean=(X_checked, y_checked))``, the loss learns on them,
    sample by sample, how far to trust a label. Without any, ``fit(X, y)``, it is one that has learned this elsewhere: a
    shipped adjuster sets it (:func:`narl.pretrained`). After the fit it also
    says which labels look wrong: ``label_quality_`` and ``suggested_labels_``.

    X may be numbers ``(n, d)``, dense or sparse; a data frame, also with columns of words; or images ``(n, h, w)`` or
    ``(n, h, w, c)``. Numbers are standardised inside. Labels may be of any type.

    Args:
        loss: the robust loss: ``"gce"``, ``"sl"``, ``"polysoft"``, ``"js"``, or ``"ce"`` and ``"mae"``, which have
            nothing to adjust. ``"auto"``: SL with a shipped adjuster; GCE where one is learned or nothing is adjusted.
        adjuster: what sets the loss's hyperparameters. ``"learned"``: one that learns on the clean samples. None:
            nothing, they are fixed; clean samples then choose the epoch. One that was learned before: a
            :class:`narl.Adjuster`, a list of its snapshots, a file, the folder of a run, the name of a shipped one.
            ``"auto"``: the shipped adjuster, if narl has one of the loss for such data, else the loss is fixed. With
            clean samples a second network is trained, with an adjuster that learns on them, and the better one on the
            clean samples is kept. ``partial_fit`` without clean samples has the loss fixed: what is shipped was learned
            from trainings that have an end.
        options: of the method, as ``narl train --option``: ``{"q": 0.5}`` with ``loss="gce", adjuster=None``,
            ``{"adjuster_lr": 0.003}`` where an adjuster is learned; each method takes those that it has.
        model: None: a perceptron, or for images a small convolutional network; a name, as ``narl train --model``; an
            ``nn.Module``, which is copied; or a function that makes one, called with those of ``num_classes``,
            ``in_features``, ``in_channels``, ``image_size``, … that it takes. It must give raw scores, without a
            softmax.
        hidden_layer_sizes: of the perceptron; None: (256, 256), for sparse X (64,).
        max_iter: passes over the data; None: 30 (images: 60, sparse X: 10), and more for small data, until there are
            600 steps.
        batch_size: None: 100, for tables beyond 50,000 rows 1,000.
        optimizer: ``"sgd"`` or ``"adamw"``; None: by the kind of data.
        learning_rate: that half a cosine wave (images: steps) starts from; None: by the optimiser.
        weight_decay: None: by the optimiser.
        augment: how training images are varied, as ``narl train --augment``; None: cropped, coloured ones also
            flipped; ``"none"``.
        early_stopping: keep a part of the clean samples apart, end the training when the network gets no better on it,
            and take the best one.
        validation_fraction: that part's share of the clean samples.
        n_iter_no_change: passes without a better network after which to stop.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        random_state: a seed, or numpy's generator.
        verbose: write a line an epoch to standard error.

    Attributes:
        classes_: the labels, in order, ``(c,)``.
        label_quality_: of every sample of X, from 0 to 1: how well the label fits; below one half it is held for wrong.
            After ``partial_fit``: of the samples of the last call.
        suggested_labels_: the label that fits best, ``(n,)``; mostly the given one.
        noise_matrix_: estimated probability of each given label (column) by true label (row), ``(c, c)``.
        audit_: all that is known of the labels that were trained on, a :class:`narl.audit.Verdicts`.
        module_: the trained network.
        adjuster_: the learned adjuster; None where none was.
        method_: name of the method that was kept, such as ``"A-GCE"``.
        clean_scores_: accuracy on the clean samples, by method.
        history_: one record an epoch.
        n_iter_: epochs that were trained.
        n_features_in_: columns of X; of images, numbers in one.
        feature_names_in_: names of the columns, where X has names that are strings.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 2))
        >>> truth = np.where(X[:, 0] > 0, "right", "left")
        >>> y = np.where(rng.random(300) < 0.3, "left", truth)
        >>> clean = np.arange(300) < 20  # these we have checked
        >>> y[clean] = truth[clean]
        >>> classifier = NoiseAwareClassifier(max_iter=20, random_state=0).fit(X, y, clean=clean)
        >>> bool(classifier.score(X, truth) > 0.9)
        True
        >>> bool((classifier.suggested_labels_ == truth).mean() > (y == truth).mean())
        True
    """

    _state: dict[str, Any] | None
    _clean: targets.Clean | None
    history_: list[Record]

    def __init__(
        self,
        loss: str = "auto",
        *,
        adjuster: Any = "auto",
        options: Mapping[str, Any] | None = None,
        model: Any = None,
        hidden_layer_sizes: Any = None,
        max_iter: int | None = None,
        batch_size: int | None = None,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        augment: str | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.25,
        n_iter_no_change: int = 10,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.adjuster = adjuster
        self.options = options
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.augment = augment
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, clean: Any = None) -> NoiseAwareClassifier:
        """Train on X and its labels.

        Args:
            X: the samples.
            y: their labels, some of which may be wrong, ``(n,)``.
            sample_weight: how much each sample counts, ``(n,)``.
            clean: samples whose labels are right: ``(X, y)``, or which of the samples above they are, ``(n,)`` of
                booleans; the latter passes through pipelines and cross-validation. One or more of every class; ten
                are a good beginning. Samples of X that are also clean ones are not trained on.

        Returns:
            The classifier.
        """
        read, labels = self._begin(X, y, reset=True)
        self._prepare(read, targets.classes_of(labels))
        given = targets.indices_of(labels, self.classes_, "y")
        weights = targets.weights_of(sample_weight, len(given))
        targets.check_two_classes(given, weights)
        self._clean = None if clean is None else targets.clean_of(clean, self, read, given, self.classes_)
        self._train(read, given, weights)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        clean: Any = None,
    ) -> NoiseAwareClassifier:
        """Train one pass over these samples, and go on from where the last call, or ``fit``, ended.

        Numbers are standardised as the first samples were, and the learning rate stays as it is.

        Args:
            X: the samples.
            y: their labels, ``(n,)``.
            classes: all labels that there will be; the first call needs them.
            sample_weight: how much each sample counts, ``(n,)``.
            clean: as for ``fit``; it serves until another one is given.

        Returns:
            The classifier.
        """
        first = not hasattr(self, "module_")
        read, labels = self._begin(X, y, reset=first)
        if first:
            if classes is None:
                raise LabelError("classes must be given to the first call of partial_fit: all labels there will be")
            self._prepare(read, targets.classes_of(np.asarray(classes)))
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise LabelError(f"classes={classes!r} are not those of the first call, {self.classes_!r}: leave them out")
        given = targets.indices_of(labels, self.classes_, "y")
        if clean is not None:
            before, self._clean = self._clean, targets.clean_of(clean, self, read, given, self.classes_)
            self._state = None if before is None else self._state  # with the first clean set, another method begins
        self._train(read, given, targets.weights_of(sample_weight, len(given)), stream=True)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the labels, in the order of ``classes_``.

        Args:
            X: samples like those of ``fit``.

        Returns:
            ``(n, c)``, rows that sum to one.
        """
        scores = torch.from_numpy(self._scores(X))
        found: NDArray[np.float64] = scores.softmax(dim=1).numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable labels.

        Args:
            X: samples like those of ``fit``.

        Returns:
            ``(n,)``, of the type of y.
        """
        best = self._scores(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def _begin(self, X: Any, y: Any, *, reset: bool) -> tuple[Inputs, NDArray[Any]]:
        labels = targets.labels_of(y, self)
        read = inputs.read(self, X, reset=reset)
        if len(labels) != len(read):
            raise DataError(
                f"Found input variables with inconsistent numbers of samples: {[len(read), len(labels)]}; give one "
                "label a sample"
            )
        return read, labels

    def _prepare(self, read: Inputs, classes: NDArray[Any]) -> None:
        """Everything that is there before the first step."""
        if len(classes) < 2:
            raise LabelError(
                f"y has one class only, {classes.tolist()}: a classifier needs samples of two classes or more"
            )
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._encoder = inputs.fit_encoder(read)
        network = networks.build(self.model, self.hidden_layer_sizes, self._encoder, len(classes), self._seed)
        networks.check(network, self._encoder, read, len(classes), usable_device(self.device))
        self.classes_, self.module_ = classes, network
        self._state, self._clean, self.history_ = None, None, []

    def _train(
        self, read: Inputs, given: targets.Indices, weights: NDArray[np.float64] | None, *, stream: bool = False
    ) -> None:
        known = targets.known_of(read, self._clean)
        rows = np.flatnonzero(known < 0)
        fixed = stream and self._clean is None and isinstance(self.adjuster, str) and self.adjuster == choices.AUTO
        candidates = choices.methods_of(
            self.loss,
            None if fixed else self.adjuster,  # what is shipped serves by how much of a training is done
            choices.kind_of(self._encoder),
            clean=self._clean is not None,
        )
        if stream:
            candidates = candidates[-1:]  # a stream passes by once
        choices.check_options(self.options, [name for name, _ in candidates])
        device = torch.device(usable_device(self.device))

        def part(samples: Inputs, classes: targets.Indices) -> Part:
            return Part(inputs.pool_of(samples, self._encoder, device), torch.as_tensor(classes, device=device))

        begun, best = self.module_, (-np.inf, -np.inf)
        train_part = part(read.take(rows), given[rows])
        self.clean_scores_ = {}
        for name, options in candidates:
            learn, heldout = targets.parts_of(
                self._clean,
                learned_from=methods.get(name).learns_from_clean(options),
                heldout=self.validation_fraction if self.early_stopping else None,
                classes=self.classes_,
                seed=self._seed,
            )
            recipe = choices.recipe_of(self, self._encoder, name, len(rows))
            if stream:
                recipe = replace(recipe, epochs=1, schedule="constant")
            steps = None if stream else recipe.epochs * steps_per_epoch(len(rows), recipe.batch_size)
            model = (begun if stream else copy.deepcopy(begun)).to(device)
            problem = Problem(
                model=model,
                finish=self._encoder.finish,
                train=train_part,
                class_counts=np.bincount(given[rows], minlength=len(self.classes_)),
                weights=None if weights is None else torch.tensor(weights[rows], dtype=torch.float32, device=device),
                clean=None if learn is None else part(learn.inputs, learn.labels),
                heldout=None if heldout is None else part(heldout.inputs, heldout.labels),
                kind=choices.kind_of(self._encoder),
                recipe=recipe,
                options=choices.options_of(name, options, self.options, steps=steps),
                patience=int(self.n_iter_no_change) if self.early_stopping else None,
                steps=_STREAM_STEPS if stream else None,
                seed=mixed(self._seed, len(self.history_)) if self.history_ else self._seed,
            )
            done = train(problem, self._state, choices.reporter(name, recipe.epochs) if self.verbose else None)
            self.module_ = model.cpu().eval()
            score = (0.0, 0.0)
            if self._clean is not None:
                score = networks.score(self._logits(self._clean.inputs), self._clean.labels)
                self.clean_scores_[name] = score[0]
            if score > best or len(candidates) == 1:
                best, kept = score, (name, model, done)
        self.method_, self.module_, done = kept
        self._state = done.state if stream else None
        self.history_ = self.history_ + done.history
        self.n_iter_ = len(self.history_)
        self.adjuster_ = done.adjuster
        self._judge(done, given, rows, known)

    def _judge(self, done: Trained, given: targets.Indices, rows: targets.Indices, known: targets.Indices) -> None:
        """Which labels are wrong."""
        checked = None
        if self._clean is not None:
            checked = (self._logits(self._clean.inputs), self._clean.labels)
        self.audit_ = judge(
            done.evidence,
            ids=rows.astype(np.str_),
            given=given[rows],
            class_names=tuple(map(str, self.classes_.tolist())),
            clean=checked,
        )
        quality, suggested = (known == given).astype(np.float64), known.copy()
        quality[rows], suggested[rows] = self.audit_.score, self.audit_.suggested
        self.label_quality_ = quality
        self.suggested_labels_ = self.classes_[suggested]
        self.noise_matrix_ = self.audit_.noise.matrix

    def _scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return self._logits(inputs.read(self, X, reset=False))

    def _logits(self, read: Inputs) -> NDArray[np.float64]:
        device = usable_device(self.device)
        return networks.logits(self.module_, self._encoder, read, len(self.classes_), device)

    def __sklearn_tags__(self) -> Any:
        """What kinds of X it takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.input_tags.categorical = True
        return tags
