mod datagram;
mod golden;
mod hostile;
mod management;
mod reliable;
mod rig;
mod subnet;
