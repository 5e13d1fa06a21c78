//! Wires, starts and drains one node.
