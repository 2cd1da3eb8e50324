"""AstrBot's doors: the Bay API of Shipyard Neo, and the older Shipyard API."""
