"""The store of images that the configuration names."""

import argparse
import os

from hutch.cli.embedded import configuration
from hutch.config import Config
from hutch.images.store import Store


def store_of(arguments: argparse.Namespace) -> Store:
    return store_in(configuration(arguments))


def store_in(config: Config) -> Store:
    return Store(os.path.join(config.state_dir, "images"), config.images)
