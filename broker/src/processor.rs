//! Request code to answer, one file per family.
