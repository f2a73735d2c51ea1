"""Other libraries' trainers in two processes, with DistributedDataParallel, against one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from together import Team

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::narl.NarlWarning")]


def test_lightning(workers: Team) -> None:
    import lightning_problem as problem

    check(workers, "lightning_problem", *problem.plain_loop(clip=problem.CLIP))


def test_transformers(workers: Team, tmp_path: Path) -> None:
    import transformers_problem as problem

    trainer = problem.trainer_of(tmp_path, problem.bert(dropout=0.0), {"every": 2})
    trainer.train()
    check(workers, "transformers_problem", trainer.model, trainer.adjuster)


def check(workers: Team, module: str, model: nn.Module, adjuster: nn.Module) -> None:
    for state in workers.run("guest", 2, module=module):
        for found, expected in ((state["model"], model), (state["adjuster"], adjuster)):
            for name, value in expected.named_parameters():
                assert torch.allclose(found[name], value, atol=2e-5), name
