"""A process that embeds Hutch and does what it reads from its standard input, a line of JSON for each step."""

import asyncio
import contextlib
import json
import sys

from hutch import Hutch
from hutch.errors import HutchError


async def main() -> None:
    loop = asyncio.get_running_loop()
    boxes = {}
    async with Hutch() as hutch, contextlib.AsyncExitStack() as stack:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            step = json.loads(line)
            try:
                match step["do"]:
                    case "hold":
                        box = await stack.enter_async_context(hutch.box_for("{chat}", chat=step["chat"]))
                        boxes[step.get("name", step["chat"])] = box
                        answer: object = box.id
                    case "exec":
                        answer = (await boxes[step["chat"]].exec(step["command"])).stdout
                    case "start":
                        answer = (await boxes[step["chat"]].start(step["command"])).id
                    case "write":
                        answer = (await boxes[step["chat"]].files.write(step["path"], step["content"])).size
                    case "read":
                        answer = (await (await boxes[step["chat"]].job(step["job"])).read(0, wait=20)).text
                    case "info":
                        answer = (await boxes[step["chat"]].info()).id
                    case "adopted":
                        reply = [event.kind for event in await hutch.events() if event.box_id == step["box"]]
                        answer = (await hutch.find(step["box"])).elsewhere, reply[-1]
                    case "create":
                        boxes[step["chat"]] = await hutch.create()
                        answer = boxes[step["chat"]].id
                    case "attach":
                        boxes[step["chat"]] = await hutch.attach(step["box"])
                        answer = True
                    case "destroy":
                        answer = await hutch.destroy(step["box"])
                    case _:
                        raise AssertionError(step)
            except HutchError as error:
                answer = {"code": error.code, "message": error.message}
            print(json.dumps(answer), flush=True)


asyncio.run(main())
