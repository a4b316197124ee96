"""The files on disk: the run folder, and the spool through which bench and its ranks exchange files."""
