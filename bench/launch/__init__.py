"""Starting, watching and ending the processes that measure."""
