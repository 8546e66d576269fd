//! causewayd: attaches endpoints, introduces them to each other, cleans up after the dead
