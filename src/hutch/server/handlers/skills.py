"""Skills over HTTP: install, read and edit the owner's skills, with their versions and groups.

No request names a path of this machine: a skill comes as an archive in the body, as files, or from a git URL, which is
fetched in a box.
"""

from typing import Annotated

import msgspec

from hutch.errors import Invalid
from hutch.model.record import Record
from hutch.model.skills import SkillBinding, SkillFile, SkillInfo, SkillVersion
from hutch.server.access import using
from hutch.server.request import BYTES, Call, Reply
from hutch.skills.content import MAX_FILE_BYTES, MAX_PACKAGE_BYTES
from hutch.skills.manifest import MANIFEST, edit_manifest
from hutch.skills.sources import Source, Zip, new_skill

FAILS = ("not_found", "conflict", "refused", "too_large", "file_not_found", "file_failed", "timeout")
"""Errors of every route that works on a skill."""

Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
Url = Annotated[str, msgspec.Meta(pattern="^https://[^ ]+$", max_length=2000)]
Version = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{6,64})?$")]
"""A digest or its beginning; empty for the active version."""
Text = Annotated[str, msgspec.Meta(max_length=200)]


class SkillBody(Record, frozen=True, kw_only=True):
    """A skill to install: either `git`, or `name` and `description` of a new skill."""

    git: Url | None = None
    """The URL of a repository."""
    ref: Text = ""
    """A branch, tag or commit; empty for the default branch."""
    path: Text = ""
    """The path of the skill in the repository, if it holds several."""
    digest: Version = ""
    """Install it only if it is this version, which a preview has shown."""
    name: Name | None = None
    description: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    body: Annotated[str, msgspec.Meta(max_length=200_000)] = ""
    """The instructions, in Markdown."""


class ArchiveQuery(Record, frozen=True, kw_only=True):
    path: Text = ""
    """The path of the skill in the archive, if it holds several."""
    digest: Version = ""
    """Install it only if it is this version, which a preview has shown."""
    name: Name | None = None
    """Install it only if the skill has this name."""


class VersionQuery(Record, frozen=True, kw_only=True):
    version: Version = ""


class FileQuery(Record, frozen=True, kw_only=True):
    path: str
    version: Version = ""


class WriteFileQuery(Record, frozen=True, kw_only=True):
    path: str
    executable: bool = False
    expect: Version = ""
    """The version that the change is based on; a conflict if another version is active."""


class RemoveFileQuery(Record, frozen=True, kw_only=True):
    path: str
    expect: Version = ""


class SkillEdit(Record, frozen=True, kw_only=True):
    """Changes to SKILL.md; the rest of that file stays as it is, byte for byte."""

    description: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    body: Annotated[str, msgspec.Meta(max_length=200_000)] | None = None
    expect: Version = ""


class VersionBody(Record, frozen=True, kw_only=True):
    version: Version = ""
    """Empty for the active version (pin), or the one before it (rollback)."""


class InBoxBody(Record, frozen=True, kw_only=True):
    box: str
    """The id of the box."""
    path: str = ""
    """The path of the edited copy in the box; empty for `edit` in the skill's state directory."""


class BoxBody(Record, frozen=True, kw_only=True):
    box: str
    """The id of the box."""


class BindingBody(Record, frozen=True, kw_only=True):
    skills: list[Name]
    """The skills of the group; an empty list removes the group."""


class SkillList(Record, frozen=True, kw_only=True):
    skills: tuple[SkillInfo, ...]


class SkillText(Record, frozen=True, kw_only=True):
    body: str


class SkillFiles(Record, frozen=True, kw_only=True):
    files: tuple[SkillFile, ...]


class SkillVersions(Record, frozen=True, kw_only=True):
    versions: tuple[SkillVersion, ...]


class SkillBindings(Record, frozen=True, kw_only=True):
    bindings: tuple[SkillBinding, ...]


# --- all skills ------------------------------------------------------------------------------------------------


async def list_skills(call: Call) -> Reply:
    """List the owner's skills by name."""
    return Reply(SkillList(skills=await call.own.skills.all()))


async def install(call: Call, body: SkillBody) -> Reply:
    """Install a skill from a git repository, or create one with a single file."""
    source = await _source(call, body)
    return Reply(await call.own.skills.install(source, digest=body.digest, new=body.name is not None), 201)


async def preview(call: Call, body: SkillBody) -> Reply:
    """Show what installing a skill would add and change."""
    return Reply(await call.own.skills.preview(await _source(call, body)))


async def _source(call: Call, body: SkillBody) -> Source:
    if body.git is not None and body.name is None:
        return await call.own.skills.fetch(body.git, body.ref, body.path)
    if body.name is not None and body.git is None:
        return new_skill(body.name, body.description, body.body)
    raise Invalid("give either git or name", remedy="an archive goes to /v1/skills/archive")


async def install_archive(call: Call, query: ArchiveQuery) -> Reply:
    """Install a skill from the zip file in the body."""
    source = await _archive_source(call, query.path)
    return Reply(await call.own.skills.install(source, digest=query.digest, name=query.name or ""), 201)


