//! Links against each other over a small fabric.

mod administration;
mod agreed;
mod arp;
mod checks;
mod connected;
mod fabric;
mod hostile;
mod impostors;
mod limits;
mod linux;
mod own_address;
mod port;
