"""Read tables from users: validation of rows and parameters, categories as numbers."""
