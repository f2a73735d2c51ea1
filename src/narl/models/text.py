"""Classifiers of texts, from token ids: convolutions over windows of words, or a transformer encoder."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from narl.checks import can_read
from narl.errors import DataError, OptionError
from narl.models.building import at_least, build, proper_share

_BRANCH_SCALE = 0.1


@final
class WindowMaxima(nn.Module):
    """How strongly each of some word patterns occurs anywhere in a text.

    Args:
        vocabulary: number of token ids.
        dim: numbers a word.
        windows: how many words a pattern spans, for each width.
        channels: patterns of each width.

    Shape: token ids ``(N, L)`` to ``(N, channels · number of windows)``.
    """

    def __init__(self, vocabulary: int, dim: int, windows: Sequence[int], channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, channels, window) for window in windows)

    def forward(self, ids: Tensor) -> Tensor:
        """The maxima over all windows that begin at a word; windows may reach beyond the end, where all is zero."""
        words, real = _embedded(self.embedding, ids)
        columns = words.transpose(1, 2)
        maxima = []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            reached = convolution(F.pad(columns, (0, convolution.kernel_size[0] - 1)))
            maxima.append((reached.relu() * real.unsqueeze(1)).amax(dim=2))  # never below 0, so 0 hides the padding
        return torch.cat(maxima, dim=1)


@final
class EncoderLayer(nn.Module):
    """Self-attention, then two linear layers, each on normalised values and added to what came in.

    Attention is written out because torch's fused kernels have no forward mode, which exact hypergradients use.

    Args:
        dim: numbers a word.
        heads: of the attention; divides ``dim``.
        dropout: share of each branch's values set to zero while training.

    Shape: ``(N, L, dim)`` and which positions are words ``(N, L)`` to ``(N, L, dim)``.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.queries_keys_values = nn.Linear(dim, 3 * dim)
        self.mix = nn.Linear(dim, dim)
        self.widening_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """The words, each having looked at the others."""
        attended: Tensor = x + self.dropout(self.mix(self._attended(self.attention_norm(x), real)))
        widened: Tensor = F.gelu(self.widen(self.widening_norm(attended)))
        narrowed: Tensor = self.dropout(self.narrow(widened))
        return attended + narrowed

    def calm(self) -> None:
        """Make both branches small, as is right at the beginning: the words count before what is made of them."""
        with torch.no_grad():
            for last in (self.mix, self.narrow):
                last.weight.mul_(_BRANCH_SCALE)

    def _attended(self, x: Tensor, real: Tensor) -> Tensor:
        split: Tensor = self.queries_keys_values(x).unflatten(2, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)  # each (N, heads, L, dim / heads)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1])
        # The lowest number, not -∞: a text without a word would give NaN, and its gradient with it.
        scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(scores.dtype).min)
        return (scores.softmax(dim=-1) @ values).transpose(1, 2).flatten(2)


