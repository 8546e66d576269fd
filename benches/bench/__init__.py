"""What `make bench` is made of: the plan of a round, runners, peers, targets, tables, a figure."""
