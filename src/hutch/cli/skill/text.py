"""How skills are told to people."""

import time

from hutch.cli.output import emit_json, note, printable, table
from hutch.cli.tables import amount
from hutch.model.durations import shown
from hutch.model.skills import SkillInfo, SkillPermissions, SkillPreview


def tell(skill: SkillInfo, *, as_json: bool) -> None:
    """One line after a change."""
    if as_json:
        emit_json(skill.to_plain())
        return
    print(f"{skill.name} {skill.digest[:12]}{' (pinned)' if skill.pinned else ''}")
    if skill.warning:
        note(printable(skill.warning))


def tell_all(skills: tuple[SkillInfo, ...]) -> None:
    rows = [
        (
            skill.name, skill.digest[:12] + ("*" if skill.pinned else ""), str(skill.versions), amount(skill.size),
            shown(time.time() - skill.installed_at), printable(skill.description)[:60],
        )
        for skill in skills
    ]  # fmt: skip
    table(("SKILL", "VERSION", "KEPT", "SIZE", "AGE", "DESCRIPTION"), rows)


def tell_preview(found: SkillPreview) -> None:
    print(f"{found.name}  {found.digest[:12]}  from {printable(found.origin)}")
    print(f"  {printable(found.description)}")
    print(f"  {len(found.files)} files, {amount(found.size)}")
    for file in found.files:
        mark = "x" if file.executable else " "
        print(f"    {mark} {amount(file.size):>10}  {printable(file.path)}")
    for tool in found.tools:
        print(f"  tool {tool.name}: {printable(' '.join(tool.command))}")
    for line in permissions(found.permissions):
        print(f"  {line}")
    for kind, names in (("python", found.dependencies.python), ("node", found.dependencies.node)):
        if names:
            print(f"  needs ({kind}): {printable(', '.join(names))}")
    if found.replaces:
        print(f"  replaces {found.replaces[:12]}:" if found.changes else "  is the active version already")
        for change in found.changes:
            print(f"    {change.kind:<8} {printable(change.path)}")
    for warning in found.warnings:
        note(printable(warning))


def permissions(declared: SkillPermissions) -> list[str]:
    told = []
    if declared.network is not None:
        told.append(f"network: {'yes' if declared.network else 'no'}")
    if declared.paths is not None:
        told.append(f"paths: {printable(', '.join(declared.paths)) or 'none'}")
    if declared.tools is not None:
        told.append(f"tools: {printable(', '.join(declared.tools)) or 'none'}")
    return told
