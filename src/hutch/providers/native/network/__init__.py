"""The network of native boxes: their links, what filters and translates between them and the machine, their DNS."""
