"""The experiments of the paper: what they run, what they claim, how the claims are judged."""
