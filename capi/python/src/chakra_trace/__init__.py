"""Windows of a server's workers, said by a file: see manager."""
