"""Every tool of Hutch itself, in the order in which a model sees them."""

from hutch.tools.box_operation import box_operation_tool
from hutch.tools.boxes import box_lifecycle_tool, box_query_tool
from hutch.tools.definition import Tool
from hutch.tools.exec import exec_tool
from hutch.tools.jobs import job_tool
from hutch.tools.read import read_tool
from hutch.tools.search import glob_tool, grep_tool
from hutch.tools.send_file import send_file_tool
from hutch.tools.skills import activate_skill_tool, list_skills_tool
from hutch.tools.write import edit_tool, write_tool

TOOLS: tuple[Tool, ...] = (
    exec_tool, job_tool, read_tool, write_tool, edit_tool, glob_tool, grep_tool, send_file_tool,
    box_query_tool, box_lifecycle_tool, box_operation_tool, list_skills_tool, activate_skill_tool,
)  # fmt: skip

SKILL_TOOLS = frozenset({"list_skills", "activate_skill"})
"""Hidden where no skills are kept."""
