"""Skills over HTTP: install, read, edit, versions and groups, each of the caller's owner.

Nobody names a path of this machine here: a skill comes as an archive in the body, as files, or from a git URL, which is
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
"""What can go wrong with a skill, whatever is asked of it (B40)."""

Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
Url = Annotated[str, msgspec.Meta(pattern="^https://[^ ]+$", max_length=2000)]
Version = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{6,64})?$")]
"""A digest, or its beginning; empty: the active one."""
Text = Annotated[str, msgspec.Meta(max_length=200)]


class SkillBody(Record, frozen=True, kw_only=True):
    """Either `git`, or `name` and `description` of a new skill."""

    git: Url | None = None
    """Of a repository."""
    ref: Text = ""
    """A branch, tag or commit; empty: the default branch."""
    path: Text = ""
    """Which of several skills, below the top of the repository."""
    digest: Version = ""
    """Only if it is this version, as a preview has shown it."""
    name: Name | None = None
    description: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    body: Annotated[str, msgspec.Meta(max_length=200_000)] = ""
    """The instructions, in Markdown."""


class ArchiveQuery(Record, frozen=True, kw_only=True):
    path: Text = ""
    """Which of several skills in the archive."""
    digest: Version = ""
    """Only if it is this version, as a preview has shown it."""
    name: Name | None = None
    """Only if it is the skill of this name."""


class VersionQuery(Record, frozen=True, kw_only=True):
    version: Version = ""


class FileQuery(Record, frozen=True, kw_only=True):
    path: str
    version: Version = ""


class WriteFileQuery(Record, frozen=True, kw_only=True):
    path: str
    executable: bool = False
    expect: Version = ""
    """The version that the change was made from; a conflict if another one is active."""


class RemoveFileQuery(Record, frozen=True, kw_only=True):
    path: str
    expect: Version = ""


class SkillEdit(Record, frozen=True, kw_only=True):
    """What of its SKILL.md is to be another; the rest of that file stays as it is, byte for byte."""

    description: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    body: Annotated[str, msgspec.Meta(max_length=200_000)] | None = None
    expect: Version = ""


class VersionBody(Record, frozen=True, kw_only=True):
    version: Version = ""
    """Empty: for a pin the active one, for a rollback the one before."""


class InBoxBody(Record, frozen=True, kw_only=True):
    box: str
    """Its id."""
    path: str = ""
    """Where the edited copy lies in it; empty: in the skill's state directory under `edit`."""


class BoxBody(Record, frozen=True, kw_only=True):
    box: str
    """Its id."""


class BindingBody(Record, frozen=True, kw_only=True):
    skills: list[Name]
    """Exactly these; none ends the group."""


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


# --- all of them ------------------------------------------------------------------------------------------------


async def list_skills(call: Call) -> Reply:
    """By name."""
    return Reply(SkillList(skills=await call.own.skills.all()))


async def install(call: Call, body: SkillBody) -> Reply:
    """From a git repository, or a new one of one file."""
    source = await _named(call, body)
    return Reply(await call.own.skills.install(source, digest=body.digest, new=body.name is not None), 201)


async def preview(call: Call, body: SkillBody) -> Reply:
    """What installing it would bring and change."""
    return Reply(await call.own.skills.preview(await _named(call, body)))


async def _named(call: Call, body: SkillBody) -> Source:
    if body.git is not None and body.name is None:
        return await call.own.skills.fetch(body.git, body.ref, body.path)
    if body.name is not None and body.git is None:
        return new_skill(body.name, body.description, body.body)
    raise Invalid("name either git or name", remedy="an archive goes to /v1/skills/archive")


async def install_archive(call: Call, query: ArchiveQuery) -> Reply:
    """The body is a zip file."""
    source = await _archive(call, query.path)
    return Reply(await call.own.skills.install(source, digest=query.digest, name=query.name or ""), 201)


async def preview_archive(call: Call, query: ArchiveQuery) -> Reply:
    """What installing this zip file would bring and change."""
    return Reply(await call.own.skills.preview(await _archive(call, query.path)))


async def _archive(call: Call, path: str) -> Source:
    content = b"".join([piece async for piece in call.pieces(MAX_PACKAGE_BYTES)])
    return Zip("sent.zip", content, path)


# --- one of them ------------------------------------------------------------------------------------------------


async def get(call: Call) -> Reply:
    """Its active version."""
    return Reply(await call.own.skills.get(call.params["skill"]))


