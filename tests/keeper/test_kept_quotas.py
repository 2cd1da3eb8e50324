"""Quotas of what an owner keeps: volumes and skills."""

import asyncio
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import QuotaExceeded


async def test_an_owner_keeps_as_many_volumes_and_skills_as_his_quota_allows(tmp_path: Path) -> None:
    """However many are asked for at once; one that is removed makes room, and a new version is no new skill (B15)."""
    quotas = {"*": {"volumes": 2, "skills": 1}}
    async with Hutch(quotas=quotas, state_dir=tmp_path / "s", run_dir=tmp_path / "r") as hutch:
        made = await asyncio.gather(*(hutch.volumes.create(f"v{n}") for n in range(6)), return_exceptions=True)
        assert sum(isinstance(each, QuotaExceeded) for each in made) == 4
        kept = await hutch.volumes.all()
        assert len(kept) == 2
        await hutch.volumes.remove(kept[0].name)
        await hutch.volumes.create("again")
        await hutch.skills.create("first", "the only one")
        with pytest.raises(QuotaExceeded, match="has 1 skills, and may have 1"):
            await hutch.skills.create("second", "one too many")
        assert (await hutch.skills.write_file("first", "notes.md", "changed")).name == "first"
        await hutch.skills.remove("first")
        await hutch.skills.create("second", "now there is room")
