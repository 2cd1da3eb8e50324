"""Fixtures of the keeper's tests."""

from tests.keeper.postgres_server import database as database
from tests.keeper.postgres_server import postgres as postgres
