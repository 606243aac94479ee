"""How fast tables are read in full, by Spark and into another PostgreSQL, and how fast two of them are compared."""
