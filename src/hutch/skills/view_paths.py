"""Paths of the views of an owner's skills; apart, with cheap imports, because every creation of a box asks."""

import os
from functools import lru_cache
from pathlib import Path

from hutch.model.ids import digest


@lru_cache(1024)
def owner_folder(owner: str) -> str:
    """Return a folder name that differs for every owner, whatever characters their names have."""
    return digest(f"owner {owner}".encode())[:24]


def keeps_skills(root: Path, owner: str | None) -> bool:
    """Return whether this owner (None for any) has ever had a skill."""
    # Joined as text, because a Path costs ten times as much as the check itself.
    return os.path.isdir(f"{root}/owners/{'' if owner is None else owner_folder(owner)}")


def view_path(root: Path, owner: str, view: str) -> Path:
    """Return the path of a view below the skills' `root`; `view` is a group, or the name of a box's own view."""
    return root / "views" / owner_folder(owner) / view


def stale_marker(root: Path, owner: str) -> Path:
    """Return the path of a file that exists while a change of an owner's skills is under way, or was interrupted."""
    return view_path(root, owner, ".stale")


def has_own_view(root: Path, owner: str, box: str) -> bool:
    return os.path.isdir(f"{root}/views/{owner_folder(owner)}/{box_view(box)}")


def box_view(box: str) -> str:
    """Return the name of a box's own view. No group has such a name."""
    return f"box-{box}"
