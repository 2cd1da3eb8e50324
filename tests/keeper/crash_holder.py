"""A process that keeps what it is asked to make: one line in, one line out, until it is killed.

make SPEC-AS-JSON      a box; its id                exec ID COMMAND   what the command said
start ID COMMAND       a job; its id                pause ID          its state
write ID PATH TEXT     the path                     kept              how many boxes it has
close                  ends the keeper in good order
"""

import asyncio
import json
import sys

from hutch.errors import HutchError
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.embedded import Hutch


class Holder:
    def __init__(self, hutch: Hutch) -> None:
        self._hutch = hutch
        self._boxes: dict[str, BoxHandle] = {}

    async def answer(self, line: str) -> str:
        word, _, rest = line.partition(" ")
        if word == "make":
            box = await self._hutch.create(**json.loads(rest))
            self._boxes[box.id] = box
            return box.id
        if word == "kept":
            return str(len(self._hutch._keeper.boxes()))
        box_id, _, rest = rest.partition(" ")
        box = self._boxes[box_id]
        if word == "exec":
            return (await box.exec(rest)).stdout.strip()
        if word == "start":
            return (await box.start(rest)).id
        if word == "write":
            path, _, text = rest.partition(" ")
            return (await box.files.write(path, text)).path
        if word == "pause":
            await box.pause()
            return str(await box.state())
        raise ValueError(line)


async def main(state: str, run: str, grace: float) -> None:
    hutch = Hutch(state_dir=state, run_dir=run, provider="native", orphan_grace_sec=grace, log_level="off")
    print("keeper", hutch._keeper.id, flush=True)
    async with hutch:
        holder = Holder(hutch)
        while (line := (await asyncio.to_thread(sys.stdin.readline)).strip()) not in ("", "close"):
            try:
                print(await holder.answer(line), flush=True)
            except HutchError as error:
                print("error", error.code, flush=True)
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
