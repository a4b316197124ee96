"""How sure a figure is: intervals, ratios and the words for a verdict. Pure arithmetic on raw samples."""
