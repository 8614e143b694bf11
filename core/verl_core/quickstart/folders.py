"""Files and folders that are whole or absent: made beside their name, synced, renamed once.

What a killed process left behind is swept by the next call. Two processes may make the same thing at once: the first
one wins, and both made the same bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError, ModelError
from ..state.claim import lives

MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_REMEDY = "name a writable folder on a disk with free space"


def make_folder(folder: Path, needed: Sequence[str], fill: Callable[[Path], None]) -> Path:
    """Have ``fill`` write a new folder and give it its name; nothing happens when it is there already.

    Raises ModelError for an existing folder without all ``needed`` files, InputError when it cannot be written.
    """
    if _whole(folder, needed):
        return folder
    draft = _draft_of(folder)
    try:
        draft.mkdir()
        fill(draft)
        for path in draft.iterdir():
            _sync(path)
        _sync(draft)
        _rename(draft, folder)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(folder), remedy=_REMEDY) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def make_file(path: Path, content: Callable[[], bytes]) -> Path:
    """Write a new file; one that is there already is left as it is. Raises InputError when it cannot be written."""
    if path.exists():
        return path
    draft = _draft_of(path)
    try:
        draft.write_bytes(content())
        _sync(draft)
        _rename(draft, path)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path), remedy=_REMEDY) from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def _whole(folder: Path, needed: Sequence[str]) -> bool:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"lacks {', '.join(missing)}", where=str(folder), remedy="remove the folder, or name another")
    return True


def _draft_of(target: Path) -> Path:
    """A name for this process beside ``target``; drafts of processes that are gone are removed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{target.name}.*.draft"):
            owner = left.name.split(".")[-2]
            if owner == str(os.getpid()) or not (owner.isdigit() and lives(int(owner))):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(target), remedy=_REMEDY) from error
    return target.parent / f".{target.name}.{os.getpid()}.draft"


def _rename(draft: Path, target: Path) -> None:
    try:
        draft.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # else another process was first
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
