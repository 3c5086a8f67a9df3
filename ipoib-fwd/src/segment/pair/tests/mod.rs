mod election;
mod messages;
mod model;
mod world;
