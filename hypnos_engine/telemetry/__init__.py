"""What is counted about requests: kept in memory, bounded, without anything that a client wrote but short labels."""
