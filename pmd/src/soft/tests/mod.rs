mod datagram;
mod golden;
mod management;
mod reliable;
mod rig;
mod subnet;
