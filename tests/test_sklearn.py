"""narl.NoiseAwareClassifier keeps scikit-learn's contract, and says in words what is wrong with what it is given."""

from __future__ import annotations

import pickle
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import narl
from documented import blocks, example
from narl import NoiseAwareClassifier
from narl.errors import CleanBatchError, DataError, LabelError, NarlError, NarlWarning, OptionError
from narl.integrations.sklearn.choices import methods_of
from narl.integrations.sklearn.sparse import SparseEncoder, SparsePool, SparseRows
from narl.integrations.sklearn.targets import known_of

WEIGHTS = "batches are drawn from samples: a sample of weight 2 is in one batch, two copies of it are in any two"
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
}


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [NoiseAwareClassifier(max_iter=20, hidden_layer_sizes=(64,))], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
def test_keeps_the_contract(estimator: Any, check: Any) -> None:
    if check.func.__name__ == "check_array_api_input":
        return  # of estimators that compute with other libraries' arrays: says so by a tag that this one does not set
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the checks' own
        check(estimator)


@pytest.mark.slow
def test_keeps_the_contract_by_default() -> None:
    from sklearn.utils.estimator_checks import check_estimator

    check_estimator(NoiseAwareClassifier(), expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail="raise")


@cache
def problem(rows: int = 400) -> tuple[Any, Any, Any, Any]:
    """Rows, true labels, labels of which a quarter are wrong, and which samples have been checked."""
    X, y = make_classification(
        rows, 8, n_informative=5, n_redundant=0, n_classes=3, n_clusters_per_class=1, class_sep=2.5, random_state=0
    )
    truth = np.array(["ant", "bee", "cat"])[y]
    given = np.array(["ant", "bee", "cat"])[narl.noise.symmetric(y, 0.25, 3, seed=0)]
    checked = np.arange(rows) % 9 == 0
    return X, truth, np.where(checked, truth, given), checked


def quick(**options: Any) -> NoiseAwareClassifier:
    return NoiseAwareClassifier(**{"max_iter": 15, "hidden_layer_sizes": (32,), "random_state": 0, **options})


