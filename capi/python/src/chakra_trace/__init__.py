"""Records windows in the workers of a server, controlled by a flag file (see manager)."""
