"""What all tests share."""

from __future__ import annotations

import torch

# Tests use small tensors: a second thread costs more than it brings, above all on a busy machine.
torch.set_num_threads(1)