async def preview_archive(call: Call, query: ArchiveQuery) -> Reply:
    """Show what installing this zip file would add and change."""
    return Reply(await call.own.skills.preview(await _archive_source(call, query.path)))


async def _archive_source(call: Call, path: str) -> Source:
    content = b"".join([piece async for piece in call.pieces(MAX_PACKAGE_BYTES)])
    return Zip("sent.zip", content, path)


# --- one skill ------------------------------------------------------------------------------------------------


async def get(call: Call) -> Reply:
    """Return the active version of a skill."""
    return Reply(await call.own.skills.get(call.params["skill"]))


async def edit(call: Call, body: SkillEdit) -> Reply:
    """Create a version with other instructions or another description."""
    skills, name = call.own.skills, call.params["skill"]
    skill = await skills.get(name)
    if body.description is None and body.body is None:
        return Reply(skill)
    content = await skills.read_file(name, MANIFEST, skill.digest)
    changes = {MANIFEST: edit_manifest(content, body.description, body.body)}
    return Reply(await skills.change_files(name, changes, expect=body.expect or skill.digest))


async def remove(call: Call) -> Reply:
    """Remove a skill with all its versions, also from running boxes."""
    await call.own.skills.remove(call.params["skill"])
    return Reply(status=204)


async def text(call: Call) -> Reply:
    """Return the instructions of a skill without the front matter."""
    return Reply(SkillText(body=await call.own.skills.body(call.params["skill"])))


async def versions(call: Call) -> Reply:
    """List the versions of a skill, newest first."""
    found = await call.own.skills.versions(call.params["skill"])
    return Reply(SkillVersions(versions=found))


async def list_files(call: Call, query: VersionQuery) -> Reply:
    """List the files of one version."""
    found = await call.own.skills.files(call.params["skill"], query.version)
    return Reply(SkillFiles(files=found))


async def read_file(call: Call, query: FileQuery) -> Reply:
    """Return one file of a skill."""
    name = call.params["skill"]
    data = await call.own.skills.read_file(name, query.path, query.version)
    headers = {"content-disposition": "attachment", "content-security-policy": "sandbox"}
    return Reply(data, type=BYTES, headers=headers)


async def write_file(call: Call, query: WriteFileQuery) -> Reply:
    """Create a version in which this file has the content of the body."""
    data = b"".join([piece async for piece in call.pieces(MAX_FILE_BYTES)])
    name, skills = call.params["skill"], call.own.skills
    return Reply(await skills.write_file(name, query.path, data, executable=query.executable, expect=query.expect))


async def remove_file(call: Call, query: RemoveFileQuery) -> Reply:
    """Create a version without this file."""
    return Reply(await call.own.skills.remove_file(call.params["skill"], query.path, expect=query.expect))


async def export(call: Call, query: VersionQuery) -> Reply:
    """Return one version as a zip file; the same version always gives the same bytes."""
    name = call.params["skill"]
    data = await call.own.skills.export(name, query.version)
    return Reply(data, type=BYTES, headers={"content-disposition": f'attachment; filename="{name}.zip"'})


async def pin(call: Call, body: VersionBody) -> Reply:
    """Pin a version: the active version does not change until it is unpinned."""
    return Reply(await call.own.skills.pin(call.params["skill"], body.version))


async def unpin(call: Call) -> Reply:
    """Unpin a skill."""
    return Reply(await call.own.skills.unpin(call.params["skill"]))


async def rollback(call: Call, body: VersionBody) -> Reply:
    """Make another version the active one."""
    return Reply(await call.own.skills.rollback(call.params["skill"], body.version))


async def upgrade(call: Call) -> Reply:
    """Install the newest version from the source of the active one."""
    skills, name = call.own.skills, call.params["skill"]
    origin = await skills.origin(name)
    if origin.kind != "git":
        # The server's user named this path earlier; the caller gets only what policy shows of it now.
        config = call.keeper.config
        return Reply(await skills.upgrade(name, lambda place: config.host_place(place, "skill's source")))
    source = await skills.fetch(origin.place, origin.ref, origin.path)
    return Reply(await skills.install(source, name=name))


async def save(call: Call, body: InBoxBody) -> Reply:
    """Save a copy that was edited in a box as a new version."""
    name, skills = call.params["skill"], call.own.skills
    await skills.get(name)
    call.params = {"skill": name, "box": body.box}
    async with using(call) as box:
        return Reply(await skills.save(name, box, body.path))


async def prepare(call: Call, body: BoxBody) -> Reply:
    """Prepare a skill in a box: install its dependencies, create its state directory, set its environment."""
    name, skills = call.params["skill"], call.own.skills
    await skills.get(name)
    call.params = {"skill": name, "box": body.box}
    async with using(call) as box:
        return Reply(await skills.prepare(name, box))


# --- groups -----------------------------------------------------------------------------------------------------


async def list_bindings(call: Call) -> Reply:
    """List the groups: named sets of skills for boxes created with `skills: GROUP`."""
    return Reply(SkillBindings(bindings=await call.own.skills.bindings()))


async def bind(call: Call, body: BindingBody) -> Reply:
    """Set the skills of a group, also in running boxes."""
    return Reply(await call.own.skills.bind(call.params["group"], tuple(body.skills)))
