"""Pure values. They import only `late.errors` and each other."""
