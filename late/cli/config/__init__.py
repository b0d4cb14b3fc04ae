"""The configuration file of the command line: `late.toml`.

A value comes from a flag, else from the environment, else from the file, else from the default.

| module | what is in it |
|---|---|
| `catalogue.py` | the keys, derived from `WorkerConfig` and the options of the commands |
| `file.py` | which file is read, and the check of every key in it |
| `configuration.py` | a command with its file: defaults of its options, settings of its worker |
| `environment.py` | misspelt variables, and a `LATE_URL` of another database than the app's |
| `commands.py` | `late config show` and `late config check` |
"""
