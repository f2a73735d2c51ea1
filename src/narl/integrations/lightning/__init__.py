"""narl in Lightning: a callback whose loss learns, for modules with automatic and with manual optimisation."""

from __future__ import annotations

from narl.errors import MissingExtraError

try:
    import lightning.pytorch  # noqa: F401 (whether it is there)
except ImportError as error:
    raise MissingExtraError(
        f"narl.integrations.lightning needs the package lightning ({error}): pip install 'narl[lightning]'"
    ) from error

from narl.integrations.lightning.callback import NoiseAwareCallback

__all__ = ["NoiseAwareCallback"]
