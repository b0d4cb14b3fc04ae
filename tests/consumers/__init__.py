"""One script for consumers in any language: `python -m tests.consumers COMMAND...`."""
