"""`LocalApps`: the apps of a process that keeps its own boxes."""

from typing import Any

from hutch.api import Box, Hutch
from hutch.api.apps import ANSWER_SECONDS
from hutch.apps import app
from hutch.apps.templates import TEMPLATES, Template, find_template
from hutch.model.apps import AppInfo, TemplateInfo
from hutch.model.boxes import BoxInfo, Preview


class LocalApps:
    """The `Apps` protocol on boxes of this process."""

    def __init__(self, hutch: Hutch) -> None:
        self._hutch = hutch

    async def templates(self) -> tuple[TemplateInfo, ...]:
        return tuple(each.info() for each in TEMPLATES.values())

    async def create(self, template: str, name: str = "", /, *, port: int = 0, **spec: Any) -> AppInfo:
        found = find_template(template)
        box = await self._hutch.create(**app.box_arguments(found, name, port, spec))
        try:
            await app.launch(box, found, port)
            return await app.inspect(box, await box.info())
        except BaseException:
            await self._hutch.destroy(box.id, force=True)
            raise

    async def all(self) -> tuple[AppInfo, ...]:
        found = [info for info in await self._hutch.boxes() if info.spec.labels.get(app.LABEL) in TEMPLATES]
        return tuple([await app.inspect_app(info, self._hutch.observe) for info in found])

    async def get(self, name: str) -> AppInfo:
        info, _ = await self._find(name)
        return await app.inspect_app(info, self._hutch.observe)

    async def wait(self, name: str, timeout_sec: float = ANSWER_SECONDS) -> AppInfo:
        box, template = await self._attach(name)
        return await app.wait_for_answer(box, template, timeout_sec)

    async def url(self, name: str, *, public: bool = False, ttl_sec: float = 3600.0) -> Preview:
        box, _ = await self._attach(name)
        info = await app.inspect(box, await box.info())
        return await box.url(info.port, public=public, ttl_sec=ttl_sec)

    async def logs(self, name: str, lines: int = 200) -> tuple[str, ...]:
        info, _ = await self._find(name)
        return await app.read_log(await self._hutch.observe(info.id), lines)

    async def start(self, name: str) -> AppInfo:
        box, template = await self._attach(name)
        await app.launch(box, template)
        return await app.inspect(box, await box.info())

    async def stop(self, name: str) -> AppInfo:
        box, _ = await self._attach(name)
        await app.end(box)
        return await app.inspect(box, await box.info())

    async def remove(self, name: str) -> None:
        info, _ = await self._find(name)
        await self._hutch.destroy(info.id)

    async def _find(self, name: str) -> tuple[BoxInfo, Template]:
        info = await self._hutch.find(name)
        return info, app.template_of(info.id, info.spec)

    async def _attach(self, name: str) -> tuple[Box, Template]:
        info, template = await self._find(name)
        return await self._hutch.attach(info.id), template
