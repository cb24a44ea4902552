"""Where tasks run. An executor never knows which method it carries."""
