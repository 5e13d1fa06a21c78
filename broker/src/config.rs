//! The configuration file, read once into checked options.
