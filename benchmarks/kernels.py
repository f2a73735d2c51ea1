"""Which kernels the time of a step goes to, on a GPU.

    python benchmarks/kernels.py [--method A-GCE] [--stack 8] [--rows 25]

ResNet-32, batch 100, bfloat16, compiled and captured steps of several trainings as one, on a batch that is there: each
kernel's share of the time that the GPU was busy, and how busy it was.
"""

from __future__ import annotations

import argparse
import collections
import time

import torch
from torch.profiler import ProfilerActivity, profile

import sharing


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="CE")
    parser.add_argument("--stack", type=int, default=8)
    parser.add_argument("--rows", type=int, default=25)
    given = parser.parse_args()
    step = sharing.one_by_one(given.method) if given.stack == 1 else sharing.as_one(given.method, given.stack)
    steps = 5 * sharing.EVERY
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    busy: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for event in seen.events() or ():
        busy[event.name] += event.device_time_total
        calls[event.name] += 1
    total = sum(busy.values())
    trained = steps * given.stack
    print(
        f"{given.method}, stack of {given.stack}: {1e6 * seconds / trained:.0f} us a step and training, "
        f"busy {total / trained:.0f} us"
    )
    for name, taken in busy.most_common(given.rows):
        print(
            f"{100 * taken / total:5.1f} %  {taken / trained:7.1f} us  {calls[name] / steps:6.1f} a step  {name[:150]}"
        )


if __name__ == "__main__":
    main()
