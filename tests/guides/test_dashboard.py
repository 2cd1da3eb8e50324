"""docs/guides/dashboard.md: its command prints what it shows, and it names every page that there is."""

import os
import re
import subprocess
import sys

from hutch.server.dashboard.sign_ins import LINK_SECONDS, SESSION_SECONDS
from tests.proofs import ROOT
from tests.server.serving import serving

GUIDE = (ROOT / "docs" / "guides" / "dashboard.md").read_text()


def test_the_command_prints_a_link_that_signs_in() -> None:
    (command,) = re.findall(r"^\$ hutch (\w+)$", GUIDE, flags=re.M)
    with serving() as server:
        environ = {**os.environ, "HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run), "DISPLAY": ""}
        environ.pop("WAYLAND_DISPLAY", None)
        answer = subprocess.run(
            [sys.executable, "-m", "hutch.cli.main", command], env=environ, capture_output=True, text=True, check=True
        ).stdout
        url, code = answer.strip().split("/sign-in#")
        assert url == server.announcement["url"]
        assert server.tcp().call("POST", "/v1/dashboard/session", {"code": code}).status == 200


def test_it_names_every_page_and_states_the_true_times() -> None:
    source = (ROOT / "dashboard" / "src" / "app.tsx").read_text()
    titles = re.findall(r'path: "[^"]+", title: "([^"]+)"', source)
    assert len(titles) > 5
    assert [title for title in titles if f"**{title}**" not in GUIDE] == []
    assert (LINK_SECONDS, SESSION_SECONDS) == (600, 12 * 3600)
    assert "within ten minutes" in GUIDE and "twelve hours" in GUIDE
