"""Files of Parquet and PDF: strangers' are read in a process of its own, tables are written."""
