"""Native boxes on images of the store: what they see, what they run with, and that no layer in use is removed."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import Conflict, NotFound
from hutch.images import prune, uses
from hutch.images.archives import import_stream
from hutch.images.pull import pull
from hutch.images.store import Store
from hutch.sync import Hutch
from tests.conftest import remove
from tests.images.registry_server import TOOLS, Server, busybox, directory, image, small, tar_of
from tests.images.test_archives import layout, packed


@pytest.fixture
def state(hutch_directories: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A short path, because sockets are below it."""
    path = hutch_directories / f"i{abs(hash(request.node.name)) % 10000}"
    path.mkdir()
    yield path
    remove(path)


@contextmanager
def opened(state: Path, **settings: Any) -> Iterator[tuple[Hutch, Store]]:
    with Hutch(state_dir=str(state / "s"), run_dir=str(state / "r"), **settings) as hutch:
        yield hutch, Store(state / "s/images")


def load(store: Store, made: Any, name: str = "app:1") -> None:
    import_stream(store, io.BytesIO(packed(layout(made, name))))


def test_a_box_sees_the_layers_as_one(state: Path, rootless: bool) -> None:
    """Deletions, hidden directories, hard links, owners and modes are right, on a read-only and a writable root."""
    with opened(state) as (hutch, store):
        load(store, small())
        with hutch.box(image="oci:app:1") as box:
            assert box.exec("ls /etc").stdout.split() == [
                "group", "hostname", "hosts", "passwd", "pip.conf", "resolv.conf",
            ]  # fmt: skip
            assert box.exec("ls /old").stdout.split() == ["new"]
            one, same = box.exec("stat -c %i:%h /srv/note /srv/same").stdout.split()
            assert one == same and one.endswith(":2")
            owner = "1000" if rootless else "4321"
            assert box.exec("stat -c %u:%a /srv/note").stdout.strip() == f"{owner}:640"
            assert "Read-only" in box.exec("touch /srv/x").stderr
            flags = next(line.split()[3] for line in box.exec("cat /proc/mounts").stdout.splitlines() if " / " in line)
            assert {"nosuid", "nodev"} <= set(flags.split(",")), "set-user-id files of an image are just files"
            assert box.exec("touch /workspace/x /tmp/y && id -un").stdout == "user\n"
        with hutch.box(image="oci:app:1", read_only_root=False, user=None if rootless else "root") as box:
            change = "rm -r /old /srv/note && echo changed >/etc/passwd && mkdir /old && ls /old /srv"
            assert box.exec(change).stdout.split() == ["/old:", "/srv:", "same", "text"]
        with hutch.box(image="oci:app:1") as box:
            assert "new" in box.exec("ls /old").stdout, "what a box changes is its own"
            assert "app" in box.exec("cat /etc/passwd").stdout


def test_the_image_s_own_settings_apply_where_the_caller_gave_none(state: Path, rootless: bool) -> None:
    """Env, workdir and user are the caller's, then the profile's, then the image's."""
    made = small(Env=["A=image", "B=image", "PATH=/bin"], WorkingDir="/srv", User="app:staff")
    with opened(state) as (hutch, store):
        load(store, made)
        show = "echo $A $B $PATH; pwd; id -u"
        with hutch.box(image="oci:app:1", env={"B": "caller"}) as box:
            user = "1000" if rootless else "4321"
            assert box.exec(show).stdout.split() == ["image", "caller", "/bin", "/srv", user]
            adjusted = [str(each) for each in box.adjustments if each.field == "user"]
            assert bool(adjusted) == rootless, "a user that cannot be given is reported"
        with hutch.box(image="oci:app:1", workdir="/tmp", user="user", secrets={"A": "hidden"}) as box:
            assert box.exec(show).stdout.split() == ["hidden", "image", "/bin", "/tmp", "1000"]


NONSENSE: list[dict[str, Any]] = [
    {"WorkingDir": "/"}, {"User": "nobody-here"}, {"User": "99999999"}, {"Env": ["=x", "Y"]}, {"WorkingDir": "../x"},
    {"WorkingDir": "/a/../../b"}, {"Env": ["A\0=x", "B=\0"]},
]  # fmt: skip


@pytest.mark.parametrize("config", NONSENSE)
def test_words_that_make_no_sense_are_passed_over(state: Path, config: dict[str, Any]) -> None:
    with opened(state) as (hutch, store):
        load(store, small(**config))
        with hutch.box(image="oci:app:1") as box:
            assert box.exec("pwd; id -u").stdout.split() == ["/workspace", "1000"]


