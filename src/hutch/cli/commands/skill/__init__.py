"""Skills: packages of instructions, scripts and files for agents, in the open SKILL.md format.

Boxes show them read-only at /workspace/.skills/NAME; what is installed or changed is seen in running boxes at once.
"""
