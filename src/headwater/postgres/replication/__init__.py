"""Logical replication: slots, publications, the stream and its messages. A replication client for Python on psycopg 3."""
