"""Every published number has its command here: `python -m bench --help`."""
