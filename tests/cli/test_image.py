"""`hutch image …` and boxes on images, as a shell calls them: a real registry, real boxes, real terminals."""

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_process import HUTCH, TIMEOUT, read_until, set_size
from tests.cli.conftest import Home
from tests.images.registry_server import Server, directory, image, running_registry, small, tar_of
from tests.providers import daemons, rootfs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def app(registry: Server) -> str:
    """The name of an image that greets."""
    return registry.push("cli/app", small(Env=["WHO=image"], Entrypoint=["sh", "-c"], Cmd=["echo hello from the $WHO"]))


def test_run_fetches_what_is_missing_and_runs_what_the_image_says(home: Home, app: str) -> None:
    """Entrypoint and cmd without a command; a command of the caller's instead of both."""
    first = home.hutch("run", "--image", f"oci:{app}")
    assert (first.returncode, first.stdout) == (0, b"hello from the image\n"), first.stderr
    assert b"fetching" in first.stderr and b"done" in first.stderr, "without a terminal: lines"
    again = home.hutch("run", "--image", f"oci:{app}", "--pull", "never", "-e", "WHO=caller")
    assert (again.stdout, again.stderr) == (b"hello from the caller\n", b"")
    assert home.good("run", "--image", f"oci:{app}", "--", "cat", "/srv/text") == "of the image"
    assert home.good("run", "--image", f"oci:{app}", "--pull", "always", "--", "echo", "x") == "x\n"


def test_an_image_without_a_command_of_its_own_says_so(home: Home, registry: Server) -> None:
    name = registry.push("cli/mute", small())
    code, answer = home.answer("run", "--image", f"oci:{name}")
    assert code == 125 and "names none" in answer["error"]["message"]
    code, answer = home.answer("run")
    assert code == 125 and "no command" in answer["error"]["message"]


def test_an_image_that_pull_never_forbids_is_refused_with_a_remedy(home: Home, registry: Server) -> None:
    name = registry.push("cli/never", small())
    code, answer = home.answer("run", "--image", f"oci:{name}", "--pull", "never", "--", "true")
    assert code == 125 and answer["error"]["remedy"] == f"hutch image pull {name}"


def test_list_show_remove_prune(home: Home, registry: Server) -> None:
    name = registry.push("cli/listed", small(WorkingDir="/srv", User="app"))
    pulled = home.json("image", "pull", name)
    listed = {each["name"]: each for each in home.json("image", "list")["images"]}[name]
    assert (listed["digest"], listed["layers"], listed["boxes"]) == (pulled["digest"], 2, [])
    shown = home.json("image", "show", pulled["digest"][:20])
    assert shown["config"]["workdir"] == "/srv" and len(shown["layers"]) == 2
    text = home.good("image", "show", name)
    assert "user:      app" in text and pulled["digest"] in text
    assert name in home.good("image", "list")
    box = home.good("box", "create", "--image", f"oci:{name}").strip()
    code, answer = home.answer("image", "remove", name)
    assert code == 125 and answer["error"]["code"] == "conflict" and answer["error"]["details"]["boxes"] == [box]
    assert home.json("image", "show", name)["boxes"] == [box]
    assert home.json("image", "remove", "--force", name)["removed"] == [name]
    home.json("image", "prune")
    assert home.good("box", "exec", box, "--", "cat", "/srv/text") == "of the image", "the box keeps its layers"
    home.good("box", "destroy", box)
    home.json("image", "prune")
    code, answer = home.answer("image", "show", name)
    assert code == 125 and answer["error"]["code"] == "not_found"


def test_box_create_fetches_too(home: Home, registry: Server) -> None:
    name = registry.push("cli/create", small())
    box = home.good("box", "create", "--image", f"oci:{name}").strip()
    assert home.good("box", "exec", box, "--", "cat", "/srv/text") == "of the image"
    home.good("box", "destroy", box)


