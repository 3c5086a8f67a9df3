//! Links against each other over a small fabric.

mod administration;
mod agreed;
mod arp;
mod checks;
mod connected;
mod cycles;
mod day;
mod device;
mod dishonest_sm;
mod fabric;
mod grh;
mod hostile;
mod impostors;
mod limits;
mod linux;
mod node;
mod own_address;
mod port;
mod reloads;
