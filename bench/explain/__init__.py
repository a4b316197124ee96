"""Why a step takes as long as it does: traces, divided into parts that sum to the step, and compared."""