def test_bars_on_a_terminal(home: Home, registry: Server) -> None:
    name = registry.push("cli/bars", image(tar_of(("big", {"data": os.urandom(3 << 20)}))))
    controller, terminal = pty.openpty()
    set_size(controller, 24, 100)
    try:
        process = subprocess.Popen(
            [*HUTCH, "image", "pull", name], stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
            env={**os.environ, **home.env, "TERM": "xterm"},
        )  # fmt: skip
        answer = read_until(controller, b"sha256:")
        assert process.wait(TIMEOUT) == 0
    finally:
        os.close(controller)
        os.close(terminal)
    assert b"\x1b[" in answer and b"done, 3.1 MB" in answer


def test_a_password_is_read_and_never_shown(home: Home, tmp_path: Path) -> None:
    with running_registry(tmp_path / "closed", user="ann", password="not-on-the-command-line") as server:
        name = server.push("cli/private", small())
        env = {**home.env, "DOCKER_CONFIG": "/nowhere"}
        refused = subprocess.run([*HUTCH, "image", "pull", name], capture_output=True, env={**os.environ, **env})
        assert refused.returncode == 125 and b"--password-stdin" in refused.stderr
        given = home.hutch(
            "image", "pull", "--verbose", "-u", "ann", "--password-stdin", name, stdin=b"not-on-the-command-line\n"
        )
        assert given.returncode == 0 and b"not-on-the-command-line" not in given.stdout + given.stderr


def test_import_and_export(home: Home, app: str, tmp_path: Path) -> None:
    pulled = home.json("image", "pull", app)
    home.good("image", "export", app, "--output", str(tmp_path / "app.tar"))
    moved = home.json("image", "import", str(tmp_path / "app.tar"), "moved:1")["images"][0]
    assert moved["digest"] == pulled["digest"]
    assert home.good("run", "--image", "oci:moved:1") == "hello from the image\n"
    root = tar_of(directory("etc"), ("etc/x", {"data": b"x"}))
    assert home.hutch("image", "import", "-", "plain", stdin=root).returncode == 0
    assert {"moved:1", "plain:latest"} <= {each["short"] for each in home.json("image", "list")["images"]}
    code, answer = home.answer("image", "import", str(tmp_path / "nothing"), "x")
    assert code == 125 and answer["error"]["code"] == "not_found"
    home.good("image", "remove", "moved:1", "plain")


# --- building ------------------------------------------------------------------------------------------------


def test_build(home: Home, app: str, tmp_path: Path, rootless: bool) -> None:
    """Commands, copies and words in their order; deletions too; the same steps are not made twice."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/file").write_text("deep")
    (source / "run.sh").write_text("#!/bin/sh\ncat /data/deep/file; echo; cat made; echo $MODE; ls /old /srv /tmp\n")
    (source / "run.sh").chmod(0o755)
    command = (
        "echo $MODE-$WHO > made; ln made linked; chmod 640 made; rm /srv/note; rm -r /old; mkdir /old; touch /old/z; "
        "echo t > /tmp/t"
    )
    words = [
        "image", "build", "built:1", "--from", app, "--user", "root", "--env", "MODE=first",
        "--copy", f"{source}:/data", "--workdir", "/data", "--run", command, "--env", "MODE=last",
        "--copy", f"{source}/run.sh:/usr/local/bin/", "--entrypoint", "/usr/local/bin/run.sh",
    ]  # fmt: skip
    built = home.hutch(*words)
    assert built.returncode == 0, built.stderr
    expected = "deep\nfirst-image\nlast\n/old:\nz\n\n/srv:\nsame\ntext\n\n/tmp:\nt\n"
    run = ("run", "--image", "oci:built:1")
    assert home.good(*run) == expected
    stat = home.good(*run, "--", "stat", "-c", "%a:%h:%u", "/data/made", "/data/linked").split()
    assert stat == ["640:2:1000" if rootless else "640:2:0"] * 2
    before = home.good("run", "--image", f"oci:{app}", "--", "ls", "/").split()
    assert set(home.good(*run, "--", "ls", "/").split()) - set(before) == {"data", "usr"}
    again = home.json("image", "build", *words[2:])
    assert again["cached_steps"] == 3 and again["digest"] == home.json("image", "show", "built:1")["digest"]
    (source / "deep/file").write_text("changed")
    after = home.json("image", "build", *words[2:])
    assert after["cached_steps"] == 0, "what was copied has changed, and every later step stands on it"
    assert home.good(*run).startswith("changed\n")
    (source / "deep/file").touch()
    assert home.json("image", "build", *words[2:])["cached_steps"] == 3, "a touched file is the same file"
    assert home.json("image", "build", "--no-cache", *words[2:])["cached_steps"] == 0


def test_a_build_step_that_fails_makes_no_image(home: Home, app: str) -> None:
    code, answer = home.answer(
        "image", "build", "failed", "--from", app, "--user", "root", "--run", "echo no >&2; exit 3"
    )
    assert code == 125 and answer["error"]["details"]["exit_code"] == 3
    assert "step 2 of 2" in answer["error"]["message"] and answer["error"]["details"]["stderr"] == "no\n"
    assert home.answer("image", "show", "failed")[0] == 125
    for words in (("--copy", "nothing"), ("--copy", "/nowhere:/x"), ("--workdir",)):
        assert home.answer("image", "build", "failed", "--from", app, *words)[0] == 125


def test_a_build_has_no_network_unless_asked(home: Home, app: str) -> None:
    """And copies go where the image's links lead, not over them."""
    look = "test $(ls /sys/class/net 2>/dev/null | wc -l) -le 1; cat /proc/net/dev > /devices"
    home.good("image", "build", "alone", "--from", app, "--user", "root", "--run", look)
    devices = home.good("run", "--image", "oci:alone", "--", "cat", "/devices")
    assert [line.split(":")[0].strip() for line in devices.splitlines()[2:]] == ["lo"]


