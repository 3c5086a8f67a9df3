mod circles;
mod drain;
mod election;
mod messages;
mod model;
mod siblings;
mod silence;
mod world;
