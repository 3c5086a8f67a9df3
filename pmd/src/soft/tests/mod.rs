mod datagram;
mod driver;
mod golden;
mod hostile;
mod management;
mod reliable;
mod rig;
mod subnet;