class TestFit:
    @pytest.mark.parametrize("clean", ["none", "mask", "pair"])
    def test_says_which_labels_are_wrong(self, clean: str) -> None:
        X, truth, given, checked = problem()
        told: Any = {"none": None, "mask": checked, "pair": (X[checked], truth[checked])}[clean]
        model = quick().fit(X, given, clean=told)
        assert model.score(X, truth) > 0.85
        assert ((model.label_quality_ < 0.5) == (given != truth)).mean() > 0.85
        assert (model.suggested_labels_ == truth).mean() > 0.85 > (given == truth).mean()
        assert model.noise_matrix_.shape == (3, 3)
        assert np.allclose(model.noise_matrix_.sum(axis=1), 1)
        assert np.abs(np.diag(model.noise_matrix_) - 0.8).max() < 0.15
        assert model.predict(X).dtype == given.dtype
        assert (model.clean_scores_ == {}) == (clean == "none")
        if clean != "none":
            assert set(model.clean_scores_) == {"A-GCE", "T-SL"}
            assert model.clean_scores_[model.method_] == max(model.clean_scores_.values())
            assert (model.label_quality_[checked] == 1).all()
            assert model.audit_.probability is not None

    def test_a_learned_adjuster(self) -> None:
        X, _, given, checked = problem()
        model = quick(adjuster="learned", options={"adjuster_lr": 0.02}).fit(X, given, clean=checked)
        assert model.method_ == "A-GCE"
        assert isinstance(model.adjuster_, narl.Adjuster)
        again = quick(adjuster=model.adjuster_).fit(X, given)
        assert again.method_ == "T-GCE"

    def test_clean_samples_are_not_trained_on(self) -> None:
        X, truth, given, _ = problem()
        wrong = given.copy()
        wrong[:9] = np.roll(truth, 1)[:9]
        rows = np.arange(45)
        model = quick().fit(X, wrong, clean=(X[rows], truth[rows]))
        assert len(model.audit_) == len(X) - 45
        assert np.array_equal(model.label_quality_[rows], (wrong == truth)[rows].astype(float))
        assert np.array_equal(model.suggested_labels_[rows], truth[rows])

    def test_the_seed_decides_and_nothing_outside_moves(self) -> None:
        X, _, given, checked = problem()
        torch.manual_seed(3)
        state, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
        first, second = (quick(max_iter=3).fit(X, given, clean=checked).predict_proba(X) for _ in range(2))
        assert np.array_equal(first, second)
        assert torch.equal(torch.get_rng_state(), state)
        assert np.array_equal(np.random.get_state()[1], numbers)  # type: ignore[index]  # noqa: NPY002
        assert not np.array_equal(
            first, quick(max_iter=3, random_state=1).fit(X, given, clean=checked).predict_proba(X)
        )

    def test_weights_move_the_boundary(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 2))
        y = np.where(rng.random(300) < 0.5, 1, 0)  # nothing to learn but the share
        heavy = quick(loss="ce").fit(X, y, sample_weight=np.where(y == 1, 9.0, 1.0)).predict_proba(X)[:, 1]
        assert heavy.mean() > 0.75
        assert abs(quick(loss="ce").fit(X, y).predict_proba(X)[:, 1].mean() - 0.5) < 0.1

    def test_weights_count_in_the_adjusted_loss(self) -> None:
        X, _, given, checked = problem()
        plain = quick(adjuster="learned", max_iter=3).fit(X, given, clean=checked)
        alike = quick(adjuster="learned", max_iter=3).fit(X, given, sample_weight=np.full(len(X), 7.0), clean=checked)
        other = quick(adjuster="learned", max_iter=3).fit(X, given, np.arange(len(X)) + 1.0, clean=checked)
        assert np.array_equal(plain.predict_proba(X), alike.predict_proba(X))
        assert not np.allclose(plain.predict_proba(X), other.predict_proba(X))

    def test_stops_early_and_keeps_the_best(self) -> None:
        X, _, given, checked = problem()
        model = quick(adjuster="learned", early_stopping=True, n_iter_no_change=2, max_iter=200)
        model.fit(X, given, clean=checked)
        best = max(
            range(model.n_iter_),
            key=lambda i: (model.history_[i]["heldout_accuracy"], -model.history_[i]["heldout_loss"]),
        )
        assert model.n_iter_ == best + 1 + 2 < 200

    def test_verbose_writes_a_line_an_epoch(self, capsys: pytest.CaptureFixture[str]) -> None:
        X, _, given, checked = problem()
        quick(adjuster="learned", verbose=True, max_iter=2).fit(X, given, clean=checked)
        lines = capsys.readouterr().err.splitlines()
        assert [line.split("  ")[:2] for line in lines] == [["A-GCE", "epoch 1/2"], ["A-GCE", "epoch 2/2"]]
        assert "meta" in lines[0]

    def test_partial_fit_learns_from_a_stream(self) -> None:
        X, truth, given, checked = problem()
        model = quick(batch_size=20)
        clean = (X[checked], truth[checked])
        for epoch in range(6):
            for start in range(45, 400, 71):
                part = slice(start, start + 71)
                first = epoch == 0 and start == 45
                model.partial_fit(
                    X[part], given[part], ["ant", "bee", "cat"] if first else None, clean=clean if first else None
                )
                assert len(model.label_quality_) == len(given[part])
        assert model.method_ == "A-GCE"
        assert model.n_iter_ == 30
        assert model.score(X, truth) > 0.85
        copy = pickle.loads(pickle.dumps(model))
        for each in (copy, model):
            each.partial_fit(X[45:100], given[45:100])
        assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))

    def test_partial_fit_goes_on_after_fit(self) -> None:
        X, truth, given, _ = problem()
        model = quick().fit(X, given)
        before = model.score(X, truth)
        assert model.partial_fit(X[:50], given[:50]).score(X, truth) > before - 0.1