def test_an_image_may_have_as_many_layers_as_any_builder_makes(state: Path) -> None:
    """127 layers work with mounts beside them; each is a descriptor on the way to the box."""
    layers = [tar_of((f"f{number}", {"data": b"x"})) for number in range(126)]
    with opened(state, mount_roots=[str(state)]) as (hutch, store):
        load(store, image(tar_of(*busybox(*TOOLS)), *layers))
        (state / "shown").mkdir()
        with hutch.box(image="oci:app:1", mounts=[f"{state}/shown:/mnt/shown"]) as box:
            assert box.exec("ls -d /f* /mnt/shown | wc -l").stdout.strip() == "127"


def test_what_is_missing_is_not_fetched_unasked(state: Path, registry: Server) -> None:
    """An application's boxes use local images only, unless the configuration says otherwise."""
    name = registry.push("boxes/app", small())
    with opened(state) as (hutch, _):
        with pytest.raises(NotFound, match=f"hutch image pull {name}"):
            hutch.create(image=f"oci:{name}")
    with opened(state, images={"pull": "missing"}) as (hutch, _):
        with hutch.box(image=f"oci:{name}") as box:
            assert box.exec("cat /srv/text").stdout == "of the image"
        made = image(tar_of(directory("srv"), ("srv/text", {"data": b"newer"})))
        registry.push("boxes/app", stacked(made))
        with hutch.box(image=f"oci:{name}") as box:
            assert box.exec("cat /srv/text").stdout == "of the image", "it is not missing"
    with opened(state, images={"pull": "always"}) as (hutch, _), hutch.box(image=f"oci:{name}") as box:
        assert box.exec("cat /srv/text").stdout == "newer"


def stacked(above: Any) -> Any:
    """Return the small image with another layer."""
    made = small()
    made.layers += above.layers
    made.diff_ids += above.diff_ids
    return made


def test_an_image_in_use_stays_and_a_box_that_comes_back_stands_on_it(state: Path) -> None:
    """A name may mean another image later; forcing the name away takes no layer from a stopped box."""
    with opened(state) as (hutch, store):
        load(store, small())
        box = hutch.create(image="oci:app:1", retention="persistent", read_only_root=False)
        assert box.exec("echo mine >/workspace/mine; cat /old/new").stdout == "n"
        load(store, stacked(image(tar_of(directory("old"), ("old/new", {"data": b"other"})))))
        prune.prune(store)
        with pytest.raises(Conflict, match=box.id):
            prune.remove(store, uses.live(store)[box.id].image)
        box_id = box.id
    # The box is stopped now, with its keeper.
    prune.remove(store, "app:1")
    prune.prune(store)
    with opened(state) as (hutch, store):
        again = hutch.attach(box_id, takeover=True)
        assert again.exec("cat /old/new /workspace/mine").stdout == "nmine\n"
        again.destroy()
        assert uses.live(store) == {}
        assert prune.prune(store).layers >= 2
        assert os.listdir(store.path("layers")) == []


def test_a_box_lives_on_when_its_image_is_forced_away(state: Path) -> None:
    with opened(state) as (hutch, store):
        load(store, small())
        with hutch.box(image="oci:app:1") as box:
            prune.remove(store, "app:1", force=True)
            prune.prune(store)
            assert box.exec("cat /srv/text && ls /old").stdout == "of the imagenew\n"
        prune.prune(store)
        assert os.listdir(store.path("layers")) == []
        with pytest.raises(NotFound):
            hutch.create(image="oci:app:1")
        load(store, small())
        with hutch.box(image="oci:app:1") as box:
            assert box.exec("cat /srv/text").stdout == "of the image", "unpacked anew, under another path"


def test_the_same_from_a_registry(state: Path, registry: Server) -> None:
    """An image pulled by name and by digest gives the same result as from the archive."""
    made = small(Env=["A=1"])
    name = registry.push("boxes/same", made)
    with opened(state) as (hutch, store):
        pull(store, name)
        load(store, made, "archive:1")
        seen = set()
        for reference in (name, made.digest, "archive:1"):
            with hutch.box(image=f"oci:{reference}") as box:
                seen.add(box.exec("ls -la /etc /old /srv /bin; cat /srv/same; env | sort | grep -v HOSTNAME").stdout)
        assert len(seen) == 1
