"""What a GGT step would need: memory, time, and the largest window that fits."""
