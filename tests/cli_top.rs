//! `quorate top` in a real terminal.