@final
class MeanOfEncodedWords(nn.Module):
    """Words and their places, through the encoder layers, averaged over the text.

    Args:
        vocabulary: number of token ids.
        dim: numbers a word.
        heads: of each layer's attention.
        layers: number of encoder layers.
        dropout: in the layers.

    Shape: token ids ``(N, L)`` to ``(N, dim)``.
    """

    def __init__(self, vocabulary: int, dim: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids: Tensor) -> Tensor:
        """One vector a text; zero for a text without a word."""
        words, real = _embedded(self.embedding, ids)
        x = words + sinusoids(ids.shape[1], words.shape[2], like=words) / math.sqrt(words.shape[2])
        for layer in self.layers:
            x = layer(x, real)
        normed: Tensor = self.norm(x)
        return (normed * real.unsqueeze(2)).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def sinusoids(length: int, dim: int, *, like: Tensor) -> Tensor:
    r"""A fixed vector for each place in a text.

    .. math:: s_{t,i} = \sin(t\,\omega_i), \qquad s_{t,\,i + d/2} = \cos(t\,\omega_i), \qquad
              \omega_i = 10000^{-2i/d}

    Args:
        length: L.
        dim: d, even.
        like: a tensor of the wanted type and device.

    Returns:
        ``(L, d)``.

    Example:
        >>> sinusoids(2, 2, like=torch.zeros(0))
        tensor([[0.0000, 1.0000],
                [0.8415, 0.5403]])

    Reference: Vaswani et al. Attention is all you need. NeurIPS 2017, section 3.5.
    """
    rates = 10000 ** -torch.arange(0, 1, 2 / dim, dtype=like.dtype, device=like.device)
    angles = torch.arange(length, dtype=like.dtype, device=like.device).unsqueeze(1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def text_cnn(
    vocabulary: int,
    num_classes: int,
    dim: int = 128,
    windows: Sequence[int] = (2, 3, 4),
    channels: int = 100,
    dropout: float = 0.5,
    *,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""Convolutions over windows of words, the maximum over the text, one linear layer.

    .. math:: f_{w,k} = \max_t\, \operatorname{relu}\Big(b_{w,k} + \sum_{j<w} \langle W_{w,k,j},\, e_{t+j}\rangle\Big)

    over all words t of the text, with the embeddings e and zero beyond its end: the logits don't depend on how much
    padding follows. Embeddings are learned with the rest, so nothing is downloaded.

    Args:
        vocabulary: number of token ids, from 0 (padding) over 1 (unknown) to ``vocabulary - 1``.
        num_classes: c, at least 2.
        dim: numbers a word.
        windows: widths of the convolutions, in words.
        channels: of each convolution.
        dropout: share of the features set to zero while training, in ``[0, 1)``.
        generator: source of the initial weights; None means torch's global random state. Dropout draws from the
            global state, as torch's layer does.

    Returns:
        A model from token ids ``(N, L)`` of integer type and any length to logits ``(N, c)``. In host memory, ids
        outside the vocabulary are a ``DataError``.

    Raises:
        OptionError: a size that is too small or no whole number, or a dropout outside its range.

    Example:
        >>> model = text_cnn(vocabulary=1000, num_classes=6, generator=torch.Generator().manual_seed(0)).eval()
        >>> short, long = torch.tensor([[7, 3]]), torch.tensor([[7, 3, 0, 0, 0, 0, 0]])
        >>> model(long).shape
        torch.Size([1, 6])
        >>> torch.allclose(model(short), model(long), atol=1e-5)
        True

    Reference: Kim. Convolutional neural networks for sentence classification. EMNLP 2014. (There: windows of 3, 4 and
    5 words over 300 numbers a word; questions and short texts want shorter ones.)
    """
    at_least(2, vocabulary=vocabulary, num_classes=num_classes)
    at_least(1, dim=dim, channels=channels)
    if not isinstance(windows, Sequence) or not windows:
        raise OptionError(f"windows must be a sequence of widths such as (2, 3, 4), got {windows!r}")
    at_least(1, **{f"windows[{number}]": window for number, window in enumerate(windows)})
    proper_share(dropout=dropout)
    return build(
        lambda: nn.Sequential(
            OrderedDict(
                maxima=WindowMaxima(vocabulary, dim, tuple(windows), channels),
                dropout=nn.Dropout(dropout),
                head=nn.Linear(channels * len(windows), num_classes),
            )
        ),
        generator,
    )


def text_transformer(
    vocabulary: int,
    num_classes: int,
    dim: int = 128,
    heads: int = 4,
    layers: int = 2,
    dropout: float = 0.1,
    *,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    r"""A small transformer encoder, the mean over the words, one linear layer.

    .. math:: x_t = e_t + s_t / \sqrt{d}, \qquad x \leftarrow x + A(\operatorname{norm} x), \qquad
              x \leftarrow x + B(\operatorname{norm} x), \qquad f = \tfrac1T \sum_t \operatorname{norm} x_t

    with the embeddings e, the :func:`sinusoids` s, self-attention A among the words only and B of two linear layers.
    A and B begin small, so that the network begins close to a bag of words. The logits don't depend on how much
    padding follows.

    Args:
        vocabulary: number of token ids, from 0 (padding) over 1 (unknown) to ``vocabulary - 1``.
        num_classes: c, at least 2.
        dim: numbers a word, even and a multiple of ``heads``.
        heads: of the attention.
        layers: number of encoder layers.
        dropout: share of the values of each branch set to zero while training, in ``[0, 1)``.
        generator: source of the initial weights; None means torch's global random state. Dropout draws from the
            global state, as torch's layer does.

    Returns:
        A model from token ids ``(N, L)`` of integer type and any length to logits ``(N, c)``. In host memory, ids
        outside the vocabulary are a ``DataError``.

    Raises:
        OptionError: a size that is too small, no whole number or does not divide, or a dropout outside its range.

    Example:
        >>> model = text_transformer(vocabulary=1000, num_classes=6, generator=torch.Generator().manual_seed(0))
        >>> model(torch.tensor([[7, 3, 0], [1, 9, 9]])).shape
        torch.Size([2, 6])

    Reference: Vaswani et al. Attention is all you need. NeurIPS 2017. Normalised before each branch as in: Xiong et al.
    On layer normalization in the transformer architecture. ICML 2020.
    """
    at_least(2, vocabulary=vocabulary, num_classes=num_classes)
    at_least(1, dim=dim, heads=heads, layers=layers)
    if dim % 2 or dim % heads:
        raise OptionError(f"dim must be even and a multiple of heads = {heads}, got {dim}")
    proper_share(dropout=dropout)
    model = build(
        lambda: nn.Sequential(
            OrderedDict(
                encoder=MeanOfEncodedWords(vocabulary, dim, heads, layers, dropout),
                head=nn.Linear(dim, num_classes),
            )
        ),
        generator,
    )
    for layer in model.modules():
        if isinstance(layer, EncoderLayer):
            layer.calm()
    return model


def _embedded(embedding: nn.Embedding, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The words' vectors ``(N, L, dim)``, zero where there is no word, and where there is one ``(N, L)``."""
    if ids.dim() != 2 or not ids.shape[1] or ids.is_floating_point() or ids.dtype == torch.bool:
        raise DataError(
            f"a text model got a tensor of shape {tuple(ids.shape)} and type {ids.dtype}: it takes token ids, integers "
            "of shape (N, L), one row a text, 0 after its end"
        )
    if len(ids) and can_read(ids):
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= embedding.num_embeddings:
            raise DataError(
                f"token ids run from {lowest} to {highest} but the model's vocabulary has {embedding.num_embeddings}: "
                "encode the texts as the training texts were, with 1 for unknown words"
            )
    real = ids != 0
    # Not nn.Embedding's padding_idx: its reverse mode takes row 0 for constant, its forward mode does not.
    return embedding(ids) * real.unsqueeze(2), real