def test_a_build_step_that_waits_for_ever_is_ended_and_says_for_what(home: Home, app: str) -> None:
    """Without an outside network a step hung; it has a bound of its own, and the error says where to look."""
    code, answer = home.answer(
        "image", "build", "hung", "--from", app, "--user", "root", "--timeout", "0.5", "--run", "while :; do :; done"
    )
    assert code == 125 and "step 2 of 2" in answer["error"]["message"]
    assert "--timeout" in answer["error"]["remedy"] and "--net on" in answer["error"]["remedy"]
    assert "30m" in home.good("image", "build", "--help")


def test_copies_follow_the_links_of_the_image(home: Home, registry: Server, tmp_path: Path) -> None:
    """A file for /bin of an image whose /bin is a link must not turn the link into a directory."""
    from tests.images.registry_server import TOOLS, busybox, symlink

    members = [("usr/" + name if name != "bin" else "usr/bin", facts) for name, facts in busybox(*TOOLS)]
    name = registry.push("cli/linked", image(tar_of(directory("usr"), *members, symlink("bin", "usr/bin"))))
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o755)
    home.good("image", "build", "tooled", "--from", name, "--copy", f"{tmp_path}/tool:/bin/")
    assert (
        home.good("run", "--image", "oci:tooled", "--", "sh", "-c", "tool; ls -d /usr/bin/tool")
        == "tool\n/usr/bin/tool\n"
    )


def test_settings_of_images(home: Home, registry: Server, tmp_path: Path) -> None:
    """`[images]`: policy, bounds and passwords, which `config show` hides; a wrong one is refused with its place."""
    name = registry.push("cli/bounded", image(tar_of(*((f"f{number}", {}) for number in range(30)))))
    config = tmp_path / "hutch.toml"
    config.write_text(
        '[images.bounds]\nentries = 10\n[images.registries."h:1"]\nusername = "a"\npassword = "hunter2"\n'
    )
    code, answer = home.answer("image", "pull", "--config", str(config), name)
    assert code == 125 and "more than 10 entries" in answer["error"]["message"]
    shown = home.good("config", "show", "--config", str(config))
    assert "hunter2" not in shown and "entries" in shown
    config.write_text('[images]\npull = "sometimes"\n')
    code, answer = home.answer("image", "list", "--config", str(config))
    assert (
        code == 125
        and "hutch.toml:" in answer["error"]["message"]
        and "missing, always, never" in answer["error"]["message"]
    )


