"""How many workers a fleet needs, told to KEDA."""
