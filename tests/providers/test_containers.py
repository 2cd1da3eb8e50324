"""Containers as boxes: hardened, labelled, found again, and gone with everything that belonged to them."""

import json
import os
import time
from pathlib import Path

import pytest

from hutch.errors import ConfigError, EngineError, Invalid, NotFound, Refused, Unavailable, Unsupported
from hutch.model.results import Cause
from hutch.model.spec import Mount, MountMode, NetworkMode, Retention
from hutch.providers import registry
from hutch.providers.base import Leftover
from hutch.providers.docker import cleanup, container_spec
from hutch.providers.docker import labels as naming
from hutch.providers.docker.container_spec import BoxParameters
from hutch.providers.docker.engine.dialect import DOCKER
from hutch.providers.docker.objects import images
from hutch.providers.docker.provider import DockerProvider, PodmanProvider
from hutch.providers.guest_bundle.pack import GuestBundle
from tests.providers import daemons, rootfs
from tests.providers.container_boxes import box, order, run


async def everything(daemon: daemons.Daemon) -> set[str]:
    """Names of all that boxes leave on an engine."""
    engine = daemons.engine_of(daemon)
    containers = await engine.call("GET", "/containers/json", query={"all": True})
    volumes = await engine.call("GET", "/volumes")
    networks = await engine.call("GET", "/networks")
    found = {each["Names"][0].lstrip("/") for each in containers}
    found |= {each["Name"] for each in (volumes["Volumes"] or [])} | {each["Name"] for each in networks}
    return {name for name in found if name.startswith("hutch-") and not name.startswith("hutch-guest-")}


