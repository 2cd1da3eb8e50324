"""Providers that break one sentence of the contract each, to show that the checks would notice."""

from tests.conformance.mutants import commands, files, jobs, layers, lives, outputs, ports, walls
from tests.conformance.mutants.mutant import Mutant

MUTANTS: tuple[type[Mutant], ...] = tuple(
    kind
    for module in (commands, outputs, jobs, files, lives, layers, ports, walls)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Mutant) and kind.kills
)
