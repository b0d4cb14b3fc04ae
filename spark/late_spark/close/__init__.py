"""The monthly close: one folder and one page that finance signs (`late close 2026-10`)."""
