"""What a box needs on the engine besides its container: images, networks, mounts, and the volume with our guest."""
