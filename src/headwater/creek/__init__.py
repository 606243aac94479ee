"""The Creek wire: subjects, packets, Avro schemas and their fingerprints, requests, and the client."""
