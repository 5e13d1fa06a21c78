//! Tells every name server who leads.
