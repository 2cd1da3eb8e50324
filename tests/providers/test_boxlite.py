"""BoxLite, where it is not installed, where KVM runs no guests, and where machines do not boot (S1)."""

import json
import os
from pathlib import Path

import pytest

from hutch.errors import ConfigError, EngineError, NotFound, Unsupported
from hutch.model.spec import CheckedMount, CheckedMounts, MountMode
from hutch.providers.boxlite import canary as proofs
from hutch.providers.boxlite import kvm, sdk
from hutch.providers.boxlite import provider as engine
from hutch.providers.boxlite.provider import BoxLiteProvider
from hutch.providers.command.provider import canary
from hutch.providers.guest_bundle.pack import guest_bundle

boxlite = pytest.importorskip("boxlite", reason="the package boxlite is not installed")


@pytest.fixture
def provider(tmp_path: Path) -> BoxLiteProvider:
    made = BoxLiteProvider()
    made.set_directories(str(tmp_path / "state"), str(tmp_path / "run"))
    return made


async def test_a_missing_package_is_said(provider: BoxLiteProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """B26: not usable, why, and how."""
    monkeypatch.setattr(engine, "is_installed", lambda: False)
    found = await provider.probe()
    assert (found.usable, found.remedy) == (False, "pip install 'hutch[boxlite]'")


def test_a_machine_without_kvm(tmp_path: Path) -> None:
    assert "there is no" in kvm.obstacle(str(tmp_path / "kvm"))


def test_a_kvm_that_runs_no_guest(tmp_path: Path) -> None:
    """The device is there and opens, and that proves nothing."""
    (tmp_path / "kvm").write_text("")
    assert "no guest runs" in kvm.obstacle(str(tmp_path / "kvm"))


async def test_the_probe_names_what_is_wrong_with_kvm(
    provider: BoxLiteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvm, "obstacle", lambda: "no guest runs: half there")
    found = await provider.probe()
    assert (found.usable, found.reason) == (False, "no guest runs: half there")
    assert "virtualisation" in found.remedy


async def test_the_real_package_on_this_machine(
    provider: BoxLiteProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Honest either way: machines boot and it is usable, or the reason is given; asked again it is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = await provider.probe()
    assert found.usable or (found.reason and found.remedy)
    again = await provider.probe()
    assert (again.usable, again.reason) == (found.usable, found.reason)
    if os.access(kvm.DEVICE, os.R_OK | os.W_OK):
        assert await provider.list() == ()
    else:
        with pytest.raises(EngineError, match="KVM"):
            await provider.list()


async def test_what_it_has_not_is_refused(provider: BoxLiteProvider, tmp_path: Path) -> None:
    order = canary("boxlite", "oci:debian")
    for changes in ({"retention": "persistent"}, {"read_only_root": False}, {"image": "host"}):
        asked = order.but(spec=order.spec.from_plain(order.spec.to_plain() | changes))
        with pytest.raises(Unsupported):
            await provider.create(asked, provider.plan(asked))
    (tmp_path / "empty").mkdir()
    about = (tmp_path / "empty").stat()
    image = CheckedMount(
        real=str(tmp_path / "empty"), target="/", mode=MountMode.RO, dev=about.st_dev, ino=about.st_ino
    )
    asked = order.but(spec=order.spec.but(image=f"dir:{tmp_path}/empty"), places=CheckedMounts(image=image))
    with pytest.raises(NotFound, match="no OCI layout"):
        await provider.create(asked, provider.plan(asked))


def test_unknown_settings_are_named(provider: BoxLiteProvider) -> None:
    with pytest.raises(ConfigError, match="speed"):
        provider.configure({"speed": 1})


def test_errors_of_the_package_are_ours() -> None:
    """Each failure of the engine comes out as one of our errors."""
    wanted = {"NotFoundError": "not_found", "ResourceExhaustedError": "quota", "EngineError": "engine"}
    for name, code in wanted.items():
        assert sdk.to_hutch_error(getattr(boxlite, name)("what happened"), "op").code == code


def test_the_canary_is_an_image_of_our_own(tmp_path: Path) -> None:
    proofs.write_layout(tmp_path, guest_bundle())
    top = json.loads((tmp_path / "index.json").read_text())["manifests"][0]
    manifest = json.loads((tmp_path / "blobs/sha256" / top["digest"].partition(":")[2]).read_text())
    for each in (manifest["config"], *manifest["layers"]):
        assert (tmp_path / "blobs/sha256" / each["digest"].partition(":")[2]).stat().st_size == each["size"]


def test_what_became_of_the_canary_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the user and this boot of the machine, not for one state directory; a server's is another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    proof = proofs.Proof("")
    assert proof.read() is None
    proof.write("it does not boot")
    assert proofs.Proof("").read() == "it does not boot"
    assert proofs.Proof("http://127.0.0.1:1").read() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere/near")
    proofs.Proof("").write("lost")
    assert proofs.Proof("").read() is None
