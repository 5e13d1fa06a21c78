//! Parked pulls, woken by reput.
