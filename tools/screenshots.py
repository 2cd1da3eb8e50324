"""Take pictures of every page of the dashboard, in both themes and languages at three widths, for people to look at.

usage: tools/screenshots.py [--only PAGE] [--out DIRECTORY]
"""

import argparse
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.dashboard.sample import Sample, sample_server
from tests.dashboard.visitor import chromium, visiting

WIDTHS = (360, 1024, 1920)
HEIGHT = 900


def pages(sample: Sample) -> dict[str, str]:
    box = f"/boxes/{sample.box}"
    tabs = ("terminal", "jobs", "files", "changes", "ports", "notebook", "events", "receipts")
    return {
        "overview": "/", "boxes": "/boxes", "apps": "/apps", "box": box, **{tab: f"{box}/{tab}" for tab in tabs},
        "approvals": "/approvals", "skills": f"/skills/{sample.skill}", "tools": "/tools",
        "mcp-servers": f"/mcp-servers/{sample.mcp_server}", "profiles": "/profiles", "audit": "/audit", "keys": "/keys",
    }  # fmt: skip


@contextmanager
def work(sample: Sample) -> Iterator[None]:
    """An agent that works while the pictures are taken, so that charts and usage have something to show."""
    client, ended = sample.server.tcp(sample.user, hutch_session="agent-3"), threading.Event()
    box = client.good("POST", "/v1/boxes", {"name": "analysis", "memory_mb": 128, "cpus": 1})["id"]
    client.good("POST", f"/v1/boxes/{box}/jobs", {"command": "while true; do sum=$((sum + 1)); done", "name": "count"})
    own = sample.server.tcp(sample.user, hutch_session="dashboard-" + sample.user.split("_")[1])
    path = f"/v1/boxes/{sample.box}"
    own.good("POST", f"{path}/checkpoints", {"name": "before-build"})
    own.good("POST", f"{path}/jobs", {"command": "exec python3 -m http.server 8000", "name": "web"})
    own.good("DELETE", f"{path}/lease")

    app = own.good("POST", "/v1/apps", {"template": "static", "name": "brochure"})
    own.good("DELETE", f"/v1/boxes/{app['box_id']}/lease")

    def run() -> None:
        number = 0
        while not ended.wait(0.4 + number % 5 * 0.2):
            number += 1
            client.call("POST", f"/v1/boxes/{box}/exec", {"command": f"sleep 0.0{number % 7}"})
            if number % 40 == 1:
                client.good("POST", "/v1/boxes", {"name": f"crawler-{number}", "memory_mb": 64, "ttl_sec": 58})
            if number % 25 == 0:
                client.call("GET", "/v1/boxes/nothing")
                client.call("DELETE", f"/v1/boxes/{client.good('POST', '/v1/boxes', {'memory_mb': 64})['id']}")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="take this page only")
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--widths", type=lambda text: tuple(map(int, text.split(","))), default=WIDTHS)
    parser.add_argument("--history", type=float, default=60, help="seconds of work before the first picture")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--themes", default="light,dark")
    parser.add_argument("--languages", default="en,zh")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (
        sample_server() as sample, work(sample), chromium() as browser,
        visiting(browser, sample.server, device_scale_factor=arguments.scale) as visitor,
    ):  # fmt: skip
        page = visitor.page
        page.set_viewport_size({"width": 1024, "height": HEIGHT})
        page.goto(visitor.url + "/sign-in")
        page.get_by_label("Key").wait_for()
        page.screenshot(path=arguments.out / "sign-in.png")
        visitor.sign_in(sample.admin)
        page.wait_for_timeout(arguments.history * 1000)
        for language in arguments.languages.split(","):
            for theme in arguments.themes.split(","):
                chosen = f'{{"theme": "{theme}", "language": "{language}", "allOwners": true}}'
                page.evaluate("(value) => localStorage.setItem('hutch', value)", chosen)
                for name, path in pages(sample).items():
                    if arguments.only and arguments.only != name:
                        continue
                    visitor.go(path)
                    page.locator("main h1, main .panel, main .rows").first.wait_for()
                    for width in arguments.widths:
                        page.set_viewport_size({"width": width, "height": HEIGHT})
                        if name == "terminal":
                            page.locator("[data-phase=open]").wait_for()
                            if width == arguments.widths[0]:
                                page.keyboard.type("ls -l && python3 count.py\n")
                        if name in ("files", "jobs", "apps"):
                            wanted = {"files": "count.py", "jobs": "step", "apps": "brochure"}[name]
                            page.locator(".choices button", has_text=wanted).first.click()
                        if name == "apps" and not page.locator("iframe.preview").count():
                            page.get_by_role("button", name=re.compile("^(Preview|预览)$")).click()
                        page.wait_for_timeout(2600 if name in ("overview", "boxes", "box") else 400)
                        page.screenshot(path=arguments.out / f"{name}-{theme}-{language}-{width}.png")
        for error in visitor.errors + visitor.foreign:
            print(f"screenshots: {error}", file=sys.stderr)
    print(f"screenshots: {len(list(arguments.out.glob('*.png')))} in {arguments.out}")
    return 1 if visitor.errors or visitor.foreign else 0


if __name__ == "__main__":
    sys.exit(main())