async def edit(call: Call, body: SkillEdit) -> Reply:
    """A new version with other instructions or another description."""
    skills, name = call.own.skills, call.params["skill"]
    skill = await skills.get(name)
    if body.description is None and body.body is None:
        return Reply(skill)
    content = await skills.read_file(name, MANIFEST, skill.digest)
    changes = {MANIFEST: edit_manifest(content, body.description, body.body)}
    return Reply(await skills.change_files(name, changes, expect=body.expect or skill.digest))


async def remove(call: Call) -> Reply:
    """With all its versions; running boxes no longer show it."""
    await call.own.skills.remove(call.params["skill"])
    return Reply(status=204)


async def text(call: Call) -> Reply:
    """Its instructions, without the front matter."""
    return Reply(SkillText(body=await call.own.skills.body(call.params["skill"])))


async def versions(call: Call) -> Reply:
    """Newest first."""
    found = await call.own.skills.versions(call.params["skill"])
    return Reply(SkillVersions(versions=found))


async def list_files(call: Call, query: VersionQuery) -> Reply:
    """Of one version."""
    found = await call.own.skills.files(call.params["skill"], query.version)
    return Reply(SkillFiles(files=found))


async def read_file(call: Call, query: FileQuery) -> Reply:
    """One file, as it is."""
    name = call.params["skill"]
    data = await call.own.skills.read_file(name, query.path, query.version)
    headers = {"content-disposition": "attachment", "content-security-policy": "sandbox"}
    return Reply(data, type=BYTES, headers=headers)


async def write_file(call: Call, query: WriteFileQuery) -> Reply:
    """The body is the file's content. A new version, in which every other file is as it was."""
    data = b"".join([piece async for piece in call.pieces(MAX_FILE_BYTES)])
    name, skills = call.params["skill"], call.own.skills
    return Reply(await skills.write_file(name, query.path, data, executable=query.executable, expect=query.expect))


async def remove_file(call: Call, query: RemoveFileQuery) -> Reply:
    """A new version without this file."""
    return Reply(await call.own.skills.remove_file(call.params["skill"], query.path, expect=query.expect))


async def export(call: Call, query: VersionQuery) -> Reply:
    """One version as a zip file; the same version gives the same bytes."""
    name = call.params["skill"]
    data = await call.own.skills.export(name, query.version)
    return Reply(data, type=BYTES, headers={"content-disposition": f'attachment; filename="{name}.zip"'})


async def pin(call: Call, body: VersionBody) -> Reply:
    """Nothing changes its active version until it is unpinned."""
    return Reply(await call.own.skills.pin(call.params["skill"], body.version))


async def unpin(call: Call) -> Reply:
    """It may change again."""
    return Reply(await call.own.skills.unpin(call.params["skill"]))


async def rollback(call: Call, body: VersionBody) -> Reply:
    """Another version becomes the active one."""
    return Reply(await call.own.skills.rollback(call.params["skill"], body.version))


async def upgrade(call: Call) -> Reply:
    """The newest from where the active version came."""
    skills, name = call.own.skills, call.params["skill"]
    origin = await skills.origin(name)
    if origin.kind != "git":
        # The server's user has named the path, perhaps long ago: the caller has what policy shows him of it today.
        config = call.keeper.config
        return Reply(await skills.upgrade(name, lambda place: config.host_place(place, "skill's source")))
    source = await skills.fetch(origin.place, origin.ref, origin.path)
    return Reply(await skills.install(source, name=name))


async def save(call: Call, body: InBoxBody) -> Reply:
    """What was edited in a box as a new version."""
    name, skills = call.params["skill"], call.own.skills
    await skills.get(name)
    call.params = {"skill": name, "box": body.box}
    async with using(call) as box:
        return Reply(await skills.save(name, box, body.path))


async def prepare(call: Call, body: BoxBody) -> Reply:
    """Make it ready in a box: its dependencies, its state directory, what its programs need to be told."""
    name, skills = call.params["skill"], call.own.skills
    await skills.get(name)
    call.params = {"skill": name, "box": body.box}
    async with using(call) as box:
        return Reply(await skills.prepare(name, box))


# --- groups -----------------------------------------------------------------------------------------------------


async def list_bindings(call: Call) -> Reply:
    """Named sets of skills, for boxes made with `skills: GROUP`."""
    return Reply(SkillBindings(bindings=await call.own.skills.bindings()))


async def bind(call: Call, body: BindingBody) -> Reply:
    """The group holds exactly these from now on, in running boxes too."""
    return Reply(await call.own.skills.bind(call.params["group"], tuple(body.skills)))
