"""narl inside other people's libraries. Each has a module of its own, imported when it is first used.

``narl.integrations.sklearn``: a scikit-learn classifier. ``narl.integrations.transformers``: a trainer.
``narl.integrations.lightning``: a callback. ``meta_step``: :class:`narl.MetaStep` of what accelerate or Fabric wrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narl.integrations.wrapped import meta_step

__all__ = ["meta_step"]


def __getattr__(name: str) -> object:
    if name != "meta_step":
        raise AttributeError(f"module 'narl.integrations' has no attribute {name!r}")
    from narl.integrations.wrapped import meta_step

    return meta_step


def __dir__() -> list[str]:
    return list(__all__)
