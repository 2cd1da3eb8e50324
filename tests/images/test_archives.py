"""Images in files: import of OCI layouts, old and new `docker save` archives and plain roots, and export."""

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import HutchError, Invalid, NotFound, Refused
from hutch.images.archives import export, import_path, import_stream
from hutch.images.store import Store
from tests.images.conftest import NOTHING, content
from tests.images.registry_server import Made, descriptor, digest_of, directory, image, small, symlink, tar_of

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def layout(made: Made, name: str = "") -> dict[str, bytes]:
    """Return an OCI layout as files."""
    annotations = {"org.opencontainers.image.ref.name": name} if name else {}
    described = descriptor(made.manifest, MANIFEST) | {"annotations": annotations}
    index = {"schemaVersion": 2, "manifests": [described]}
    blobs = (made.manifest, made.config, *made.layers)
    files = {f"blobs/sha256/{digest_of(blob)[7:]}": blob for blob in blobs}
    return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **files}


def saved(tars: list[bytes], *tags: str) -> list[Any]:
    """Return what old versions of `docker save` wrote: layers in directories, the second one perhaps a link."""
    config = Made(tars, [digest_of(tar) for tar in tars], {"Env": ["A=1"]}).config
    names = [f"{digest_of(tar)[7:19]}{number}/layer.tar" for number, tar in enumerate(tars)]
    members: list[Any] = []
    for number, (name, tar) in enumerate(zip(names, tars, strict=True)):
        first = names[tars.index(tar)]
        members.append((name, {"data": tar}) if tars.index(tar) == number else symlink(name, f"../{first}"))
    plain = [{"Config": "abc.json", "RepoTags": list(tags) or None, "Layers": names}]
    return [*members, ("abc.json", {"data": config}), ("manifest.json", {"data": json.dumps(plain).encode()})]


def written(files: dict[str, bytes], top: Path) -> Path:
    for name, data in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    return top


def packed(files: dict[str, bytes]) -> bytes:
    return tar_of(*((name, {"data": data}) for name, data in files.items()))


def test_a_layout_as_directory_as_tar_and_packed(store: Store, tmp_path: Path) -> None:
    made = small(Env=["A=1"])
    files = layout(made, "team/app:1")
    (found,) = import_path(store, str(written(files, tmp_path / "layout")))
    assert (found.digest, found.stored.name) == (made.digest, "docker.io/team/app:1")
    for number, data in enumerate((packed(files), gzip.compress(packed(files)))):
        (tmp_path / "archive").write_bytes(data)
        (again,) = import_path(store, str(tmp_path / "archive"), f"other{number}")
        assert (again.digest, again.layers) == (made.digest, found.layers)
    assert found.defaults().env == {"A": "1"}
    assert {each.name.rpartition("/")[2] for each in store.names()} == {"app:1", "other0:latest", "other1:latest"}


def test_a_layout_with_only_a_tag_needs_a_name(store: Store, tmp_path: Path) -> None:
    files = layout(image(tar_of(("f", {}))), "1.0")
    with pytest.raises(Invalid, match="does not name its image"):
        import_stream(store, io.BytesIO(packed(files)))
    assert content(store) == NOTHING
    assert import_stream(store, io.BytesIO(packed(files)), "mine")[0].stored.name.endswith("mine:latest")


def test_what_docker_save_wrote(store: Store) -> None:
    """Layers that two images share are links there."""
    tar = tar_of(("f", {"data": b"1"}))
    (one, two) = import_stream(store, io.BytesIO(tar_of(*saved([tar, tar_of(("g", {})), tar], "a:1", "b/c:2"))))
    assert [each.stored.name for each in (one, two)] == ["docker.io/library/a:1", "docker.io/b/c:2"]
    assert one.layers == two.layers and one.layers[0] == one.layers[2]
    assert one.defaults().env == {"A": "1"}


def test_a_plain_root_is_one_layer(store: Store, tmp_path: Path) -> None:
    tar = tar_of(directory("etc"), ("etc/name", {"data": b"root"}))
    (tmp_path / "root.tar.gz").write_bytes(gzip.compress(tar))
    (found,) = import_path(store, str(tmp_path / "root.tar.gz"), "plain")
    assert found.diff_ids == (digest_of(tar),)
    assert Path(found.layers[0], "etc/name").read_text() == "root"
    with pytest.raises(Invalid, match="give it a name"):
        import_path(store, str(tmp_path / "root.tar.gz"))


def test_out_and_in_again_is_the_same_image(store: Store, tmp_path: Path) -> None:
    """Digests survive: what is exported is what was imported, byte for byte."""
    made = small()
    (found,) = import_stream(store, io.BytesIO(packed(layout(made, "team/app:1"))))
    out = io.BytesIO()
    export(store, found, out)
    other = Store(tmp_path / "other")
    (again,) = import_stream(other, io.BytesIO(out.getvalue()))
    assert (again.digest, again.stored.name) == (made.digest, "docker.io/team/app:1")
    assert set(os.listdir(other.path("blobs"))) == set(os.listdir(store.path("blobs")))


def spoiled(files: dict[str, bytes], made: Made) -> dict[str, bytes]:
    name = f"blobs/sha256/{digest_of(made.layers[0])[7:]}"
    return {**files, name: files[name][:-1] + b"!"}


def test_a_spoiled_archive_is_refused_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    made = small()
    files = layout(made, "a:1")
    cases: list[tuple[dict[str, bytes], type[HutchError]]] = [
        (spoiled(files, made), Refused),
        ({name: data for name, data in files.items() if digest_of(made.layers[1])[7:] not in name}, NotFound),
        ({**files, "index.json": b"{}"}, Invalid),
        ({**files, "index.json": b'{"manifests": []}'}, Invalid),
        ({**files, "index.json": b'{"manifests": [{"digest": "sha256:../../etc/passwd"}]}'}, Invalid),
    ]
    for number, (each, kind) in enumerate(cases):
        with pytest.raises(kind):
            import_stream(store, io.BytesIO(packed(each)))
        with pytest.raises(kind):
            import_path(store, str(written(each, tmp_path / f"layout{number}")))
        assert content(store) == NOTHING
    with pytest.raises(Invalid):
        import_stream(store, io.BytesIO(packed(files)[:-14000]))
    with pytest.raises(NotFound):
        import_path(store, "/nowhere", "x")
    assert content(store) == NOTHING


def test_links_of_a_layout_lead_nowhere(store: Store, tmp_path: Path) -> None:
    """A blob that is a link would be a file of the machine."""
    made = image(tar_of(("f", {})))
    top = written(layout(made, "a:1"), tmp_path / "layout")
    blob = top / f"blobs/sha256/{digest_of(made.layers[0])[7:]}"
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotFound):
        import_path(store, str(top))
    assert content(store) == NOTHING


def test_hostile_layers_are_refused_in_every_form(store: Store) -> None:
    evil = tar_of(("ok", {}), ("../outside", {"data": b"x"}))
    for archive in (packed(layout(image(evil), "a:1")), tar_of(*saved([evil], "a:1"))):
        with pytest.raises(Invalid, match="leaves it"):
            import_stream(store, io.BytesIO(archive))
        assert content(store) == NOTHING
    with pytest.raises(Invalid, match="leaves it"):
        import_stream(store, io.BytesIO(evil), "x")
    assert content(store) == NOTHING
    assert not (Path(store.home).parent / "outside").exists()
