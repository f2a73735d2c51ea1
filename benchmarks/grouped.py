"""How fast the convolutions of several networks side by side are, in several ways, on a GPU.

    python benchmarks/grouped.py [--networks 8]

A stack of networks is one network with grouped convolutions. Groups of 16 channels are narrower than what a GPU
multiplies well. Some networks' groups can be merged into one by filters that are zero where one network would see
another's channels: more is multiplied, by faster kernels. ResNet-32's three stages, batch 100, bfloat16, channels last:
microseconds for a convolution, for its gradient by the input and by the filters, with so many networks in a group.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

STAGES = ((16, 32), (32, 16), (64, 8))


def merged(weight: Tensor, networks: int, in_a_group: int) -> Tensor:
    """Filters ``(R·O, I, k, k)`` for as many networks in a group, ``(R·O, m·I, k, k)``.

    Example:
        >>> x, weight = torch.randn(2, 8, 5, 5), torch.randn(8, 2, 3, 3)
        >>> apart = functional.conv2d(x, weight, groups=4)
        >>> torch.allclose(functional.conv2d(x, merged(weight, 4, 2), groups=2), apart, atol=1e-5)
        True
    """
    out = len(weight) // networks
    apart = weight.view(networks // in_a_group, in_a_group, out, *weight.shape[1:])
    own = torch.eye(in_a_group, dtype=weight.dtype, device=weight.device).view(1, in_a_group, 1, in_a_group, 1, 1, 1)
    return (apart.unsqueeze(3) * own).reshape(len(weight), in_a_group * weight.shape[1], *weight.shape[2:])


def seconds(work: Callable[[], object], times: int = 30) -> float:
    """Of one call, in a CUDA graph of many."""
    for _ in range(3):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()
    began.record()
    graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) / 1e3 / times


def measured(channels: int, side: int, networks: int, in_a_group: int) -> list[float]:
    """Seconds of a convolution, of its gradient by the input, and by the filters."""
    x = torch.randn(100, networks * channels, side, side, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    filters = torch.randn(networks * channels, channels, 3, 3, device="cuda", dtype=torch.bfloat16)
    weight = merged(filters, networks, in_a_group).contiguous(memory_format=torch.channels_last)
    slope, groups = torch.randn_like(x), networks // in_a_group

    def backward(*wanted: bool) -> object:
        return torch.ops.aten.convolution_backward(
            slope, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, [*wanted, False]
        )

    return [
        seconds(lambda: functional.conv2d(x, weight, padding=1, groups=groups)),
        seconds(lambda: backward(True, False)),
        seconds(lambda: backward(False, True)),
    ]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=8)
    networks = parser.parse_args().networks
    torch.backends.cudnn.benchmark = True
    print("channels  in a group  forward  by input  by filters  all, a network")
    for channels, side in STAGES:
        for in_a_group in (number for number in (1, 2, 4, 8) if networks % number == 0):
            times = measured(channels, side, networks, in_a_group)
            shown = "  ".join(f"{1e6 * each:8.1f}" for each in times)
            print(f"{channels:8d}  {in_a_group:10d}  {shown}  {1e6 * sum(times) / networks:14.1f}", flush=True)


if __name__ == "__main__":
    main()
