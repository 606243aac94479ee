"""How fast capture reads and decodes, and how much memory a large transaction takes."""
