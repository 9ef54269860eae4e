//! Everything between a review's body and its answer, in process: the handler over a store in memory. Needs nothing.

mod answers;
mod bodies;
mod costly;
mod deadlines;
mod desk;
mod faulty;
mod following;
mod fuzz;
mod policies;
mod rollouts;
mod rules;
mod statuses;
mod storm;
mod trips;
mod updates;
mod world;
