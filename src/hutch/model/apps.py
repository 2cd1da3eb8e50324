"""App boxes: the templates there are, and what is shown of an app."""

from enum import StrEnum

from hutch.model.ids import BoxId
from hutch.model.record import Record


class AppState(StrEnum):
    CREATING = "creating"
    INSTALLING = "installing"
    STARTING = "starting"
    RUNNING = "running"
    """Its program listens on the app's port."""
    STOPPED = "stopped"
    PAUSED = "paused"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Its box does not run here; the reason says more."""


class AppInfo(Record, frozen=True, kw_only=True):
    """A web application in a box of its own."""

    box_id: BoxId
    name: str
    """The name of its box; may be empty."""
    template: str
    state: AppState
    reason: str = ""
    """Why it is in this state."""
    remedy: str = ""
    port: int
    """The port inside the box."""
    job: str = ""
    """The job that runs it; empty before its first start."""
    owner: str
    created_at: float
    started_at: float = 0.0
    """When its job was started; 0 before."""


class TemplateInfo(Record, frozen=True, kw_only=True):
    """A kind of app that can be made."""

    name: str
    title: str
    description: str
    port: int
    """Its usual port; the search for a free one begins here."""
    programs: tuple[str, ...]
    """Programs that the image of the box must have."""
    installs: bool
    """Whether it installs packages at its first start, for which its box needs the network."""
