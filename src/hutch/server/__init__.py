"""The HTTP server: the keeper with a door. Parse, call the keeper, render; nothing here decides about boxes."""
