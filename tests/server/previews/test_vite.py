"""A Vite React app that npm runs in a box hot-reloads through its preview, in a real browser."""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.server.previews.visiting import Preview
from tests.server.serving import Client, Server
from tests.server.test_browser import CHROMIUM, FLAGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm"),
]

PORT = 5173
PACKAGES = {"react": "18", "react-dom": "18", "vite": "6", "@vitejs/plugin-react": "4"}
SOURCES = {
    "index.html": '<!doctype html><div id="root"></div><script type="module" src="/src/main.jsx"></script>',
    "vite.config.js": "import react from '@vitejs/plugin-react'\nexport default { plugins: [react()] }\n",
    "src/main.jsx": (
        "import { createRoot } from 'react-dom/client'\nimport App from './App.jsx'\n"
        "createRoot(document.getElementById('root')).render(<App />)\n"
    ),
    "src/App.jsx": "export default function App() { return <h1>version one</h1> }\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as an archive, with the packages that npm installed: the box itself has no network."""
    place = tmp_path_factory.mktemp("vite")
    scripts = {"dev": f"vite --port {PORT} --strictPort"}
    manifest = {"name": "app", "private": True, "type": "module", "scripts": scripts, "dependencies": PACKAGES}
    (place / "package.json").write_text(json.dumps(manifest))
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--cache", str(place / "cache")]
    made = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300)
    if made.returncode != 0:
        pytest.skip(f"npm cannot fetch Vite here: {made.stderr[-300:]}")
    shutil.rmtree(place / "cache")
    for name, text in SOURCES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    archive = place.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        for each in sorted(place.iterdir()):
            tar.add(each, each.name)
    return archive


@pytest.fixture
def preview(server: Server, project: Path) -> Iterator[Preview]:
    client = server.tcp(server.key("user", "vite"))
    spec = {"memory_mb": 2048, "disk_mb": 1024, "pids": 256, "ports": [PORT]}
    with client.box(**spec) as path:
        client.good("PUT", f"{path}/files/content?path=app.tar", project.read_bytes())
        made = client.good("POST", f"{path}/exec", {"command": "tar xf app.tar && rm app.tar", "timeout": 300})
        assert made["exit_code"] == 0, (made["stdout"], made["stderr"])
        yield Preview(client, path, client.good("POST", f"{path}/ports/{PORT}/url", {}))


def test_a_vite_app_hot_reloads_through_its_preview(preview: Preview) -> None:
    """The page changes without being loaded anew, so its module came over Vite's WebSocket (S6)."""
    client, path = preview.client, preview.path
    client.good("POST", f"{path}/jobs", {"command": "npm run dev", "env": {"HOME": "/tmp"}})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page()
        # The spec names the port, so the visit waits until the dev server listens.
        page.goto(preview.facts["url"], timeout=120_000)
        page.wait_for_selector("h1:has-text('version one')", timeout=120_000)
        page.evaluate("() => { window.marker = 'same page'; }")
        _edit(client, path, "version two")
        page.wait_for_selector("h1:has-text('version two')", timeout=60_000)
        assert page.evaluate("() => window.marker") == "same page"
        browser.close()


def _edit(client: Client, path: str, text: str) -> None:
    source = SOURCES["src/App.jsx"].replace("version one", text)
    client.good("PUT", f"{path}/files/content?path={os.path.join('src', 'App.jsx')}", source.encode())
