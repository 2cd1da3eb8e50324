"""The same API without `await`: `from hutch.sync import Hutch`.

One background thread runs the event loop; every call passes its coroutine to it and waits. The signatures are taken
from the protocols in `hutch.api`, so that the two forms cannot differ.
"""

from hutch.sync.boxes import Box, Files, Job, Stream, Watch
from hutch.sync.hutch import Hutch
from hutch.sync.resources import Questions, Receipts, Skills, Volumes

__all__ = ["Box", "Files", "Hutch", "Job", "Questions", "Receipts", "Skills", "Stream", "Volumes", "Watch"]
