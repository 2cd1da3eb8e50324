"""Makes a box with two states, says that it begins, and works on its layers until it is killed.

Both files of a state always have the same content, so that a state in between would show.
"""

import asyncio
import sys

from hutch import Hutch
from hutch.api import Box
from hutch.errors import HutchError


async def both(box: Box, value: int) -> None:
    done = await box.exec(f"echo {value} > a; echo {value} > /home/user/b")
    assert done.ok, done


async def work(box: Box, op: str) -> None:
    if op == "checkpoint":
        await box.checkpoint()
    elif op == "rollback":
        await box.rollback("one")
    elif op == "fork":
        await box.fork(2)
    elif op == "merge":
        (fork,) = await box.fork()
        await both(fork, 3)
        await box.merge(fork.id)
    elif op == "squash":
        for number in range(60):
            await box.files.write("count", str(number).encode())
            await box.checkpoint()


async def main(op: str, retention: str) -> None:
    async with Hutch(orphan_grace_sec=60.0, checkpoints_max=1000) as hutch:
        box = await hutch.create(retention=retention)
        await both(box, 1)
        await box.checkpoint("one")
        await both(box, 2)
        print(box.id, flush=True)
        for _ in range(1000):
            try:
                await work(box, op)
            except HutchError as error:
                print(f"refused: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
