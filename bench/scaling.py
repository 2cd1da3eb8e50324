"""A simulation of many Hutch servers on one PostgreSQL and one Kubernetes cluster: `python -m bench.scaling`.

It counts, second by second for an hour, what boxes ask of the store, of the API server and of each Hutch server, while
servers die and their boxes are adopted. What one operation costs the store is counted on a real PostgreSQL by
tests/bench/test_scaling.py; what one costs the cluster, and what each part can take, are the figures below. Set your
own with `--set store_capacity=5000`. docs/scaling.md says what follows.
"""

import argparse
import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STORE_PER_LIFE = 6.0
"""Transactions from creation to end: intent, running, lease, stopping, tombstone, and the receipts' groups."""
STORE_PER_COMMAND = 1.0
"""At most: the receipts of commands within 20 ms of each other share a transaction."""
RENEWAL_SHARE = 0.05
"""The store sees a renewal once it moves the lease's end by this share of its length."""
HEARTBEAT_SECONDS = 5.0
ADOPTION_SECONDS = 45.0
"""Seconds from a server's death until another has adopted its boxes."""
STORE_PER_ADOPTION = 2.0
API_PER_CREATION = 12.0
"""Writes at the API server: policy, secret and Pod, the scheduler's binding, the kubelet's reports and events."""
API_PER_END = 6.0
API_PER_HANDOVER = 1.0
"""A claim from the pool and an adoption each write the Pod's labels."""


@dataclass(frozen=True)
class Setting:
    """A deployment and its load."""

    boxes: int = 10_000
    servers: int = 50
    minutes_of_life: float = 10.0
    seconds_between_commands: float = 10.0
    busy_share: float = 0.5
    """The share of boxes whose holder is at work, so that its lease is renewed."""
    lease_sec: float = 600.0
    hours_between_deaths: float = 72.0
    """Of one server."""
    pods_per_node: int = 110
    receipts: float = 1.0
    """1 if commands leave receipts, else 0."""
    pool_share: float = 0.0
    """The share of creations that a ready box of the pool answers; its Pod was made earlier, at a steady rate."""
    store_capacity: float = 3000.0
    """Transactions a second of a PostgreSQL on a small machine with a fast disk."""
    api_capacity: float = 1500.0
    """Writes a second that etcd on a fast disk takes."""
    scheduler_capacity: float = 50.0
    """Pods a second with kube-scheduler's default --kube-api-qps."""
    server_capacity: float = 1000.0
    """Commands a second of one Hutch server, one core (docs/benchmarks.md)."""


@dataclass
class Load:
    """What one part was asked for in each second."""

    name: str
    capacity: float
    moves: str
    """The setting that moves it."""
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    @property
    def peak(self) -> float:
        """The 99th percentile: a single second may wait for the next."""
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]

    @property
    def used(self) -> float:
        return self.peak / self.capacity


def simulate(setting: Setting, *, seconds: int = 3600, seed: int = 1) -> list[Load]:
    """Return the load of each part, the fullest first."""
    dice = random.Random(seed)
    store = Load("store, transactions", setting.store_capacity, "receipts, lease_sec, fewer commands a box")
    api = Load("API server, writes", setting.api_capacity, "longer lives, a persistent box instead of many")
    scheduler = Load("scheduler, Pods", setting.scheduler_capacity, "--kube-api-qps of kube-scheduler, a larger pool")
    server = Load("one server, commands", setting.server_capacity, "replicas")
    births = setting.boxes / (setting.minutes_of_life * 60)
    boxes_of_server = [setting.boxes / setting.servers] * setting.servers
    returning: list[tuple[int, int]] = []
    """Servers that are dead: the second at which their boxes are adopted, and which one it is."""
    for second in range(seconds):
        adopted_boxes = 0.0
        for at, number in [each for each in returning if each[0] <= second]:
            adopted, boxes_of_server[number] = boxes_of_server[number], 0.0
            boxes_of_server = [boxes + adopted / setting.servers for boxes in boxes_of_server]
            adopted_boxes += adopted
            returning.remove((at, number))
        if dice.random() < setting.servers / (setting.hours_between_deaths * 3600):
            dead = dice.randrange(setting.servers)
            if all(number != dead for _, number in returning):
                returning.append((second + int(ADOPTION_SECONDS), dead))
        begun, ended = _poisson(dice, births), _poisson(dice, births)
        commands = _poisson(dice, setting.boxes / setting.seconds_between_commands)
        renewals = setting.boxes * setting.busy_share / (setting.lease_sec * RENEWAL_SHARE)
        groups = min(commands, setting.servers * 50.0) * STORE_PER_COMMAND * setting.receipts
        beats = setting.servers / HEARTBEAT_SECONDS
        adoptions = adopted_boxes * STORE_PER_ADOPTION
        handovers = adopted_boxes + begun * setting.pool_share
        store.seconds.append((begun + ended) / 2 * STORE_PER_LIFE + groups + renewals + beats + adoptions)
        api.seconds.append(begun * API_PER_CREATION + ended * API_PER_END + handovers * API_PER_HANDOVER)
        scheduler.seconds.append(begun * (1 - setting.pool_share) + births * setting.pool_share)
        server.seconds.append(commands * max(boxes_of_server) / setting.boxes)
    return sorted((store, api, scheduler, server), key=lambda load: load.used, reverse=True)


def _poisson(dice: random.Random, mean: float) -> int:
    """Return how many of many independent events happen in a second."""
    if mean > 30:
        return max(0, round(dice.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), dice.random(), 0
    while product > limit:
        product *= dice.random()
        count += 1
    return count


def table(setting: Setting, loads: Sequence[Load]) -> str:
    """Return a Markdown table, the fullest part first."""
    nodes = math.ceil(setting.boxes / setting.pods_per_node)
    lines = [
        f"{setting.boxes:,} boxes that live {setting.minutes_of_life:g} min, {setting.servers} servers, {nodes} nodes:",
        "",
        "| part, a second | mean | 99 % | takes | used | what moves it |",
        "|---|---|---|---|---|---|",
    ]
    for load in loads:
        numbers = f"{load.mean:,.0f} | {load.peak:,.0f} | {load.capacity:,.0f} | {load.used:.0%}"
        lines.append(f"| {load.name} | {numbers} | {load.moves} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", dest="changes")
    parsed = parser.parse_args(arguments)
    plain = dataclasses.asdict(Setting())
    changes: dict[str, Any] = {}
    for change in parsed.changes:
        name, _, value = change.partition("=")
        if name not in plain:
            parser.error(f"no setting {name!r}; there are {', '.join(plain)}")
        changes[name] = type(plain[name])(float(value))
    for minutes in [changes.pop("minutes_of_life")] if "minutes_of_life" in changes else [1.0, 10.0, 60.0]:
        setting = Setting(minutes_of_life=minutes, **changes)
        print(table(setting, simulate(setting)), end="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
