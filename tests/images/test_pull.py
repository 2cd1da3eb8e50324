"""Pulling from a real registry on loopback: complete and verified, or nothing at all (P18, S8)."""

import base64
import gzip
import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hutch import logs
from hutch.errors import ConfigError, HutchError, Invalid, NotFound, Refused, Unauthenticated, Unavailable, Unsupported
from hutch.images.connection import ConnectionRules, request
from hutch.images.credentials import Credentials
from hutch.images.manifests import MANIFEST, parse_platform
from hutch.images.pull import LayerProgress, PullOptions, pull
from hutch.images.settings import Bounds, ImageSettings, RegistrySettings
from hutch.images.store import Image, Store
from tests.images.conftest import NOTHING, content
from tests.images.cutting_proxy import cutting_proxy
from tests.images.registry_server import (
    Made,
    Server,
    authority,
    descriptor,
    digest_of,
    directory,
    hard_link,
    image,
    running_registry,
    small,
    tar_of,
)
from tests.images.token_server import ISSUER, SERVICE, tokens


def noise(count: int) -> bytes:
    """Content that does not compress, so that a connection can be cut in the middle of it."""
    return tar_of(("noise", {"data": os.urandom(count)}))


def test_an_image_comes_whole_and_a_second_one_costs_only_its_own(registry: Server, store: Store) -> None:
    base, extra = noise(200_000), tar_of(("extra", {"data": b"e"}))
    news: list[LayerProgress] = []
    first = pull(store, registry.push("a/first", image(base)), PullOptions(listener=news.append))
    assert first.layers and os.listdir(first.layers[0]) == ["noise"]
    assert {each.step for each in news} == {"waiting", "fetching", "unpacking", "done"}
    assert max(each.done for each in news) == len(gzip.compress(base, 1, mtime=0))
    blobs = set(os.listdir(store.path("blobs")))
    news.clear()
    second = pull(store, registry.push("a/second", image(base, extra)), PullOptions(listener=news.append))
    added = {name: os.stat(store.path("blobs", name)).st_size for name in set(os.listdir(store.path("blobs"))) - blobs}
    assert len(added) == 3 and sum(added.values()) < 5000, "its own layer, configuration and manifest"
    assert second.layers[1] == first.layers[0], "the shared layer is one directory"
    assert {each.step for each in news if each.total > 1000} == {"waiting", "fetching", "unpacking", "there"}
    assert len(content(store)["layers"]) == 4 and content(store)["drafts"] == content(store)["partial"] == []


def test_a_name_by_digest_is_that_image_or_refused(registry: Server, store: Store) -> None:
    made = image(tar_of(("f", {"data": b"1"})))
    registry.push("a/pinned", made)
    found = pull(store, f"{registry.address}/a/pinned@{made.digest}")
    assert found.digest == made.digest
    assert store.open(made.digest[:20]).layers == found.layers, "the beginning of its digest is a name too"


def test_of_several_platforms_ours_is_taken(registry: Server, store: Store) -> None:
    made = {name: image(tar_of(("name", {"data": name.encode()}))) for name in ("amd64", "arm64", "s390x")}
    for name, each in made.items():
        registry.push("a/many", each, tag=name)
    manifests: list[dict[str, Any]] = [
        descriptor(each.manifest, MANIFEST) | {"platform": {"os": "linux", "architecture": name}}
        for name, each in made.items()
    ]
    index = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
    registry.put_manifest("a/many", "all", index, "application/vnd.oci.image.index.v1+json")
    name = f"{registry.address}/a/many:all"
    ours = "amd64" if os.uname().machine == "x86_64" else "arm64"
    assert pull(store, name).digest == made[ours].digest
    assert pull(store, name, PullOptions(platform=parse_platform("linux/s390x"))).digest == made["s390x"].digest
    with pytest.raises(NotFound, match="it exists for linux/amd64, linux/arm64, linux/s390x"):
        pull(store, name, PullOptions(platform=parse_platform("linux/riscv64")))


def test_what_is_not_there_says_so(registry: Server, store: Store) -> None:
    with pytest.raises(NotFound, match="no such image"):
        pull(store, f"{registry.address}/a/nothing")
    assert content(store) == NOTHING
    with pytest.raises(Unavailable, match="after 3 tries"):
        pull(store, "127.0.0.1:1/a/nothing")
    with pytest.raises(NotFound, match="hutch image pull nothing"):
        store.open("nothing")


