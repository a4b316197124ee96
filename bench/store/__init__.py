"""What lies on disk: a run folder, and the spool that bench and its ranks exchange files through."""
