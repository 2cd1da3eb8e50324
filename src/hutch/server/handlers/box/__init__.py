"""Handlers of what happens in one box: commands, jobs, code, files, checkpoints, ports, export."""
