"""Judge whether a run reached the expected values, with profiles that are matched to a machine or learnt from runs."""
