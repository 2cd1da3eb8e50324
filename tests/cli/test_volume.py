"""`hutch volume …`: a directory that several boxes share and that outlives them."""

import pytest

from tests.cli.conftest import Home

pytestmark = pytest.mark.slow


def test_a_volume_outlives_the_boxes_that_share_it(home: Home) -> None:
    """Two boxes see each other's files; a volume in use is not removed; its files stay when the boxes are gone (B9)."""
    assert home.good("volume", "create", "shared") == "shared\n"
    code, answer = home.answer("volume", "create", "shared")
    assert (code, answer["error"]["code"]) == (125, "conflict")
    one = home.good("box", "create", "--workspace", "volume:shared").strip()
    two = home.good("box", "create", "--workspace", "volume:shared").strip()
    home.good("box", "exec", one, "--", "sh", "-c", "echo for all > file")
    assert home.good("box", "exec", two, "cat", "file") == "for all\n"
    (volume,) = home.json("volume", "list")["volumes"]
    assert (volume["name"], sorted(volume["boxes"])) == ("shared", sorted([one, two]))
    code, answer = home.answer("volume", "remove", "shared")
    assert (code, answer["error"]["code"]) == (125, "conflict")
    home.good("box", "destroy", one, two)
    shown = home.json("volume", "show", "shared")
    assert (shown["bytes"], shown["boxes"]) == (len("for all\n"), [])
    assert "size:  8 B" in home.good("volume", "show", "shared")
    home.good("volume", "remove", "shared")
    assert home.json("volume", "list")["volumes"] == []
    assert home.answer("volume", "show", "shared")[1]["error"]["code"] == "not_found"


def test_a_name_that_is_none(home: Home) -> None:
    done = home.hutch("volume", "create", "../out")
    assert (done.returncode, b"no name for a volume" in done.stderr) == (125, True)
