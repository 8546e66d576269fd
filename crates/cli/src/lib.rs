//! causeway: run programs over Causeway, show its state, examine the machine
