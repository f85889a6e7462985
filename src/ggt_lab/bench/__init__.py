"""What a step costs: cases, each measured in a process of its own, their summary, and whether promises are met."""
