"""The keeper owns boxes: records, states, clocks. It is the only writer of a box's state."""
