"""`manage.py late`, and short forms of the commands that a project uses most."""
