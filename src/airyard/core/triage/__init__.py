"""Log and fault signatures, turned into a failure cause."""