async def test_a_container_is_hardened(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Lesson 29: no capability, no new privileges, a filter, an ordinary user, a read-only root, limits, no swap."""
    async with box(daemons.provider(docker, tmp_path), memory_mb=128, disk_mb=32, pids=40, cpus=0.5) as made:
        found = await daemons.engine_of(docker).inspect(made.container)
        assert found is not None
        host, config = found["HostConfig"], found["Config"]
        assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False)
        assert host["SecurityOpt"] == ["no-new-privileges"] and host["ReadonlyRootfs"]
        assert host["NetworkMode"] == "none" and host["IpcMode"] == "private" and not host["PidMode"]
        assert config["User"] == "1000:1000" and host["RestartPolicy"]["Name"] == "no"
        assert host["Memory"] == host["MemorySwap"] and (128 + 32) << 20 <= host["Memory"] < (128 + 32 + 64) << 20
        assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 48)
        assert [mount["Type"] for mount in found["Mounts"]] == ["volume"] and not found["Mounts"][0]["RW"]
        sizes = [int(options.split("size=")[1].split("k")[0]) for path, options in host["Tmpfs"].items()
                 if path in ("/workspace", "/tmp", "/home/user")]  # fmt: skip
        assert sum(sizes) <= 32 * 1024, "together the writable places are no larger than disk_mb"
        assert (await run(made, "echo x >/usr/x")).exit_code != 0


async def test_secrets_stay_inside(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Lesson 37: a user who may ask the engine about a container does not see them; commands do."""
    secret = "s3cr3t-" + os.urandom(8).hex()
    async with box(daemons.provider(docker, tmp_path), env={"PLAIN": "p"}, secrets={"TOKEN": secret}) as made:
        assert (await run(made, 'echo "$TOKEN $PLAIN"')).stdout == f"{secret} p\n"
        engine = daemons.engine_of(docker)
        shown = json.dumps(await engine.inspect(made.container))
        shown += json.dumps(await engine.call("GET", f"/containers/{made.container}/top"))
        assert secret not in shown and secret not in made.record.to_json().decode()


async def test_labels_say_whose_it_is(docker: daemons.Daemon, tmp_path: Path) -> None:
    """B27: box, keeper, instance, and a digest of the configuration by which drift is found."""
    provider = daemons.provider(docker, tmp_path)
    wanted = order(keeper="keeper-1")
    async with box(provider, wanted) as made:
        found = await daemons.engine_of(docker).inspect(made.container)
        assert found is not None
        labels = found["Config"]["Labels"]
        assert labels[naming.BOX] == wanted.box_id and labels[naming.KEEPER] == "keeper-1"
        assert labels[naming.INSTANCE] == naming.instance(str(tmp_path))
        assert labels[naming.CONFIG] == naming.config_digest(wanted.spec)
        assert naming.config_digest(wanted.spec.but(workdir="/")) != labels[naming.CONFIG]


async def test_another_hutch_on_the_same_engine_is_left_alone(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Lesson 10: boxes of another state directory are not listed, so that nobody here takes them for orphans."""
    ours, theirs = (daemons.provider(docker, tmp_path / name) for name in ("ours", "theirs"))
    async with box(ours) as kept:
        assert [record.box_id for record in await ours.list()] == [kept.record.box_id]
        assert await theirs.list() == ()
        assert kept.container not in [left.name for left in await theirs.sweep()]
        assert (await run(kept, "echo alive")).stdout == "alive\n"


async def test_a_creation_that_died_half_way_is_destroyed_from_its_plan(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Lessons 1, 2, 4: volumes, a network and a container that nobody finished go by their names."""
    provider = daemons.provider(docker, tmp_path)
    before = await everything(docker)
    wanted = order(retention=Retention.PERSISTENT, network=NetworkMode.ON)
    planned = provider.plan(wanted)
    engine = daemons.engine_of(docker)
    labels = naming.labels(wanted, naming.instance(str(tmp_path)))
    for part in ("home", "workspace"):
        await engine.create_volume(naming.volume(wanted.box_id, part), labels)
    await engine.create_network({"Name": naming.network(wanted.box_id), "Labels": labels})
    body = {"Image": rootfs.NAME, "Entrypoint": ["/bin/true"], "Labels": labels, "HostConfig": {"NetworkMode": "none"}}
    await engine.create(naming.container(wanted.box_id), body)
    assert len(await everything(docker) - before) == 4 - 1  # container and network have one name
    assert wanted.box_id in {record.box_id for record in await provider.list()}
    await provider.destroy(planned)
    assert await everything(docker) == before and wanted.box_id not in {each.box_id for each in await provider.list()}


async def test_a_failed_creation_leaves_nothing(docker: daemons.Daemon, tmp_path: Path) -> None:
    """The engine itself refuses, after the network was made; its words are in the error, and nothing remains."""
    provider = daemons.provider(docker, tmp_path)
    await provider.list()
    before = await everything(docker)
    wanted = order(memory_mb=1, disk_mb=1, network=NetworkMode.ON, open_files=2**40)
    with pytest.raises(EngineError, match="could not be made"):
        await provider.create(wanted, provider.plan(wanted))
    assert await everything(docker) == before


async def test_sweep_removes_what_nobody_uses(
    docker: daemons.Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B27: networks without a box, throwaways of dead processes, guests of other versions; never what is in use."""
    provider = daemons.provider(docker, tmp_path)
    engine = daemons.engine_of(docker)
    monkeypatch.setattr(cleanup, "STALE_SECONDS", -60.0)
    async with box(provider, network=NetworkMode.ON) as made:
        gone = order()
        labels = naming.labels(gone, naming.instance(str(tmp_path)))
        await engine.create_network({"Name": naming.network(gone.box_id), "Labels": labels})
        await engine.create_volume("hutch-guest-older", {naming.GUEST: "older"})
        old = {naming.THROWAWAY: str(int(time.time()) - 7200)}
        await engine.create("hutch-throwaway-test", {"Image": rootfs.NAME, "Entrypoint": ["/x"], "Labels": old})
        dry = await provider.sweep(dry_run=True)
        assert Leftover(kind="volume", name="hutch-guest-older") in dry
        assert await engine.volume("hutch-guest-older") is not None
        swept = await provider.sweep()
        expected = {
            ("network", naming.network(gone.box_id)),
            ("volume", "hutch-guest-older"),
            ("container", "hutch-throwaway-test"),
        }
        assert expected <= {(left.kind, left.name) for left in swept}
        assert not [left for left in swept if made.record.box_id in left.name]
        assert (await run(made, "echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("kind", ["writable root", "persistent"])
async def test_the_engines_own_disk_is_guarded(docker: daemons.Daemon, tmp_path: Path, kind: str) -> None:
    """Where no tmpfs bounds it: who writes past disk_mb is ended, the box and its files stay."""
    changes = {"read_only_root": False} if kind == "writable root" else {"retention": Retention.PERSISTENT}
    place, user = ("/var/big", "root") if kind == "writable root" else ("/workspace/big", "user")
    async with box(daemons.provider(docker, tmp_path), disk_mb=16, **changes) as made:
        wrote = await run(made, f"head -c 40000000 /dev/zero >{place}; sleep 25; echo survived", user=user)
        assert "survived" not in wrote.stdout and wrote.exit_code != 0
        verdict = wrote.verdict
        assert (verdict.cause, verdict.limit, verdict.unit) == (Cause.DISK, 16, "MB") and (verdict.peak or 0) > 16, (
            wrote
        )
        assert "remove files" in verdict.remedy
        # Longer than the guard rests: a command that removes files is left alone, though the box is over its limit.
        assert (await run(made, f"sleep 6; rm {place} && echo room", user=user)).stdout == "room\n"


# --- images ----------------------------------------------------------------------------------------------------------


async def test_an_image_that_is_not_there_says_so(docker: daemons.Daemon, tmp_path: Path) -> None:
    provider = daemons.provider(docker, tmp_path, pull="never")
    with pytest.raises(NotFound, match="no image absent:1") as caught:
        await provider.image("oci:absent:1")
    assert "pull" in caught.value.remedy
    with pytest.raises(Invalid, match="none was named"):
        await provider.image("oci:")
    with pytest.raises(Unsupported):
        await provider.image("dir:/tmp")
    daemon_less = daemons.provider(docker, tmp_path, image="")
    assert (await daemon_less.probe()).default_image == ""


async def test_an_images_own_settings_are_kept(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Environment and user of the image; its VOLUMEs, however they are written, are no way around the disk limit, and
    libraries that it wants in every program are not loaded into ours."""
    engine = daemons.engine_of(docker)
    config = {
        "Env": ["COLOUR=blue", "LD_PRELOAD=/lib/evil.so"], "User": "1234:1235", "WorkingDir": "/data",
        "Volumes": {"/data": {}, "/logs/": {}},
    }  # fmt: skip
    made_of = await engine.create("hutch-throwaway-set", {"Image": rootfs.NAME, "Entrypoint": ["/x"]})
    await engine.call("POST", "/commit", query={"container": made_of, "repo": "hutch-test-set"}, body=config)
    await engine.remove(made_of)
    provider = daemons.provider(docker, tmp_path)
    defaults = await provider.image("oci:hutch-test-set")
    assert defaults is not None and (defaults.env["COLOUR"], defaults.workdir) == ("blue", "/data")
    async with box(provider, image="oci:hutch-test-set", disk_mb=16) as made:
        assert (await run(made, "echo $COLOUR; id -u; touch /data/x /workspace/x && stat -c %u /data")).stdout == (
            "blue\n1234\n1234\n"
        )
        assert (await run(made, "head -c 20000000 /dev/zero >/data/big")).exit_code != 0
        assert (await run(made, "head -c 20000000 /dev/zero >/logs/big")).exit_code != 0
        assert (await run(made, "echo $LD_PRELOAD")).stdout == "/lib/evil.so\n"
        found = await engine.inspect(made.container)
        assert found is not None and "LD_PRELOAD=" in found["Config"]["Env"]


@pytest.mark.parametrize("place", ["/.hutch/lib", "//.hutch-run/", "/proc"])
def test_an_image_declares_nothing_in_place_of_ours(place: str) -> None:
    """The engine would fill a volume there with what the image has under that name, and run it as our guest."""
    wanted = order()
    image = images.facts({"Id": "i", "Config": {"Volumes": {place: {}}}}, "hostile")
    parameters = BoxParameters(
        bundle=GuestBundle("", (), "", ""), instance="", runtime="", user="1000:1000", cgroup_parent="", network="",
        binds=(),
        private_cgroups=True, walled=False, dialect=DOCKER,
    )  # fmt: skip
    with pytest.raises(Refused, match="belongs to the box"):
        container_spec.container(wanted, image, parameters)


# --- mounts ----------------------------------------------------------------------------------------------------------


async def test_paths_are_translated_and_proven(docker: daemons.Daemon, tmp_path: Path) -> None:
    """B42: Hutch in a container sees other paths than its engine. A wrong map is found out before a command runs."""
    ours, theirs, wrong = (tmp_path / name for name in ("ours", "theirs", "wrong"))
    for path in (theirs, wrong):
        path.mkdir()
        path.chmod(0o777)
    (theirs / "file").write_text("right")
    (wrong / "file").write_text("wrong")
    ours.symlink_to(theirs)  # stands for the other view: the name that the engine is given must not be this one
    mount = Mount(source=str(theirs), target="/data", mode=MountMode.RW)
    right = daemons.provider(docker, tmp_path / "s", paths={str(theirs): str(theirs)})
    async with box(right, mounts=(mount,)) as made:
        assert (await run(made, "cat /data/file")).stdout == "right"
    before = await everything(docker)
    for lane in ("fast", "api"):
        mistaken = daemons.provider(docker, tmp_path / "s", paths={str(theirs): str(wrong)}, lane=lane)
        wanted = order(mounts=(mount,))
        with pytest.raises(Refused, match="does not see our") as caught:
            await mistaken.create(wanted, mistaken.plan(wanted))
        assert "paths" in caught.value.remedy
    absent = daemons.provider(docker, tmp_path / "s", paths={str(theirs): "/nowhere"})
    wanted = order(mounts=(mount,))
    with pytest.raises((Refused, EngineError)):
        await absent.create(wanted, absent.plan(wanted))
    assert await everything(docker) == before and not Path("/nowhere").exists()


async def test_a_mount_cannot_cover_what_is_ours(docker: daemons.Daemon, tmp_path: Path) -> None:
    provider = daemons.provider(docker, tmp_path)
    for target in ("/.hutch/lib", "/.hutch-run", "/proc/x", "/"):
        wanted = order(mounts=(Mount(source=str(tmp_path), target=target),))
        with pytest.raises((Refused, Invalid)):
            await provider.create(wanted, provider.plan(wanted))


# --- settings and engines that are not there -------------------------------------------------------------------------


def test_the_registry_knows_both() -> None:
    assert registry.find("docker") is DockerProvider and registry.find("podman") is PodmanProvider
    assert {"native", "docker", "podman"} <= set(registry.names())


@pytest.mark.parametrize(
    "table",
    [{"lane": "quick"}, {"user": "0:0"}, {"user": "me"}, {"addresses": "10.0.0.0/30"}, {"addresses": "x"}, {"no": 1}],
)
def test_settings_that_make_no_sense(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        DockerProvider().configure(table)


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    """B26: not usable, with reason and remedy; a box cannot be said to be gone."""
    provider = DockerProvider()
    provider.configure({"host": f"unix://{tmp_path}/no.sock"})
    found = await provider.probe()
    assert not found.usable and "cannot be reached" in found.reason and found.remedy
    with pytest.raises(Unavailable):
        await provider.attach(provider.plan(order()), order().spec)
    provider.configure({"host": "tcp://127.0.0.1:1"})
    assert not (await provider.probe()).usable


async def test_an_unknown_runtime_is_named(docker: daemons.Daemon, tmp_path: Path) -> None:
    found = await daemons.provider(docker, tmp_path, runtime="firecracker").probe()
    assert not found.usable and "no runtime 'firecracker'" in found.reason and "runc" in found.remedy
