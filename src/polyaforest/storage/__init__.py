"""Model files: the format, and how forests are put into it."""
