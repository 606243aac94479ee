"""How fast a pipeline reads, delivers and applies, how late it is, and how much memory a backlog takes."""
