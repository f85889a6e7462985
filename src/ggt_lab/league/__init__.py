"""The league: tasks × entrants under one protocol, with equal trials for all."""