# --- what is refused leaves nothing behind -------------------------------------------------------------------


def refused(registry: Server, store: Store, made: Made, kind: type[HutchError], match: str) -> None:
    """Push it beside a good layer, so that something has arrived by then."""
    name = registry.push(f"a/refused-{digest_of(made.manifest)[7:19]}", made)
    with pytest.raises(kind, match=match):
        pull(store, name)
    assert content(store) == NOTHING, "not even the good layers of a refused image stay"


def test_a_spoiled_blob_is_refused(registry: Server, store: Store) -> None:
    """A byte is changed in the registry's own data, and the digest shows it."""
    made = image(noise(50_000), noise(60_000))
    name = registry.push("a/spoiled", made)
    path = registry.blob_file(digest_of(made.layers[1]))
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(Refused, match="the registry sent"):
        pull(store, name)
    assert content(store) == NOTHING


def test_a_spoiled_manifest_is_refused(registry: Server, store: Store) -> None:
    made = image(noise(100))
    registry.push("a/changed", made)
    path = registry.blob_file(made.digest)
    path.write_bytes(path.read_bytes().replace(b'"size"', b'"siZe"'))
    with pytest.raises(HutchError):
        pull(store, f"{registry.address}/a/changed@{made.digest}")
    assert content(store) == NOTHING


def test_a_layer_that_is_not_what_the_image_says_is_refused(registry: Server, store: Store) -> None:
    """The bytes are those of the registry, but the diff id says that they are not those that were built."""
    made = image(noise(100), tar_of(("f", {"data": b"real"})))
    made.diff_ids[1] = digest_of(tar_of(("f", {"data": b"said"})))
    refused(registry, store, made, Refused, "the image declares")


@pytest.mark.parametrize(
    ("tar", "kind", "match"),
    [
        (tar_of(("../outside", {"data": b"x"})), Invalid, "leaves it"),
        (tar_of(hard_link("h", "/etc/passwd")), Invalid, "same layer"),
        (tar_of(*((f"f{n}", {}) for n in range(300))), Refused, "more than 200 entries"),
        (noise(3 << 20), Refused, "more than 2 MB"),
        (b"no archive at all" * 100, Invalid, "not a readable archive"),
    ],
    ids=["dots", "hard link", "entries", "size", "noise"],
)
def test_a_hostile_layer_is_refused(
    registry: Server, store: Store, tar: bytes, kind: type[HutchError], match: str
) -> None:
    store.settings = store.settings.but(bounds=Bounds(entries=200, unpacked_mb=2))
    refused(registry, store, image(tar_of(("good", {"data": b"g"})), tar), kind, match)


def test_an_image_of_too_many_layers_is_refused(registry: Server, store: Store) -> None:
    made = image(*(tar_of((f"f{number}", {})) for number in range(5)))
    store.settings = store.settings.but(bounds=Bounds(layers=4))
    refused(registry, store, made, Unsupported, "5 layers, and a box supports 4")


def test_a_claimed_size_bounds_what_is_read(registry: Server, store: Store) -> None:
    store.settings = store.settings.but(bounds=Bounds(blob_mb=1))
    refused(registry, store, image(noise(2 << 20)), Refused, "blob_mb")


# --- connections that are cut --------------------------------------------------------------------------------


def test_a_cut_connection_is_resumed(registry: Server, store: Store) -> None:
    """The rest is requested by Range: two cuts add no more to the download than what was on the wire."""
    made = image(noise(4 << 20))
    registry.push("a/long", made)
    with cutting_proxy(registry.address, after=1 << 20, cuts=2) as proxy:
        found = pull(store, f"{proxy.address}/a/long")
        assert proxy.cut_count == 2
        assert proxy.passed < len(made.layers[0]) * 1.3
    assert found.digest == made.digest
    assert content(store)["partial"] == []


def test_a_connection_that_is_always_cut_fails_and_the_next_pull_resumes(registry: Server, store: Store) -> None:
    made = image(noise(4 << 20))
    registry.push("a/never", made)
    with cutting_proxy(registry.address, after=1 << 20, cuts=1000) as proxy:
        with pytest.raises(Unavailable, match="after 3 tries"):
            pull(store, f"{proxy.address}/a/never")
    left = content(store)
    assert left["names"] == left["layers"] == left["drafts"] == [], "nothing that could be taken for an image"
    assert left["partial"] == [digest_of(made.layers[0])[7:]]
    with cutting_proxy(registry.address, after=1 << 30, cuts=0) as proxy:
        assert pull(store, f"{proxy.address}/a/never").digest == made.digest
        assert proxy.passed < len(made.layers[0]) / 2, "what had arrived was not fetched again"
    assert content(store)["partial"] == []


