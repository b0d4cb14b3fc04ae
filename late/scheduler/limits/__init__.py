"""What limits allow, and the ready tasks that wait for them. Pure."""