class TestInputs:
    def test_a_data_frame_with_words(self) -> None:
        import pandas as pd

        rng = np.random.default_rng(0)
        colour = rng.choice(["red", "green", "blue"], 300)
        frame = pd.DataFrame({"width": rng.normal(size=300), "colour": colour, "sold": rng.random(300) < 0.5})
        y = (colour == "red").astype(int)
        model = quick().fit(frame, y, clean=np.arange(300) < 40)
        assert model.score(frame, y) > 0.95
        assert model.feature_names_in_.tolist() == ["width", "colour", "sold"]
        assert model.n_features_in_ == 3
        frame.loc[0, "colour"] = None
        frame["colour"] = frame["colour"].astype("category")
        assert model.predict(frame).shape == (300,)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame[["colour", "width", "sold"]])
        with pytest.raises(DataError, match=r"'width' of X held numbers"):
            model.predict(frame.assign(width="wide"))

    def test_sparse_text(self) -> None:
        rng = np.random.default_rng(0)
        words = {"cat": ["cat", "mat", "purr"], "dog": ["dog", "park", "bark"], "": [f"word{i}" for i in range(30)]}
        y = ["cat", "dog"] * 60
        texts = [" ".join([*rng.choice(words[label], 2), *rng.choice(words[""], 4)]) for label in y]
        pipe = make_pipeline(TfidfVectorizer(), quick(learning_rate=0.01))
        pipe.fit(texts, y, noiseawareclassifier__clean=np.arange(120) < 8)
        assert pipe.score(texts, y) == 1
        assert (pipe.predict(["a cat on a mat"]) == ["cat"]).all()

    @pytest.mark.parametrize("adjuster", ["auto", "sl"])
    def test_sparse_rows_have_the_adjusters_for_tables(self, adjuster: str) -> None:
        for kind, data in (("text", {"table"}), ("table", {None, "table", "text"})):
            ((name, options),) = methods_of("sl", adjuster, kind, clean=False)
            assert (name, {one.data for one in options["adjusters"]}) == ("T-SL", data)

    def test_dense_and_sparse_stand_in_for_each_other(self) -> None:
        X, _, given, _ = problem()
        positive = np.abs(X)
        sparse, dense = quick(max_iter=2).fit(csr_matrix(positive), given), quick(max_iter=2).fit(positive, given)
        assert np.allclose(sparse.predict_proba(positive), sparse.predict_proba(csr_matrix(positive)))
        assert np.allclose(dense.predict_proba(positive), dense.predict_proba(csr_matrix(positive)))

    def test_rows_too_many_to_be_dense_are_made_so_by_the_batch(self) -> None:
        rows = SparseRows(csr_matrix(np.array([[0.0, 3.0], [4.0, 0.0], [0.0, 0.0]])))
        encoder = SparseEncoder.fit(rows)
        pool = SparsePool(rows, encoder, torch.device("cpu"))
        chosen = torch.tensor([2, 0])
        assert torch.equal(pool.get(chosen), encoder.encode(rows)[chosen])
        assert SparseEncoder.from_state(encoder.state()).state() == encoder.state()

    @pytest.mark.parametrize("kind", ["grey", "bytes", "channels first"])
    def test_images(self, kind: str) -> None:
        images, y = load_digits(return_X_y=True)
        images = images[:300].reshape(-1, 8, 8)
        if kind == "bytes":
            images = (images * 15).astype(np.uint8)[..., None].repeat(3, axis=3)
        if kind == "channels first":
            images = images[:, None]
        model = NoiseAwareClassifier(max_iter=2, random_state=0, augment="none").fit(images, y[:300])
        assert model.predict_proba(images[:5]).shape == (5, 10)
        assert model.n_features_in_ == np.prod(images.shape[1:])
        with pytest.raises(DataError, match="fitted on images"):
            model.predict(images[:, :, :4])

    def test_equal_contents_are_found_in_sparse_rows(self) -> None:
        rows = csr_matrix(np.array([[0.0, 3.0], [4.0, 0.0], [0.0, 3.0]]))
        from narl.integrations.sklearn.targets import Clean

        clean = Clean(SparseRows(rows[:1]), np.array([1]))
        assert known_of(SparseRows(rows), clean).tolist() == [1, -1, 1]


def test_the_page_runs() -> None:
    X, truth, given, checked = problem()
    names: dict[str, Any] = {"X": X, "y": given, "checked": checked, "X_new": X[:5]}
    for block in blocks("sklearn.md"):
        exec(block.replace("Classifier(random_state=0)", "Classifier(max_iter=15, random_state=0)"), names)
    assert (names["better"] == truth).mean() > (given == truth).mean()
    assert (given != truth)[names["suspicious"]].mean() > 0.7
    assert names["search"].best_params_["noiseawareclassifier__loss"] in ("gce", "sl")


def test_the_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    compared = example("sklearn_digits")
    kept = ("logistic regression", "narl, fixed loss")
    every = compared.classifiers(0, 10)
    monkeypatch.setattr(compared, "classifiers", lambda seed, count: {name: every[name] for name in kept})
    monkeypatch.setattr("sys.argv", ["sklearn_digits.py", "--rows", "400", "--rates", "0.2"])
    compared.main()
    assert [line.split("  ")[1] for line in capsys.readouterr().out.splitlines() if line.endswith(" s")] == list(kept)


class TestInOthersHands:
    def test_grid_search_and_cross_validation_split_the_mask(self) -> None:
        X, truth, given, checked = problem()
        search = GridSearchCV(quick(max_iter=5), {"adjuster": [None, "learned"]}, cv=2).fit(X, given, clean=checked)
        assert search.best_estimator_.score(X, truth) > 0.7
        pipe = make_pipeline(StandardScaler(), quick(max_iter=5))
        found = cross_val_predict(
            pipe, X, given, cv=2, method="predict_proba", params={"noiseawareclassifier__clean": checked}
        )
        assert found.shape == (400, 3)

    def test_metadata_routing(self) -> None:
        import sklearn

        X, _, given, checked = problem()
        with sklearn.config_context(enable_metadata_routing=True):
            pipe = make_pipeline(StandardScaler(), quick(max_iter=2).set_fit_request(clean=True))
            pipe.fit(X, given, clean=checked)
        assert pipe[-1].clean_scores_

    def test_clone_and_pickle(self) -> None:
        X, _, given, checked = problem()
        model = quick(max_iter=2, options={"every": 2}).fit(X, given, clean=checked)
        assert clone(model).get_params() == model.get_params()
        copy = pickle.loads(pickle.dumps(model))
        assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
        assert np.array_equal(copy.label_quality_, model.label_quality_)

    def test_models_of_ones_own(self) -> None:
        X, _, given, _ = problem()
        first = nn.Linear(8, 16)
        network = nn.Sequential(first, nn.ReLU(), nn.Linear(16, 3))
        before = first.weight.detach().clone()
        model = clone(quick(model=network, hidden_layer_sizes=None, max_iter=2)).fit(X, given)
        assert torch.equal(first.weight, before)
        assert not torch.equal(model.module_[0].weight, before)

        def made(in_features: int, num_classes: int) -> nn.Module:
            return nn.Linear(in_features, num_classes)

        assert isinstance(quick(model=made, hidden_layer_sizes=None, max_iter=1).fit(X, given).module_, nn.Linear)


