//! Shared-memory layouts: rings, inboxes and doorbell words
