"""Changes as they happen: WAL to transactions in commit order, with positions, confirmation and recovery."""