def test_what_an_earlier_pull_left_is_not_believed(registry: Server, store: Store) -> None:
    made = image(noise(100_000))
    name = registry.push("a/left", made)
    store.prepare()
    for data in (os.urandom(5000), os.urandom(500_000)):
        partial = Path(store.path("partial", digest_of(made.layers[0])[7:]))
        partial.write_bytes(data)
        assert pull(store, name).digest == made.digest
        assert content(store)["partial"] == []
        Path(store.blob_path(digest_of(made.layers[0]))).unlink()


# --- authentication ------------------------------------------------------------------------------------------

PASSWORD = "a-password-that-nobody-sees"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A registry that requires a password."""
    with running_registry(tmp_path_factory.mktemp("closed"), user="ann", password=PASSWORD) as server:
        server.push("team/private", image(tar_of(("f", {"data": b"1"}))))
        yield server


@pytest.fixture
def lines() -> Any:
    """Return everything that is logged."""
    found: list[str] = []
    logs.configure(level="debug", write=found.append)
    yield found
    logs.configure()


def test_missing_or_wrong_credentials(closed: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    with pytest.raises(Unauthenticated, match="requires credentials") as caught:
        pull(store, f"{closed.address}/team/private")
    assert "docker login" in caught.value.remedy
    with pytest.raises(Unauthenticated, match=r"does not accept") as caught:
        pull(store, f"{closed.address}/team/private", PullOptions(credentials=Credentials("ann", "wrong-password")))
    assert "wrong-password" not in str(caught.value) + repr(caught.value.details)
    assert content(store) == NOTHING


@pytest.mark.parametrize("way", ["given", "configured", "file", "environment", "docker", "helper"])
def test_every_way_to_say_who_we_are(
    closed: Server, store: Store, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """Credentials come from flags, configuration, files, the environment, `docker login` and helpers; none is
    logged."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    how = PullOptions()
    if way == "given":
        how = PullOptions(credentials=Credentials("ann", PASSWORD))
    elif way == "configured":
        store.settings = ImageSettings(registries={closed.address: RegistrySettings(username="ann", password=PASSWORD)})
    elif way == "file":
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        table = RegistrySettings(username="ann", password_file=str(tmp_path / "password"))
        store.settings = ImageSettings(registries={closed.address: table})
    elif way == "environment":
        monkeypatch.setenv("HUTCH_REGISTRY", closed.address)
        monkeypatch.setenv("HUTCH_REGISTRY_USERNAME", "ann")
        monkeypatch.setenv("HUTCH_REGISTRY_PASSWORD", PASSWORD)
    elif way == "docker":
        auth = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {closed.address: {"auth": auth}}}))
    else:
        helper = tmp_path / "docker-credential-of-tests"
        answer = json.dumps({"Username": "ann", "Secret": PASSWORD})
        helper.write_text(f"#!/bin/sh\nread server; [ \"$server\" = {closed.address} ] && echo '{answer}'\n")
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {closed.address: "of-tests"}}))
    assert pull(store, f"{closed.address}/team/private", how).layers
    logs.log("test").info("said", words=f"ann:{PASSWORD}")
    assert PASSWORD not in "".join(lines) and "ann:***" in "".join(lines)
    assert PASSWORD not in repr(how)


