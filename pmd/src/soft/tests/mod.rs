mod datagram;
mod reliable;
mod rig;
mod subnet;
