mod datagram;
mod events;
mod golden;
mod hostile;
mod reliable;
mod rig;
mod roce;
mod subnet;