def test_a_bearer_token_is_fetched_with_the_password(
    tmp_path: Path, store: Store, registry: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token flow works against a real registry that checks real signatures."""
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    with tokens(tmp_path / "tokens", "ann", PASSWORD) as (giving, realm):
        bundle = {"rootcertbundle": str(giving.certificate), "issuer": ISSUER, "service": SERVICE, "realm": realm}
        made = small()
        with running_registry(tmp_path / "open") as filling:  # the same data, filled without authentication
            filling.push("team/secret", made)
        with running_registry(tmp_path / "open", auth={"token": bundle}) as server:
            name = f"{server.address}/team/secret"
            with pytest.raises(Refused, match="refers us to"):
                pull(store, name)
            # A token server on this machine must be configured: a registry may only send us to public addresses.
            store.settings = ImageSettings(tries=3, registries={urlsplit(realm).netloc: RegistrySettings()})
            with pytest.raises(Unauthenticated):
                pull(store, name)
            giving.asked.clear()
            assert pull(store, name, PullOptions(credentials=Credentials("ann", PASSWORD))).digest == made.digest
            assert len(giving.asked) == 1, "one token serves the whole pull"
            assert "scope=repository%3Ateam%2Fsecret%3Apull" in giving.asked[0]


def test_another_machine_is_not_asked_without_tls(store: Store) -> None:
    """Plain HTTP is for this machine, unless the configuration names the registry."""
    name = "10.255.255.1:5000/a/b"
    store.settings = ImageSettings(tries=1, timeout_sec=0.2)
    with pytest.raises(Unavailable):  # by TLS, which nobody answers
        pull(store, name)
    with pytest.raises(Refused, match="without TLS"):
        request("http://10.255.255.1:5000/v2/", ConnectionRules(0.2, {"10.255.255.1:5000": RegistrySettings()}), {})


def test_a_password_goes_to_the_registry_it_is_for(
    closed: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    monkeypatch.setenv("HUTCH_REGISTRY", "registry.example.org")
    monkeypatch.setenv("HUTCH_REGISTRY_USERNAME", "ann")
    monkeypatch.setenv("HUTCH_REGISTRY_PASSWORD", PASSWORD)
    with pytest.raises(Unauthenticated, match="requires credentials"):
        pull(store, f"{closed.address}/team/private")


def test_a_registry_that_speaks_no_tls_says_so(registry: Server, store: Store) -> None:
    with pytest.raises(Unavailable, match="does not speak TLS"):
        request(f"https://{registry.address}/v2/", ConnectionRules(5.0, {registry.address: RegistrySettings()}), {})


# --- TLS -----------------------------------------------------------------------------------------------------


def test_a_registry_with_tls_is_trusted_by_its_authority_alone(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority of a private registry's certificate comes from a setting or from the system (B42)."""
    vouched, other = authority(tmp_path / "ca"), authority(tmp_path / "other")
    made = small()
    with running_registry(tmp_path / "tls", certified_by=vouched) as server:
        name = server.push("team/app", made)

        def pulled_with(**table: object) -> Image:
            store.settings = ImageSettings(tries=1, registries={server.address: RegistrySettings(**table)})
            return pull(store, name)

        with pytest.raises(Unavailable, match="cannot be trusted") as caught:
            pulled_with(authority=str(other.certificate))
        assert server.address in caught.value.remedy
        with pytest.raises(ConfigError, match="cannot be read"):
            pulled_with(authority=str(tmp_path / "no-such-file"))
        assert content(store) == NOTHING
        assert pulled_with(authority=str(vouched.certificate)).digest == made.digest

        rules = ConnectionRules(10.0, {server.address: RegistrySettings()})
        with pytest.raises(Unavailable, match="cannot be trusted"):
            request(f"https://{server.address}/v2/", rules, {})
        monkeypatch.setenv("SSL_CERT_FILE", str(vouched.certificate))
        request(f"https://{server.address}/v2/", rules, {}).close()


# --- side by side --------------------------------------------------------------------------------------------


def test_many_pulls_of_the_same_layers_fetch_each_once(registry: Server, store: Store) -> None:
    made = image(noise(1 << 20), noise(1 << 20), tar_of(directory("d")))
    registry.push("a/same", made)
    results: list[object] = []
    with cutting_proxy(registry.address, after=1 << 40, cuts=0) as proxy:

        def work() -> None:
            try:
                results.append(pull(Store(store.home), f"{proxy.address}/a/same").digest)
            except BaseException as error:  # what a thread raises is a result too
                results.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [made.digest] * 4
        assert proxy.passed < sum(map(len, made.layers)) * 1.2, "each layer came once"
    assert len([name for name in content(store)["layers"] if not name.endswith(".json")]) == 3


def test_a_pull_that_is_stopped_stops(registry: Server, store: Store) -> None:
    stop = threading.Event()

    def listen(news: LayerProgress) -> None:
        if news.step == "fetching" and news.done:
            stop.set()

    name = registry.push("a/stopped", image(noise(8 << 20), noise(8 << 20)))
    with pytest.raises(BaseException) as caught:
        pull(store, name, PullOptions(listener=listen), stop)
    assert type(caught.value).__name__ == "Stopped"
    assert content(store)["names"] == content(store)["drafts"] == []
