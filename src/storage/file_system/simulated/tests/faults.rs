//! The faults of a device and of single calls.

