"""Programs that base images hold. They run in boxes, with the standard library of the image's own Python."""
