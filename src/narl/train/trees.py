"""Trees of tensors and plain values, as JSON and a flat dict of tensors: what a checkpoint holds."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from narl.errors import OptionError

Tree: TypeAlias = Any
"""Nested dict (keys str or int), list, tuple, str, int, float, bool, None and Tensor."""

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes of flat tensors, by safetensors' names."""


def flatten(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """A tree's structure as JSON, and its tensors by name.

    Args:
        tree: nested dict (keys str or int), list and tuple of str, int, float, bool, None and Tensor.

    Returns:
        The structure, and the tensors, not copied, with dtypes among :data:`DTYPES`.

    Raises:
        OptionError: where the tree holds anything else.

    Example:
        >>> structure, tensors = flatten({"step": 3, "state": {0: torch.ones(2)}})
        >>> structure
        {'dict': [['step', 3], ['state', {'dict': [[0, {'tensor': 'state.0', 'stride': [1]}]]}]]}
        >>> unflatten(structure, tensors)
        {'step': 3, 'state': {0: tensor([1., 1.])}}
    """
    tensors: dict[str, Tensor] = {}
    return _describe(tree, (), tensors), tensors


def unflatten(structure: Any, tensors: dict[str, Tensor]) -> Tree:
    """The tree of a structure and its tensors.

    Args:
        structure: from :func:`flatten`.
        tensors: those of :func:`flatten`, in any memory format; they are copied.

    Returns:
        The tree, with its tensors on the CPU and in the memory format that they had.
    """
    if isinstance(structure, list):
        return [unflatten(entry, tensors) for entry in structure]
    if not isinstance(structure, dict):
        return structure
    if "dict" in structure:
        return {key: unflatten(entry, tensors) for key, entry in structure["dict"]}
    if "tuple" in structure:
        return tuple(unflatten(entry, tensors) for entry in structure["tuple"])
    if "float" in structure:
        return float(structure["float"])
    stored = tensors[structure["tensor"]]
    if structure.get("complex"):
        # Copied first: mapped from a file, the numbers may lie where complex ones must not.
        stored = torch.view_as_complex(stored.clone())
    return torch.empty_strided(stored.shape, structure["stride"], dtype=stored.dtype).copy_(stored)


def _describe(value: Tree, place: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """A tree as JSON, with its tensors put into ``tensors``."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, list):
        return [_describe(entry, (*place, str(i)), tensors) for i, entry in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_describe(entry, (*place, str(i)), tensors) for i, entry in enumerate(value)]}
    if isinstance(value, dict):
        wrong = [key for key in value if isinstance(key, bool) or not isinstance(key, str | int)]
        if wrong:
            raise _unsupported(f"the key {wrong[0]!r}", place)
        return {"dict": [[key, _describe(entry, (*place, str(key)), tensors)] for key, entry in value.items()]}
    if isinstance(value, Tensor):
        return _describe_tensor(value.detach(), place, tensors)
    raise _unsupported(f"a {type(value).__name__}", place)


def _describe_tensor(tensor: Tensor, place: tuple[str, ...], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        raise _unsupported("a sparse, nested or meta tensor", place)
    # The strides decide which kernels run, and so the last bits. preserve_format keeps those of every dense tensor and
    # closes the gaps of others.
    stride = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
    described: dict[str, Any] = {"stride": list(stride)}
    if tensor.is_complex():  # safetensors knows few complex types
        described["complex"] = True
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype not in DTYPES:
        raise _unsupported(f"a tensor of {tensor.dtype}", place)
    name = ".".join(place).encode("utf-8", "backslashreplace").decode() or "tensor"
    while name in tensors or name == "__metadata__":  # {"a.b": …} beside {"a": {"b": …}}
        name += "'"
    tensors[name] = tensor.resolve_neg()
    return {"tensor": name, **described}


def _unsupported(what: str, place: tuple[str, ...]) -> OptionError:
    where = f"at {'.'.join(place)!r}" if place else "as a whole"
    return OptionError(
        f"a checkpoint cannot hold {what} {where}: give dict (keys str or int), list, tuple, str, int, float, bool, "
        "None or a dense tensor"
    )
