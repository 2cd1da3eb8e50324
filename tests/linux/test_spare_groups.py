"""Control groups of ended boxes that serve other boxes."""

import os
import signal
from pathlib import Path

import pytest
from tests.linux.test_cgroups import MACHINE, MB, ROOMY, limited, needs_groups, new_name, python, running, until
from tests.linux.test_cgroups import tree as tree

from hutch.linux import cgroup_files as control
from hutch.linux.cgroups import GroupLimits, Tree

needs_renaming = pytest.mark.skipif(
    not MACHINE.pids or any(hierarchy.version == 2 for name, hierarchy in MACHINE.hierarchies if name != "freezer"),
    reason="only groups of cgroup v1 can be renamed",
)


@needs_renaming
def test_the_group_of_an_ended_box_serves_another_under_a_new_name() -> None:
    name = new_name()
    tree, maker = Tree(MACHINE, name), Tree(MACHINE, name)
    first = tree.make()
    first.limit(ROOMY)
    with running(first, *python("x = bytearray(100 << 20)")) as process:
        assert process.wait(30) == 0
    inodes = [os.stat(path).st_ino for path in first.member_paths]
    until(lambda: tree.retire(first.paths), "its processes are gone")
    assert not any(map(os.path.exists, first.paths)), "an old record would lead to the next box's group"
    maker.add_spare(tree.take_spare())
    assert tree.take_spare() == ""
    second = maker.make()
    try:
        assert [os.stat(path).st_ino for path in second.member_paths] == inodes
        assert second.paths != first.paths
        second.limit(GroupLimits(32 * MB, 16, 0.5))
        facts = second.facts()
        assert (facts.oom_kills, facts.pids_hits, facts.pids_current) == (0, 0, 0)
        assert facts.memory_peak_bytes is not None and facts.memory_peak_bytes <= MB
        with running(second, *python("x = bytearray(200 << 20)")) as process:
            assert process.wait(30) == -signal.SIGKILL
        assert second.facts().oom_kills == 1
        assert not maker.retire(second.paths), "the next box would seem to have met a limit"
    finally:
        second.remove(timeout=20)
        tree.close()
    assert maker.close()


@needs_renaming
def test_a_group_with_processes_or_memory_is_not_used_again(tree: Tree, tmp_path: Path) -> None:
    with limited(tree) as group:
        with running(group, "sleep", "60"):
            assert not tree.retire(group.paths)
        write = f"import os; f = open({str(tmp_path / 'file')!r}, 'wb'); f.write(bytes(8 << 20)); os.fsync(f.fileno())"
        with running(group, *python(write)) as process:
            assert process.wait(30) == 0
        until(lambda: not control.members(group.member_paths[0]), "its process is gone")
        assert not tree.retire(group.paths), "8 MB of page cache would count against the next box"


@needs_renaming
def test_spare_groups_are_few_and_go_with_their_tree() -> None:
    tree = Tree(MACHINE, new_name())
    groups = [tree.make() for _ in range(10)]
    kept = [tree.retire(group.paths) for group in groups]
    assert kept == [True] * 8 + [False] * 2
    for group in groups[8:]:
        group.remove()
    removed = tree.take_spare()
    for home in tree._homes:
        os.rmdir(f"{home}/{removed}")
    tree.add_spare(removed)
    tree.add_spare(tree.take_spare())
    assert tree.close()


@needs_groups
def test_a_spare_group_that_somebody_has_removed_is_made_anew(tree: Tree) -> None:
    tree.add_spare("spare-hutch-1")
    with limited(tree) as group:
        assert all(map(os.path.isdir, group.member_paths))
