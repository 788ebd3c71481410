//! Tests that start, kill and remove clusters of their own, one at a time.

mod apart;
mod bad_input;
mod beside;
mod certificates;
mod configured;
mod foreign;
mod leftovers;
mod pushed_images;
mod several_nodes;
mod several_servers;
mod survival;
