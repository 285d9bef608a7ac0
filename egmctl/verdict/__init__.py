"""What a kind of machine is known to reach, and whether a run reached it: match, judge, learn."""
