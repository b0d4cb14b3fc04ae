"""Celery's canvas as workflows of `late`: its steps, the workflow that is made of them."""
