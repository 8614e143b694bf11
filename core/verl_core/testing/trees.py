"""A small tree of files as a value: read from a folder, written to one, named by a digest."""

from __future__ import annotations

import os
from collections.abc import Mapping

Tree = Mapping[str, bytes | None]  # path below the root → content of a file, None for a folder


def tree_of(root: str) -> dict[str, bytes | None]:
    """What lies below a folder now."""
    found: dict[str, bytes | None] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    found[name] = None
                    waiting.append(name)
                else:
                    with open(entry.path, "rb") as file:
                        found[name] = file.read()
    return found


def materialise(tree: Tree, root: str) -> None:
    """Make ``root``, a folder that is there, hold the tree and nothing else."""
    clear(root)
    for name in sorted(tree):
        content, path = tree[name], f"{root}/{name}"
        if content is None:
            os.mkdir(path)
            continue
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if content:
            os.write(handle, content)
        os.close(handle)


def clear(root: str) -> None:
    """Remove everything below a folder."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                clear(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
