"""Frameworks that `late` fits into. Each has a folder of its own and needs what it is named after."""
