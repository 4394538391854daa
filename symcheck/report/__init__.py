"""What people and machines read: pure functions of findings."""
