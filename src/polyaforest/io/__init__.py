"""Reading tables and live records, and writing results; import the module that does what you need."""
