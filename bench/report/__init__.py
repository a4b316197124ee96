"""Tables out of stored results: `summary` computes, `tables` words, `markdown` and `terminal` mark up."""
