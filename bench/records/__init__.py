"""What is stored, as frozen data. Nothing here looks at the machine, the disk or the clock."""
