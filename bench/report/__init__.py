"""What is true of stored results. This room judges and returns data; `tables` puts it into words and columns, and
`render` marks these up."""
