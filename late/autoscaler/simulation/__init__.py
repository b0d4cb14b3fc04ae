"""A simulation of a policy beside other autoscalers' rules, on recorded or generated load."""
