"""The file system of a native box: images, skeleton, mounts."""
