"""Configuration: `hutch.toml`, `HUTCH_*` and keyword arguments, and where Hutch keeps its files."""

from hutch.config.settings import Config, Shown

__all__ = ["Config", "Shown"]
