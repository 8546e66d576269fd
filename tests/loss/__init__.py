"""Links that lose packets, and many hosts that send to one."""
