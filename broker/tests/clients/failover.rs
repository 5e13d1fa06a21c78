//! Several nodes: who answers what, and what happens when the leader goes.
