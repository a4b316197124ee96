"""The stored records, as frozen data. Nothing here reads the machine, the disk or the clock."""
