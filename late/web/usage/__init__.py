"""The values of the screen of usage: the sum of the day, and the last cost report."""
