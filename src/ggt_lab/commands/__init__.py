"""What a person types: one module per command of ``ggt``. All work is done elsewhere."""
