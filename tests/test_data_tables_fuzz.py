"""Whatever bytes a table file holds, reading it gives samples or an error of narl's."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narl.data.read import read, read_inputs
from narl.data.samples import Samples, Table
from narl.errors import NarlError, NarlWarning

CELL = st.sampled_from(["1", "2.5", "-3", "", "a", "b c", "nan", "inf", "é", '"', "<b>", "1_0", "x.png", "true", "01"])
ROW = st.lists(CELL, min_size=0, max_size=4).map(",".join)
NEARLY_CSV = st.tuples(
    st.sampled_from(["x,label", "text,label", "id,x,label", "a;b;y", "label", "x,label,true_label", ",x,class"]),
    st.lists(ROW, max_size=6),
).map(lambda parts: "\n".join((parts[0], *parts[1])).encode())
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NEARLY_JSONL = st.lists(
    st.dictionaries(st.sampled_from(["x", "label", "id", "text", "z"]), VALUE, max_size=4).map(json.dumps), max_size=5
).map(lambda lines: "\n".join(lines).encode())


def check(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", NarlWarning)
        path = Path(folder) / f"data{suffix}"
        path.write_bytes(content)
        refusals = []
        try:
            assert_sound(read(path))
        except NarlError as error:
            refusals.append(str(error))
        try:
            assert len(read_inputs(path)) > 0
        except NarlError as error:
            refusals.append(str(error))
        assert all(message and "\n" not in message for message in refusals)


def assert_sound(samples: Samples) -> None:
    assert len(samples) > 0
    assert len(samples.classes) == len(set(samples.classes)) >= 2
    assert len(set(samples.ids.tolist())) == len(samples)
    assert samples.labels.min() >= 0
    assert samples.labels.max() < len(samples.classes)
    assert len(samples.inputs.digests()) == len(samples)
    if isinstance(samples.inputs, Table):
        assert np.isfinite(samples.inputs.numbers).all()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | NEARLY_CSV)
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"x,label\r1,a\r\n2,b")
@example(b"label,label\n")
@example(b'"x\nlabel"')
@example(b'"x\ny",label\n,a\n1,b\n')
@example(b'x,label\n"1,a\n2,b')
def test_any_csv(content: bytes) -> None:
    check(content, ".csv")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | NEARLY_JSONL)
@example(b'{"": 1}\n')
@example(b"null\n")
@example(b'{"x": 1e999, "label": 1}\n{"x": 1, "label": 2}')
@example(b'{"x": 1, "label": 123456789012345678901234567890}\n{"x": 1, "label": 2}')
def test_any_jsonl(content: bytes) -> None:
    check(content, ".jsonl")
