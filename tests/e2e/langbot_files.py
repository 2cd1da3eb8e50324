"""LangBot's files: workspaces of Hutch's own, directories that both share, and skills.

It drives the door by the client classes of `langbot-plugin`. Arguments: the server's address (host:port), a key of one
owner, a key of another, a directory that LangBot and the server share, and one that they do not.
"""

import json
import os
import sys
from pathlib import Path

import scenarios
from langbot_plugin.artifact import build_tree_manifest
from langbot_plugin.box import errors, models
from langbot_plugin.box.tenancy import box_namespace
from langbot_sdk import connected, context, refused, refused_by, spec

SHARED, FOREIGN = sys.argv[4:6]


async def workspaces_are_apart_and_kept():
    first, second = context("files", "w1"), context("files", "w2")
    path = f"{FOREIGN}/tenants/{box_namespace(first)}"
    async with connected("files") as client:
        await client.execute(spec("a", "echo one > file", host_path=path), first)
        assert (await client.execute(spec("b", "cat file", host_path=path), first)).stdout == "one"
        other = await client.execute(spec("a", "cat file", host_path=path), second)
        assert other.exit_code == 1, other
        done = await client.execute(spec("ro", "cat file; echo two > file", host_path=path, host_path_mode="ro"), first)
        assert done.stdout == "one" and "Read-only" in done.stderr, done
        report = await client.get_storage_analysis(first)
        keys = {each["key"]: each for each in report["directories"]}
        assert (
            keys["workspace"]["exists"] and keys["workspace"]["file_count"] >= 1 and report["active_sessions"] == 3
        ), report
        await client.shutdown()
    async with connected("files") as client:
        assert await client.get_sessions(first) == []
        assert (await client.execute(spec("a", "cat file", host_path=path), first)).stdout == "one"
    assert not os.path.exists(path), "a path of another machine was made"


async def shared_directories_are_mounted():
    where = context("shared")
    path = f"{SHARED}/box/tenants/{box_namespace(where)}"
    async with connected("shared") as client:
        await client.execute(spec("a", "echo from the box > out.txt", host_path=path), where)
        assert Path(path, "out.txt").read_text() == "from the box\n"
        Path(path, "in.txt").write_text("from LangBot\n")
        done = await client.execute(spec("a", "cat in.txt; echo more >> in.txt; tail -1 in.txt", host_path=path), where)
        assert done.stdout == "from LangBot\nmore", done
        for wrong in (f"{SHARED}/../outside", f"{SHARED}/link/x"):
            answer = await refused_by(client.execute(spec("b", "id", host_path=wrong), where))
            assert "accepted" not in answer or not os.path.exists(wrong), answer


async def skills_are_shown_read_only():
    where = context("skills")
    path = f"{SHARED}/box/tenants/{box_namespace(where)}"

    def skill(name):
        package = Path(SHARED, "skills", name)
        package.mkdir(parents=True)
        (package / "lib").mkdir()
        (package / "SKILL.md").write_text(f"# {name}\n")
        (package / "lib" / "run.sh").write_text(f"#!/bin/sh\necho run {name}\n")
        (package / "lib" / "run.sh").chmod(0o755)
        digest, manifest = build_tree_manifest(str(package), max_files=100, max_total_bytes=1 << 20)
        file = Path(SHARED, "skills", f"{name}.json")
        file.write_text(json.dumps(manifest))
        target = f"/opt/langbot-artifacts/{digest[7:]}"
        return models.BoxMountSpec(
            host_path=str(package), mount_path=target, mode="ro", content_digest=digest, manifest_path=str(file)
        )

    async with connected("skills") as client:
        one, two = skill("one"), skill("two")
        await client.execute(spec("a", "true", host_path=path), where)
        asked = spec("a", f"{one.mount_path}/lib/run.sh; touch {one.mount_path}/x", host_path=path, extra_mounts=[one])
        done = await client.execute(asked, where)
        assert done.stdout == "run one" and done.exit_code == 1, done
        both = spec(
            "a", f"{one.mount_path}/lib/run.sh; {two.mount_path}/lib/run.sh", host_path=path, extra_mounts=[one, two]
        )
        assert (await client.execute(both, where)).stdout == "run one\nrun two"
        three = skill("three")
        text = "BoxError: Immutable artifact preparation failed: Artifact source changed: SKILL.md"
        for changed in ("changed\n", "# three\nlonger\n", ""):
            Path(three.host_path, "SKILL.md").write_text(changed)
            await refused(
                errors.BoxError, client.execute(spec("a", "true", host_path=path, extra_mounts=[three]), where), text
            )
        foreign = three.model_copy(update={"host_path": f"{FOREIGN}/skill", "manifest_path": f"{FOREIGN}/skill.json"})
        text = "BoxError: Immutable artifact preparation failed: "
        for asked in (spec("a", "true", host_path=path, extra_mounts=[foreign]), spec("b", "true", extra_mounts=[one])):
            await refused(errors.BoxError, client.execute(asked, where), text)


if __name__ == "__main__":
    scenarios.run([workspaces_are_apart_and_kept, shared_directories_are_mounted, skills_are_shown_read_only])
