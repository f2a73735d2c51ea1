"""A run's classifier, ready to use."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from narl.bilevel.passes import autocast
from narl.data import pools
from narl.data.read import Columns
from narl.data.samples import Inputs
from narl.errors import CheckpointError, DataError, RunFolderError
from narl.models.committee import Networks
from narl.train import architectures, checkpoint, engine
from narl.train.environment import usable_device
from narl.train.evaluate import logits_of
from narl.train.run_folder import RunFolder
from narl.train.settings import Settings

_BATCH = 500


@final
class Trained:
    """The classifier that a run has trained, with what it needs to read new samples.

    Args:
        run: the run's folder.
        device: where to compute, ``"auto"``, ``"cpu"`` or ``"cuda"``.

    A run that is not finished gives the classifier of its best epoch so far, or else of its last checkpoint.
    """

    def __init__(self, run: str | PathLike[str], device: str = "auto") -> None:
        folder = RunFolder.open(Path(run))
        with folder.understood() as config:
            settings = Settings.from_json(config["settings"])
            self.classes: tuple[str, ...] = tuple(config["classes"])
            self.kind: str = config["kind"]
            networks = Networks(**config.get("networks", {}))
            self._precision = engine.type_of(config["recipe"].get("precision", "float32"))
            self.columns: Columns = Settings.from_json({"data": "", "columns": config["columns"]}).columns
        self.device = torch.device(usable_device(device))
        try:
            self.encoder = architectures.encoder_from_state(folder.read_json("encoder.json"))
        except DataError as error:
            raise RunFolderError(f"{folder.path / 'encoder.json'} is damaged ({error}): restore it") from error
        self.epoch, state = _weights(folder)
        self.model: nn.Module = architectures.build(
            settings.model,
            kind=self.kind,
            shape=self.encoder.shape,
            num_classes=len(self.classes),
            generator=torch.Generator().manual_seed(0),
            pretrained=False,  # the run's own weights come next
            networks=networks,
        ).to(self.device)
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(
                f"the weights in {folder.path} do not fit the model {settings.model or 'of this kind'}: its code "
                f"has changed since the run ({str(error).splitlines()[-1].strip()})"
            ) from error
        self.model.eval()

    def predict(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities of the classes.

        Args:
            inputs: samples of the kind that the run was trained on.

        Returns:
            ``(N, c)``, float32, rows that sum to one.
        """
        if inputs.kind != self.kind:
            raise DataError(f"the run was trained on {self.kind}s, this data is a set of {inputs.kind}s: give the same")
        pool = pools.make_pool(inputs, self.encoder, device=self.device)
        rows = torch.split(torch.arange(len(inputs), device=self.device), _BATCH) if len(inputs) else ()
        precision = self._precision if self.device.type == "cuda" else None  # as the run was evaluated, or exactly
        with autocast(self.device.type, precision):
            logits = logits_of(self.model, pool.stream(rows), self.encoder.finish, len(self.classes))
        probabilities: NDArray[np.float32] = logits.softmax(dim=1).numpy()
        return probabilities


def _weights(folder: RunFolder) -> tuple[int, dict[str, Any]]:
    kept = folder.path / "model.safetensors"
    if kept.exists():
        tree = checkpoint.load(kept)
        return int(tree["epoch"]), dict(tree["model"])
    found = folder.checkpoints.latest()
    if found.tree is None:
        raise RunFolderError(
            f"{folder.path} has no trained model yet: it was stopped before its first checkpoint; "
            f"go on with narl train --resume {folder.path}"
        )
    return int(found.tree["epoch"]), dict(found.tree["model"])
