//! What the repository itself promises: its layers, and the pages and files beside the code.

mod circles;
mod contrib;
mod face;
mod fields;
mod figures;
mod layers;
mod package;
mod rooms;
