//! The model of sled.

