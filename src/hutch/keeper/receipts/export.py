"""Checks a file of exported receipts without the ledger it came from: every line, every chain, and the whole file."""

import hashlib
from collections.abc import Iterable

import msgspec

from hutch.errors import Invalid
from hutch.keeper.receipts.chain import ChainVerifier, Row, pruning_problem
from hutch.keeper.receipts.receipts import trailer
from hutch.model.compatibility import convert_lenient, decode_record
from hutch.model.receipts import Chain, ChainCheck, Receipt

_CHAIN = b'{"chain":'
_EXPORT = b'{"export":'


def check_export(lines: Iterable[bytes]) -> list[ChainCheck]:
    """Return a verdict for each chain. A fault of the file itself comes last, without a box. Lines keep their ends."""
    checker = _ExportChecker()
    for number, line in enumerate(lines, 1):
        checker.line(number, line)
    checker.end()
    return checker.checks


class _ExportChecker:
    """Reads an export line by line and collects the verdicts."""

    def __init__(self) -> None:
        self.checks: list[ChainCheck] = []
        self._rows: list[Row] = []
        self._verifier: ChainVerifier | None = None
        self._digest = hashlib.sha256()
        self._receipts = 0
        self._chains = 0
        self._ended = False
        self._fault = ""

    def line(self, number: int, line: bytes) -> None:
        if self._ended:
            self._fault = self._fault or f"line {number}: there is something after the end"
            return
        if line.startswith(_EXPORT):
            self._ended = True
            if line != trailer(self._chains, self._receipts, self._digest.hexdigest()) + b"\n":
                self._fault = self._fault or f"line {number}: the file is not what was exported"
            return
        self._digest.update(line)
        try:
            if not line.endswith(b"\n"):
                raise Invalid("it is cut off")
            self._head(line[:-1]) if line.startswith(_CHAIN) else self._receipt(line[:-1])
        except Invalid as error:
            self._fault = self._fault or f"line {number}: {error.message}"

    def end(self) -> None:
        if self._verifier is not None and not self._fault:
            self._fault = f"the chain of box {self._verifier.box} has no end"
        if not self._ended:
            self._fault = self._fault or "the file is cut off: its last line is missing"
        if self._fault:
            at = self._verifier
            self.checks.append(
                ChainCheck(
                    box=at.box if at else "",
                    ok=False,
                    count=at.count if at else 0,
                    problem=self._fault,
                    broken=at.count + 1 if at else None,
                )
            )

    def _receipt(self, line: bytes) -> None:
        self._receipts += 1
        if self._verifier is None:
            first = decode_record(line, Receipt)
            self._verifier = ChainVerifier(first.box, first.owner)
        if self._verifier.broken is None:
            try:
                self._verifier.check([Row.of_line(line)])
            except Invalid as error:
                self._verifier.fail(error.message)

    def _head(self, line: bytes) -> None:
        self._chains += 1
        try:
            chain = convert_lenient(msgspec.json.decode(line)["chain"], Chain)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise Invalid(f"not the head of a chain: {error}") from error
        verifier = self._verifier or ChainVerifier(chain.box, chain.owner)
        self._verifier = None
        if chain.pruned_at and not verifier.count:
            problem = pruning_problem(chain)
            self.checks.append(
                ChainCheck(
                    box=chain.box,
                    owner=chain.owner,
                    pruned_at=chain.pruned_at,
                    pruned_why=chain.pruned_why,
                    ok=not problem,
                    broken=0 if problem else None,
                    problem=problem,
                )
            )
        elif (verifier.box, verifier.owner) != (chain.box, chain.owner):
            verifier.fail(f"it stands in the chain of box {chain.box}, owner {chain.owner}")
            self.checks.append(verifier.result(chain))
        else:
            self.checks.append(verifier.result(chain))
