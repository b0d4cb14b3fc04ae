"""Deliveries for consumers of pulled tasks, and the receipts with which they answer."""
