"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from together import Team

# Tests use small tensors: a second thread costs more than it brings, above all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def workers() -> Iterator[Team]:
    """Processes that work together; what makes them takes seconds to start."""
    from together import team

    with team() as made:
        yield made
