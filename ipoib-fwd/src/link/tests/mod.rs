//! Links against each other over a small fabric.

mod arp;
mod connected;
mod fabric;
mod hostile;
mod limits;
mod port;
