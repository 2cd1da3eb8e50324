"""The store: nothing incomplete is used, nothing in use is removed, nothing unused stays."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hutch.errors import Conflict, EngineError, NotFound
from hutch.images import build_cache, prune, uses
from hutch.images.archives import import_stream
from hutch.images.store import Image, Store
from hutch.model.ids import new_box_id
from tests.images.conftest import NOTHING, content
from tests.images.registry_server import image, tar_of
from tests.images.test_archives import layout, packed


def make(store: Store, name: str, *tars: bytes) -> Image:
    return import_stream(store, io.BytesIO(packed(layout(image(*tars), f"t/{name}:1"))))[0]


BASE = tar_of(("base", {"data": b"b" * 5000}))


def test_removing_frees_only_what_nobody_else_needs(store: Store) -> None:
    first = make(store, "first", BASE, tar_of(("one", {"data": b"1" * 3000})))
    second = make(store, "second", BASE, tar_of(("two", {"data": b"2" * 3000})))
    _, gone = prune.remove(store, "t/first:1")
    assert gone.layers == 1 and not os.path.exists(first.layers[0])
    assert os.path.exists(second.layers[1]) and store.open("t/second:1").layers == second.layers
    with pytest.raises(NotFound):
        store.open("t/first:1")
    prune.remove(store, second.digest)
    assert content(store) == NOTHING


def test_an_image_with_two_names_is_removed_with_the_last(store: Store) -> None:
    one = make(store, "one", BASE)
    store.set_name(one.stored.but(name=str(store.reference("other"))))
    assert prune.remove(store, "t/one:1")[1].layers == 0
    assert store.open("other").layers == one.layers


def test_what_a_box_stands_on_stays(store: Store, tmp_path: Path) -> None:
    """Removal is refused without force; with force only the name is removed, and the layers are removed with the
    box."""
    found = make(store, "used", BASE)
    box_id = new_box_id()
    (tmp_path / box_id).mkdir()
    uses.record(store, box_id, found.stored, (str(tmp_path / box_id),))
    os.utime(store.path("uses", f"{box_id}.json"), (1, 1))
    with pytest.raises(Conflict, match=box_id):
        prune.remove(store, "t/used:1")
    assert store.open("t/used:1")
    prune.remove(store, "t/used:1", force=True)
    assert prune.prune(store).layers == 0 and os.path.exists(found.layers[0])
    (tmp_path / box_id).rmdir()  # as if its process had been killed: the record is stale now
    assert prune.prune(store).layers == 1
    assert content(store) == NOTHING and os.listdir(store.path("uses")) == []


def test_a_mark_is_believed_while_its_box_may_be_on_its_way(store: Store) -> None:
    found = make(store, "young", BASE)
    uses.record(store, new_box_id(), found.stored, ("/nowhere",))
    prune.remove(store, "t/young:1", force=True)
    assert os.path.exists(found.layers[0])


def test_prune_takes_steps_and_cut_downloads(store: Store) -> None:
    found = make(store, "kept", BASE)
    Path(store.path("partial", "ab" * 32)).write_bytes(b"half")
    with store.lock_shared():
        from hutch.images.build import ImageBuild

        step = ImageBuild(store, found).make_layer(lambda out: out.write(tar_of(("step", {"data": b"s"}))))
        build_cache.save(store, "key", step)
    prune.remove(store, "t/kept:1")
    assert build_cache.find(store, "key") == step, "removing an image leaves what builds have made"
    prune.prune(store)
    assert content(store) == NOTHING


def test_collection_waits_for_additions(store: Store) -> None:
    with store.lock_shared(), pytest.raises(Conflict, match="being pulled"), store.lock_exclusive(timeout=0):
        raise AssertionError("collected beside a pull")
    prune.prune(store)


def test_a_blob_changed_on_disk_is_noticed(store: Store) -> None:
    found = make(store, "changed", BASE)
    path = Path(store.blob_path(found.digest))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(EngineError, match="changed on disk"):
        store.open("t/changed:1")


def test_a_layer_without_its_record_is_none(store: Store) -> None:
    """The record is written last: a crash leaves a directory without one, and the next collection removes it."""
    found = make(store, "crashed", BASE)
    record = next(name for name in content(store)["layers"] if name.endswith(".json"))
    os.unlink(store.path("layers", record))
    with pytest.raises(NotFound):
        store.open("t/crashed:1")
    again = make(store, "crashed", BASE)
    assert again.layers != found.layers, "never the same path: a box may still be mounted there"
    prune.prune(store)
    assert len(content(store)["layers"]) == 2


KILLED = """
import io, os, sys
sys.path[:0] = {path!r}
from hutch.images.layers import unpack as unpacking
from hutch.images.store import Store
from tests.images.test_store import BASE, make
real = unpacking.unpack
def stuck(*given, **named):
    real(*given, **named)
    print("unpacked", flush=True)
    sys.stdin.read()
unpacking.unpack = stuck
make(Store({home!r}), "killed", BASE)
"""


def test_a_process_killed_while_it_unpacks_leaves_nothing_that_is_used(store: Store) -> None:
    """A process is killed between unpacking and naming; the next one cleans up and leaves a live one's work alone."""
    code = KILLED.format(path=sys.path, home=store.home)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"unpacked\n"
        prune.sweep(store)
        assert len(content(store)["drafts"]) >= 2, "somebody is at work on it"
        process.send_signal(signal.SIGKILL)
    assert content(store)["names"] == content(store)["layers"] == []
    prune.sweep(store)
    assert content(store)["drafts"] == []
    assert make(store, "killed", BASE).layers
    prune.remove(store, "t/killed:1")
    assert content(store) == NOTHING


def test_old_partial_downloads_are_swept(store: Store) -> None:
    store.prepare()
    for name, age in (("old", 2 * 86400), ("new", 60)):
        Path(store.path("partial", name)).write_bytes(b"x")
        os.utime(store.path("partial", name), (time.time() - age, time.time() - age))
    prune.sweep(store)
    assert content(store)["partial"] == ["new"]
