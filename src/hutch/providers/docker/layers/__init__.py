"""Layers of container boxes: copies of their files in volumes of the engine, compared, merged and put back."""
