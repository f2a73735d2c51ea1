"""Files of adjusters on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from narl.errors import AdjusterFileError, MissingExtraError, OptionError

PREFIX = "hf://"
_ENDING = ".safetensors"


def download(name: str) -> Path:
    """The local copy of a file; nothing but safetensors is fetched.

    Args:
        name: ``owner/repo`` or ``owner/repo/file``, with ``@revision`` behind it if a certain one is meant: a branch, a
            tag or, for good, a commit. Without a file, the repository must have just one that could be meant.

    Raises:
        MissingExtraError: huggingface_hub is not installed.
        AdjusterFileError: there is no such file, or no connection.
    """
    address, _, revision = name.partition("@")
    owner, _, rest = address.partition("/")
    repository, _, file = rest.partition("/")
    if not owner or not repository:
        raise OptionError(f"{PREFIX}{name} names no file of the hub: write {PREFIX}owner/repo/file{_ENDING}")
    if file and not file.endswith(_ENDING):
        raise OptionError(f"{PREFIX}{name} is no {_ENDING} file: narl opens no others, for they could run code")
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(
            "adjusters of the Hugging Face hub need huggingface_hub: pip install 'narl[hub]'"
        ) from error
    try:
        wanted = file or _only(
            huggingface_hub.list_repo_files(f"{owner}/{repository}", revision=revision or None), name
        )
        return Path(huggingface_hub.hf_hub_download(f"{owner}/{repository}", wanted, revision=revision or None))
    except AdjusterFileError:
        raise
    except Exception as error:  # of the hub's, of the connection's, of the disk's: many kinds, one way out
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise AdjusterFileError(
            f"{PREFIX}{name} cannot be downloaded ({reason}): check its name, the revision and the connection"
        ) from error


def _only(files: list[str], name: str) -> str:
    """The one file of a repository that can be meant."""
    found = [file for file in files if file.endswith(_ENDING)]
    if len(found) != 1:
        has = "no such file" if not found else f"several: {', '.join(sorted(found)[:10])}"
        raise AdjusterFileError(f"{PREFIX}{name} should have one {_ENDING} file, it has {has}; name it behind the repo")
    return found[0]