class TestMistakes:
    def test_a_model_that_ends_in_softmax_is_noticed(self) -> None:
        X, _, given, _ = problem()
        network = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=1))
        with pytest.warns(NarlWarning, match="ended in a softmax"):
            quick(model=network, hidden_layer_sizes=None, max_iter=1).fit(X, given)

    @pytest.mark.parametrize(
        ("change", "kind", "words"),
        [
            ({"y": np.eye(3)[np.arange(400) % 3]}, LabelError, r"one-hot.*y\.argmax\(axis=1\)"),
            ({"y": np.linspace(0, 1, 400)}, ValueError, "Unknown label type"),
            ({"y": ["one"] * 400}, LabelError, "one class only"),
            ({"y": np.array(["one", 2] * 200, dtype=object)}, (ValueError, TypeError), "mix|Unknown|sort|<"),
            ({"y": ["a", "b"]}, DataError, "one label a sample"),
            ({"clean": np.ones(400, bool)}, DataError, "nothing is left to train on"),
            ({"clean": np.zeros(400, bool)}, CleanBatchError, "marks none"),
            ({"clean": np.ones(3, bool)}, CleanBatchError, "one a sample"),
            ({"clean": np.ones((5, 8))}, CleanBatchError, r"give clean=\(X, y\)"),
            ({"clean": (np.ones((2, 8)), ["ant", "bee"])}, DataError, "no sample of class 'cat'"),
            ({"clean": (np.ones((3, 8)), ["ant", "bee", "cow"])}, LabelError, "'cow', which is none of the classes"),
            ({"clean": (np.ones((3, 7)), ["ant", "bee", "cat"])}, DataError, "do not fit X"),
            ({"clean": (np.ones((4, 8)), ["ant", "bee", "cat"])}, DataError, "4 samples and 3 labels"),
            ({"y": ["ant", None] * 200}, LabelError, r"no label in 200 of 400 rows \(counted from 0: 1, …\)"),
            ({"X": np.full((400, 2), "red", dtype=object)}, DataError, r"'red': .*give pandas.DataFrame\(X\)"),
            ({"sample_weight": -np.ones(400)}, OptionError, "negative"),
            ({"sample_weight": np.ones(4)}, OptionError, "4 numbers for 400 samples"),
        ],
    )
    def test_data(self, change: dict[str, Any], kind: Any, words: str) -> None:
        X, _, given, _ = problem()
        with pytest.raises(kind, match=words):
            quick().fit(**{"X": X, "y": given, **change})

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"early_stopping": True}, "early_stopping looks at samples whose labels are right"),
            ({"adjuster": "learned"}, r"no clean set: give fit\(X, y, clean="),
            ({"adjuster": 3}, "adjuster is a int"),
            ({"loss": "gcee"}, "did you mean 'gce'"),
            ({"loss": "ce", "adjuster": narl.Adjuster("gce", [5, 5])}, "nothing|no hyperparameters"),
            ({"max_iter": 0}, "max_iter = 0"),
            ({"batch_size": 1}, "batch_size = 1"),
            ({"learning_rate": -1}, "learning_rate = -1"),
            ({"validation_fraction": 1.5}, "validation_fraction"),
            ({"optimizer": "lbfgs"}, "no optimiser is called"),
            ({"model": 7}, "model is a int"),
            ({"model": "convnet", "hidden_layer_sizes": None}, "model for images"),
            ({"options": {"Q": 1}}, "no option 'Q'"),
            ({"options": {"q": 0.5}}, "one of the fixed GCE, which loss='gce', adjuster=None asks for"),
            ({"device": "toaster"}, "cannot be used here"),
        ],
    )
    def test_parameters(self, options: dict[str, Any], words: str) -> None:
        X, _, given, _ = problem()
        with pytest.raises((NarlError, ValueError), match=words):
            quick(**options).fit(X, given)
