"""Where the views of an owner's skills lie. Imports nothing heavy, and is quick: every box that is made asks."""

import os
from functools import lru_cache
from pathlib import Path

from hutch.model.ids import digest


@lru_cache(1024)
def owner_folder(owner: str) -> str:
    """Two owners never meet, whatever characters their names have."""
    return digest(f"owner {owner}".encode())[:24]


def keeps_skills(root: Path, owner: str | None) -> bool:
    """Whether this owner (None: any) has ever had a skill."""
    # Joined as text: a Path costs ten times as much as the look itself.
    return os.path.isdir(f"{root}/owners/{'' if owner is None else owner_folder(owner)}")


def view_place(root: Path, owner: str, view: str) -> Path:
    """`root` is that of all skills; `view` a group, or a single box's."""
    return root / "views" / owner_folder(owner) / view


def stale_mark(root: Path, owner: str) -> Path:
    """There while an owner's views may be behind its skills: somebody is changing them, or died doing so."""
    return view_place(root, owner, ".stale")


def has_own_view(root: Path, owner: str, box: str) -> bool:
    return os.path.isdir(f"{root}/views/{owner_folder(owner)}/{box_view(box)}")


def box_view(box: str) -> str:
    """The name of a view that belongs to one box. No group is called so."""
    return f"box-{box}"
