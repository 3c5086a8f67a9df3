mod datagram;
mod management;
mod reliable;
mod rig;
mod subnet;
