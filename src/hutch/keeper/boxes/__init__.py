"""The life of a box: its record, its states, and every step from its creation to its end."""
