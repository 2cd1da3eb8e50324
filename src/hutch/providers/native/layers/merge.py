"""Three-way merge of a fork's changes into the box that it was forked from: all of them or none. Standard library only.

Both are compared with the state at the fork. A name that both changed, into something different, is a conflict; so is
a change below a directory that the other side removed. The changes are written into a new layer, which the box gets in
one switch at the end.
"""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hutch.providers.native.layers import trees
from hutch.providers.native.layers.changes import Difference, attributes, differences, mounted, parts, same, touched
from hutch.providers.native.layers.view import NEXT, State, View, foreign

if TYPE_CHECKING:
    from hutch.providers.native.layers.entry import LayerEntry

MAX_CONFLICTS = 1000


def merge(entry: "LayerEntry", view: View) -> dict[str, Any]:
    """Merge, or only say which names are in conflict."""
    entry.attach_fork()
    base = entry.values("state")
    theirs, theirs_base = ([foreign(each, "f") for each in entry.values(name)] for name in ("fork", "fork_base"))
    with ExitStack() as stack:
        stack.callback(entry.detach_fork)
        plans = []
        conflicts: list[str] = []
        for part, prefix, lowest in parts(view):
            plan = _PartMerge(stack, view.state, base, theirs, theirs_base, part, lowest)
            plans.append((prefix, plan))
            conflicts += [f"/{prefix}{path}" for path in plan.conflicts()]
        merged = [f"/{prefix}{each.path}" for prefix, plan in plans for each in plan.wanted]
        if conflicts:
            return {"conflicts": sorted(conflicts)[:MAX_CONFLICTS], "merged": []}
        if merged:

            def fill() -> None:
                for prefix, plan in plans:
                    plan.apply(f"{NEXT}/{prefix}")

            entry.switch_to(view, fill)
    return {"conflicts": [], "merged": sorted(merged)}


class _PartMerge:
    """The merge of one of the box's overlays."""

    def __init__(
        self, stack: ExitStack, ours: State, base: State, theirs: State, theirs_base: State, part: int, lowest: State
    ) -> None:
        self._base = stack.enter_context(mounted(f"base{part}", base, lowest, part))
        self._ours_top = stack.enter_context(mounted(f"ours{part}", ours, lowest, part))
        self._theirs_top = stack.enter_context(mounted(f"theirs{part}", theirs, lowest, part))
        self._ours = {each.path: each for each in differences(self._base, self._ours_top, touched(base, ours, part))}
        self._theirs = {
            each.path: each for each in differences(self._base, self._theirs_top, touched(theirs_base, theirs, part))
        }
        self.wanted: list[Difference] = [each for each in self._theirs.values() if not self._equal(each)]

    def _equal(self, theirs: Difference) -> bool:
        """Whether our side has made the same change."""
        ours = self._ours.get(theirs.path)
        if ours is None:
            return False
        if ours.after is None or theirs.after is None:
            return ours.after is theirs.after is None
        return same(self._ours_top, ours.after, self._theirs_top, theirs.after)

    def conflicts(self) -> list[str]:
        found = [each.path for each in self.wanted if each.path in self._ours]
        found += self._below_removed(self.wanted, self._ours)
        found += self._below_removed([each for each in self._ours.values() if not self._same_ours(each)], self._theirs)
        return sorted(set(found))

    def _same_ours(self, ours: Difference) -> bool:
        theirs = self._theirs.get(ours.path)
        return theirs is not None and self._equal(theirs)

    @staticmethod
    def _below_removed(changed: list[Difference], other: dict[str, Difference]) -> list[str]:
        """Names with a change below a directory that the other side removed, or made something else of."""
        found = []
        for each in changed:
            if each.after is None:
                continue  # both remove it, one of them with the directory
            above = each.path
            while "/" in above:
                above = above.rpartition("/")[0]
                there = other.get(above)
                if there is not None and (there.after is None or there.after.kind != "directory"):
                    found.append(each.path)
                    break
        return found

    def apply(self, top: str) -> None:
        """Write the changes of the fork into the merged view at `top`: removals from below, then the rest."""
        top = top.rstrip("/")
        for each in reversed(self.wanted):
            if each.before is not None and (each.after is None or not _keeps(each)):
                _remove(f"{top}/{each.path}")
        links: trees.Links = {}
        kept: list[tuple[str, str, os.stat_result]] = []
        for each in self.wanted:
            if each.after is None:
                continue
            source, target = f"{self._theirs_top}/{each.path}", f"{top}/{each.path}"
            if each.after.kind == "directory":
                if not os.path.isdir(target):
                    os.mkdir(target, 0o700)
                kept.append((source, target, each.after.facts))
                continue
            trees.copy_file(source, target, links)
        for source, target, facts in reversed(kept):
            for name in attributes(target).keys() - attributes(source).keys():
                os.removexattr(target, name)  # the fork has made the directory anew, or removed the attribute
            trees.copy_attributes(source, target, facts)


def _keeps(each: Difference) -> bool:
    """Whether the name stays a directory, of which only owner, mode or attributes change."""
    return bool(each.before and each.after and each.before.kind == each.after.kind == "directory")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        os.rmdir(path)  # what was in it is among the changes, and removed already
    else:
        os.unlink(path)
