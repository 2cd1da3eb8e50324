"""LangBot's door: the Box Runtime protocol, by which an unmodified LangBot uses Hutch as its sandbox."""
