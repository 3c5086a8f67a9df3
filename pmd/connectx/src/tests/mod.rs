mod datagram;
mod golden;
mod hostile;
mod reliable;
mod rig;
mod roce;
mod subnet;