def test_an_image_of_a_box(home: Home, app: str, tmp_path: Path, rootless: bool) -> None:
    """Everything that the box changed is in the image, also what it deleted; over several layers (issue 20)."""
    user = () if rootless else ("--user", "root")
    made = home.hutch("box", "create", "--name", "dev", "--image", f"oci:{app}", "--keep", "10m", *user)
    assert made.returncode == 0, made.stderr
    assert (
        home.hutch("box", "exec", "dev", "--", "sh", "-c", "echo one > /workspace/a; echo t > /tmp/t").returncode == 0
    )
    assert home.hutch("box", "checkpoint", "dev", "--name", "c").returncode == 0
    change = "echo two > /workspace/a; mkdir /workspace/d; ln -s a /workspace/d/l; rm /tmp/t"
    assert home.hutch("box", "exec", "dev", "--", "sh", "-c", change).returncode == 0
    image = home.json("image", "from-box", "dev", "mine:1")
    assert image["name"].endswith("mine:1")
    look = "cat /workspace/a /workspace/d/../a; readlink /workspace/d/l; ls /tmp"
    ran = home.hutch("run", "--image", "oci:mine:1", "--", "sh", "-c", look)
    assert ran.stdout == b"two\ntwo\na\n", ran
    home.good("image", "export", "mine:1", "--output", str(tmp_path / "mine.tar"))
    moved = home.json("image", "import", str(tmp_path / "mine.tar"), "moved:2")["images"][0]
    assert moved["digest"] == image["digest"], "other engines get the same image"
    refused, answer = home.answer("image", "from-box", "none", "x")
    assert refused != 0 and answer
    assert home.hutch("box", "create", "--name", "plain", "--image", "host", "--keep", "10m").returncode == 0
    refused, answer = home.answer("image", "from-box", "plain", "x")
    assert refused != 0 and "oci:" in str(answer)


def test_an_image_of_a_box_has_the_same_files_on_docker(home: Home, tmp_path: Path) -> None:
    """Issue 20: `image from-box` gives an image that runs on native and on Docker with the same files."""
    look = "cd /workspace && find . | LC_ALL=C sort && cat a d/f && readlink l && stat -c '%a %h' a"
    with daemons.docker() as docker:
        (tmp_path / "root.tar").write_bytes(rootfs.archive())
        home.good("image", "import", str(tmp_path / "root.tar"), "tools:1")
        assert home.hutch("box", "create", "--name", "tool", "--image", "oci:tools:1", "--keep", "10m").returncode == 0
        change = "cd /workspace && echo one > a && chmod 640 a && mkdir d && echo f > d/f && ln -s a l"
        assert home.hutch("box", "exec", "tool", "--", "sh", "-c", change).returncode == 0
        assert home.hutch("box", "checkpoint", "tool").returncode == 0
        home.good("box", "exec", "tool", "--", "sh", "-c", "echo two > /workspace/d/f; ln /workspace/a /workspace/b")
        home.good("image", "from-box", "tool", "mine:2")
        native = home.hutch("run", "--image", "oci:mine:2", "--", "sh", "-c", look)
        assert native.returncode == 0 and b"two" in native.stdout, native
        home.good("image", "export", "mine:2", "--output", str(tmp_path / "mine.tar"))
        assert daemons.run(_ran_on_docker(docker, (tmp_path / "mine.tar").read_bytes(), look)) == native.stdout.decode()


async def _ran_on_docker(docker: daemons.Daemon, archive: bytes, command: str) -> str:
    engine = daemons.engine_of(docker)
    loaded = await engine.call("POST", "/images/load", body=archive)
    name = loaded["stream"].partition(": ")[2].strip()
    host = {"NetworkMode": "none", "CgroupParent": daemons.CGROUP}
    body = {"Image": name, "Entrypoint": ["/bin/sh", "-c", command], "HostConfig": host}
    await engine.create("looks", body)
    await engine.start("looks")
    await engine.wait("looks")
    raw = await engine.http.raw("GET", "/containers/looks/logs", query={"stdout": True, "stderr": True})
    text = b""
    while raw:
        size = int.from_bytes(raw[4:8], "big")
        text, raw = text + raw[8 : 8 + size], raw[8 + size :]
    return text.decode()
