"""The makers of the machines of states.jsonl, one function for each, named as the state."""
